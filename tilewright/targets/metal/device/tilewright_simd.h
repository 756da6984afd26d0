// What the threads of a simdgroup, and those of a threadgroup, do together.
namespace tw {

TW_DEVICE void sync_threads() { threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup); }
TW_DEVICE void sync_shared() { threadgroup_barrier(mem_flags::mem_threadgroup); }   // where nobody reads what others wrote to a tensor
TW_DEVICE void sync_warp() { simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup); }

// A value that is the same in the whole simdgroup anyway.
TW_DEVICE int32_t warp_uniform(int32_t x) { return simd_shuffle(x, ushort(0)); }

// Values of 1 to 8 bytes as the words that shuffles move.
template <int BYTES> struct Moved;
template <> struct Moved<1> { typedef uint8_t bits; typedef uint32_t type; };
template <> struct Moved<2> { typedef uint16_t bits; typedef uint32_t type; };
template <> struct Moved<4> { typedef uint32_t bits; typedef uint32_t type; };
template <> struct Moved<8> { typedef uint2 bits; typedef uint2 type; };
template <class T> TW_DEVICE typename Moved<sizeof(T)>::type moved(T x) {
  return typename Moved<sizeof(T)>::type(bit_cast<typename Moved<sizeof(T)>::bits>(x));
}
template <class T> TW_DEVICE T arrived(typename Moved<sizeof(T)>::type word) {
  return bit_cast<T>(typename Moved<sizeof(T)>::bits(word));
}
template <class T> TW_DEVICE T shuffle(T x, int lane) { return arrived<T>(simd_shuffle(moved(x), ushort(lane))); }
template <class T> TW_DEVICE T shuffle_xor(T x, int lanes) { return arrived<T>(simd_shuffle_xor(moved(x), ushort(lanes))); }
template <class T> TW_DEVICE T shuffle_up(T x, int delta) { return arrived<T>(simd_shuffle_up(moved(x), ushort(delta))); }
template <class T> TW_DEVICE T shuffle_down(T x, int delta) { return arrived<T>(simd_shuffle_down(moved(x), ushort(delta))); }

TW_DEVICE uint32_t ballot(bool condition) { return uint32_t(ulong(simd_ballot(condition))); }
TW_DEVICE bool any(bool condition) { return simd_any(condition); }
TW_DEVICE bool all(bool condition) { return simd_all(condition); }

// Lanes whose bits are this one's, and all of them where they are alike, else none.
TW_DEVICE bool same_bits(uint32_t a, uint32_t b) { return a == b; }
TW_DEVICE bool same_bits(uint2 a, uint2 b) { return a.x == b.x && a.y == b.y; }
template <class T> TW_DEVICE uint32_t match_any(T x) {
  uint32_t same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= uint32_t(same_bits(simd_shuffle(moved(x), ushort(lane)), moved(x))) << lane;
  return same & ballot(true);
}
template <class T> TW_DEVICE uint32_t match_all(T x) {
  const uint32_t same = match_any(x);
  return same == ballot(true) ? same : 0u;
}

// The values of all lanes combined, in every lane.
#define TW_COMBINED(NAME, COMBINED)                     \
  template <class T> TW_DEVICE T NAME(T x) {            \
    for (int lanes = 16; lanes > 0; lanes >>= 1) {      \
      const T y = shuffle_xor(x, lanes);                \
      x = COMBINED;                                     \
    }                                                   \
    return x;                                           \
  }
TW_COMBINED(warp_add, x + y)
TW_COMBINED(warp_min, minimum(x, y))
TW_COMBINED(warp_max, maximum(x, y))
TW_COMBINED(warp_and, T(x & y))
TW_COMBINED(warp_or, T(x | y))
TW_COMBINED(warp_xor, T(x ^ y))
#undef TW_COMBINED
// The sum over the simdgroup; Metal's own adds up no numbers of 8 and of 64 bits.
template <class T> TW_DEVICE T simdgroup_add(T x) { return warp_add(x); }
TW_DEVICE float simdgroup_add(float x) { return simd_sum(x); }
TW_DEVICE int32_t simdgroup_add(int32_t x) { return simd_sum(x); }
TW_DEVICE uint32_t simdgroup_add(uint32_t x) { return simd_sum(x); }

}  // namespace tw
