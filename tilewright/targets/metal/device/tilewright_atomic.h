// Atomic updates of one element, relaxed; each returns the old value.  Where Metal has none, a comparison and exchange of the word.
namespace tw {

#ifndef TW_HALF_OF_WORD   // the emulator is told which bytes of a word are looked at
#define TW_HALF_OF_WORD(p)
#endif
#define TW_WORDS(SPACE)                                                                                                          \
  TW_DEVICE SPACE atomic_uint* word_at(SPACE void* p) { return reinterpret_cast<SPACE atomic_uint*>(p); }                        \
  template <class Change, class T> TW_DEVICE T change_word(SPACE T* p, T x) {                                     \
    SPACE atomic_uint* word = word_at(p);                                                                                        \
    uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);                                                            \
    while (!atomic_compare_exchange_weak_explicit(                                                                               \
        word, &seen, bit_cast<uint32_t>(Change::of(bit_cast<T>(seen), x)), memory_order_relaxed, memory_order_relaxed)) {         \
    }                                                                                                                            \
    return bit_cast<T>(seen);                                                                                                    \
  }                                                                                                                              \
  template <class Change, class T> TW_DEVICE T change_half(SPACE T* p, T x) {                                     \
    TW_HALF_OF_WORD(p)                                                                                                           \
    const uint64_t address = reinterpret_cast<uint64_t>(p);                                                                      \
    SPACE atomic_uint* word = word_at(reinterpret_cast<SPACE uint16_t*>(p) - (address >> 1 & 1u));                               \
    const uint32_t shift = uint32_t(address & 2u) * 8;                                                                           \
    uint32_t seen = atomic_load_explicit(word, memory_order_relaxed), wanted;                                                    \
    do {                                                                                                                         \
      const T old = bit_cast<T>(uint16_t(seen >> shift));                                                                        \
      wanted = (seen & ~(0xFFFFu << shift)) | uint32_t(bit_cast<uint16_t>(Change::of(old, x))) << shift;                          \
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, wanted, memory_order_relaxed, memory_order_relaxed));           \
    return bit_cast<T>(uint16_t(seen >> shift));                                                                                 \
  }
struct Sum { template <class T> static T of(T a, T b) { return a + b; } };
struct Least { template <class T> static T of(T a, T b) { return minimum(a, b); } };
struct Greatest { template <class T> static T of(T a, T b) { return maximum(a, b); } };
struct Exchanged { template <class T> static T of(T, T b) { return b; } };
TW_WORDS(device)
#ifndef TW_ONE_MEMORY
TW_WORDS(threadgroup)
#endif
#undef TW_WORDS

#define TW_WHOLE(SPACE, NAME, METAL)                                                                                  \
  TW_DEVICE int32_t NAME(SPACE int32_t* p, int32_t x) {                                                               \
    return METAL(reinterpret_cast<SPACE atomic_int*>(p), x, memory_order_relaxed);                                    \
  }                                                                                                                   \
  TW_DEVICE uint32_t NAME(SPACE uint32_t* p, uint32_t x) {                                                            \
    return METAL(reinterpret_cast<SPACE atomic_uint*>(p), x, memory_order_relaxed);                                   \
  }
#define TW_ATOMICS(SPACE)                                                                                             \
  TW_WHOLE(SPACE, atomic_add, atomic_fetch_add_explicit)                                                              \
  TW_WHOLE(SPACE, atomic_min, atomic_fetch_min_explicit)                                                              \
  TW_WHOLE(SPACE, atomic_max, atomic_fetch_max_explicit)                                                              \
  TW_WHOLE(SPACE, atomic_and, atomic_fetch_and_explicit)                                                              \
  TW_WHOLE(SPACE, atomic_or, atomic_fetch_or_explicit)                                                                \
  TW_WHOLE(SPACE, atomic_xor, atomic_fetch_xor_explicit)                                                              \
  TW_WHOLE(SPACE, atomic_exchange, atomic_exchange_explicit)                                                          \
  TW_DEVICE float atomic_min(SPACE float* p, float x) { return change_word<Least>(p, x); }                          \
  TW_DEVICE float atomic_max(SPACE float* p, float x) { return change_word<Greatest>(p, x); }                       \
  TW_DEVICE float atomic_exchange(SPACE float* p, float x) { return change_word<Exchanged>(p, x); }                 \
  TW_DEVICE half atomic_add(SPACE half* p, half x) { return change_half<Sum>(p, x); }                               \
  TW_DEVICE bfloat atomic_add(SPACE bfloat* p, bfloat x) { return change_half<Sum>(p, x); }                         \
  TW_DEVICE half atomic_min(SPACE half* p, half x) { return change_half<Least>(p, x); }                             \
  TW_DEVICE bfloat atomic_min(SPACE bfloat* p, bfloat x) { return change_half<Least>(p, x); }                       \
  TW_DEVICE half atomic_max(SPACE half* p, half x) { return change_half<Greatest>(p, x); }                          \
  TW_DEVICE bfloat atomic_max(SPACE bfloat* p, bfloat x) { return change_half<Greatest>(p, x); }                    \
  TW_DEVICE int32_t atomic_load(const SPACE int32_t* p) {                                                             \
    return atomic_load_explicit(reinterpret_cast<const SPACE atomic_int*>(p), memory_order_relaxed);                  \
  }                                                                                                                   \
  TW_DEVICE uint32_t atomic_load(const SPACE uint32_t* p) {                                                           \
    return atomic_load_explicit(reinterpret_cast<const SPACE atomic_uint*>(p), memory_order_relaxed);                 \
  }                                                                                                                   \
  TW_DEVICE int32_t atomic_store(SPACE int32_t* p, int32_t x) {                                                       \
    atomic_store_explicit(reinterpret_cast<SPACE atomic_int*>(p), x, memory_order_relaxed);                           \
    return x;                                                                                                         \
  }                                                                                                                   \
  TW_DEVICE uint32_t atomic_store(SPACE uint32_t* p, uint32_t x) {                                                    \
    atomic_store_explicit(reinterpret_cast<SPACE atomic_uint*>(p), x, memory_order_relaxed);                          \
    return x;                                                                                                         \
  }
TW_ATOMICS(device)
#ifndef TW_ONE_MEMORY
TW_ATOMICS(threadgroup)
#endif
#undef TW_ATOMICS
#undef TW_WHOLE
// Device memory adds floats itself; threadgroup memory does not.
TW_DEVICE float atomic_add(device float* p, float x) {
  return atomic_fetch_add_explicit(reinterpret_cast<device atomic_float*>(p), x, memory_order_relaxed);
}
#ifndef TW_ONE_MEMORY
TW_DEVICE float atomic_add(threadgroup float* p, float x) { return change_word<Sum>(p, x); }
#endif

// Several neighbours, each by itself.
#define TW_NEIGHBOURS(SPACE)                                                                                          \
  template <int N, class T, int SIZE>                                                                                 \
  TW_DEVICE void atomic_add_fragment(SPACE T* p, const thread Fragment<T, SIZE>& fragment, int offset) {              \
    for (int i = 0; i < N; ++i) atomic_add(p + i, fragment[offset + i]);                                              \
  }
TW_NEIGHBOURS(device)
#ifndef TW_ONE_MEMORY
TW_NEIGHBOURS(threadgroup)
#endif
#undef TW_NEIGHBOURS

// One element of BITS < 8 bits, whoever writes the others of its byte at the same time: only its own bits of the word change.
#ifndef TW_SET_BITS  // which the emulator has: it knows which bits of a byte have been written
#define TW_SET_BITS(SPACE, byte, mask, bits)                                                                          \
  const uint32_t within = uint32_t(reinterpret_cast<uint64_t>(byte) & 3u);                                            \
  SPACE atomic_uint* word = word_at(byte - within);                                                                   \
  atomic_fetch_and_explicit(word, ~((mask) << within * 8), memory_order_relaxed);                                     \
  atomic_fetch_or_explicit(word, (bits) << within * 8, memory_order_relaxed)
#endif
#define TW_PACKED(SPACE)                                                                                              \
  template <int BITS, class T> TW_DEVICE void set_packed(SPACE uint8_t* p, int64_t index, T value) {                  \
    SPACE uint8_t* byte = p + index / (8 / BITS);                                                                     \
    const uint32_t shift = uint32_t(index % (8 / BITS)) * BITS;                                                       \
    TW_SET_BITS(SPACE, byte, ((1u << BITS) - 1u) << shift, code_of<BITS>(value) << shift);                            \
  }
TW_PACKED(device)
#ifndef TW_ONE_MEMORY
TW_PACKED(threadgroup)
#endif
#undef TW_PACKED

}  // namespace tw
