// Loads and stores of several elements.
#pragma once

namespace tw {

template <int BYTES> struct Carrier;    // the machine's type for an access of this many bytes
template <> struct Carrier<1> { typedef uint8_t type; };
template <> struct Carrier<2> { typedef uint16_t TW_ANY type; };
template <> struct Carrier<4> { typedef uint32_t TW_ANY type; };
template <> struct Carrier<8> { typedef machine::Int2 type; };
template <> struct Carrier<16> { typedef machine::Int4 type; };

// What an address of global memory points to, as a table of pointers holds it.
template <class T> TW_DEVICE T* global_pointer(uint64_t address) { return (T*)(TW_GLOBAL T*)address; }

template <int BYTES> using Carried = typename Carrier<BYTES>::type;

// N consecutive elements as one access of up to 16 bytes; the address is aligned to all of them.
template <int N, class T> TW_DEVICE Carried<sizeof(T) * N> carried(const T* pointer, TW_SITE) {
  TW_AT(site);
  Carried<sizeof(T) * N> value;
  TW_READ(value, reinterpret_cast<const Carried<sizeof(T) * N>*>(pointer));
  return value;
}
template <class T, int N> TW_DEVICE void store(T* pointer, const Vector<T, N>& vector, TW_SITE) {
  TW_AT(site);
  typename Carrier<sizeof(T) * N>::type value;
  __builtin_memcpy(&value, &vector, sizeof(vector));
  TW_WRITE(reinterpret_cast<typename Carrier<sizeof(T) * N>::type*>(pointer), value);
}
// What a thread reads only where it lies inside of its tensor; beyond, the value is zero.  Nobody branches, so loads stay on their way.
template <class T> struct Within { const T* pointer; bool inside; };
template <class T> TW_DEVICE Within<T> within(const T* pointer, bool inside) { return {pointer, inside}; }
template <int N, class T> TW_DEVICE Carried<sizeof(T) * N> carried(const Within<T>& place, TW_SITE) {
  TW_AT(site);
  Carried<sizeof(T) * N> value;
  TW_READ_WITHIN(value, reinterpret_cast<const Carried<sizeof(T) * N>*>(place.pointer), place.inside);
  return value;
}
// An element of a tensor of less than 2 GiB: the machine's descriptor takes 32 bits for it, and gives zeros for those that are too large.
template <class T> struct Place { const T* tensor; uint32_t index; bool inside; };
template <class T> TW_DEVICE Place<T> place(const T* tensor, int32_t index, bool inside = true) { return {tensor, uint32_t(index), inside}; }
constexpr uint32_t BEYOND = 0x80000000u;
#if TW_WARP_SIZE == 64
constexpr int32_t DESCRIBED = 0x00027000;   // words of 32 bits
#else
constexpr int32_t DESCRIBED = 0x31027000;   // the same; an access is too large that begins beyond the last byte
#endif
template <int BYTES> struct Described;
#define TW_DESCRIBED(BYTES, NAME)                                                                                    \
  template <> struct Described<BYTES> {                                                                              \
    TW_DEVICE static typename Carrier<BYTES>::type load(const void* tensor, uint32_t at, TwSite site) {              \
      return bit_cast<typename Carrier<BYTES>::type>(__builtin_amdgcn_raw_buffer_load_##NAME(                        \
          __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(tensor), 0, BEYOND - 1u, DESCRIBED), at, 0, 0));       \
    }                                                                                                                \
  };
TW_DESCRIBED(1, b8)
TW_DESCRIBED(2, b16)
TW_DESCRIBED(4, b32)
TW_DESCRIBED(8, b64)
TW_DESCRIBED(16, b128)
#undef TW_DESCRIBED
template <int N, class T> TW_DEVICE Carried<sizeof(T) * N> carried(const Place<T>& place, TW_SITE) {
  TW_AT(site);
  return Described<sizeof(T) * N>::load(place.tensor, place.inside ? place.index * uint32_t(sizeof(T)) : BEYOND, site);
}
template <class T> TW_DEVICE T element_of(const T*);
template <class T> TW_DEVICE T element_of(const Within<T>&);
template <class T> TW_DEVICE T element_of(const Place<T>&);
template <int N, class SOURCE> TW_DEVICE auto load(const SOURCE& source, TW_SITE) {
  return bit_cast<Vector<decltype(element_of(source)), N>>(carried<N>(source, site));
}

#if TW_WARP_SIZE == 64
// ---- from tensors to shared memory: no register holds what is on its way --------------------------------------------------
// A wave's instruction writes side by side what its lanes read: that of lane l goes to `to` + l * BYTES, where `to` is the first lane's.
TW_DEVICE machine::SharedPointer place_of_wave(const void* to, TW_SITE) {
  TW_AT(site);
  TW_THERE(LANES_OF_WAVE);
  return machine::shared_pointer(uint32_t(__builtin_amdgcn_readfirstlane(int(machine::shared_address(to, site)))));
}
template <int BYTES> struct Started;   // the built-ins take numbers alone
#define TW_STARTED(BYTES)                                                                                            \
  template <> struct Started<BYTES> {                                                                                \
    TW_DEVICE static void described(const void* tensor, uint32_t at, machine::SharedPointer to, TwSite site) {       \
      __builtin_amdgcn_raw_ptr_buffer_load_lds(                                                                      \
          __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(tensor), 0, BEYOND - 1u, DESCRIBED), to, BYTES, at, 0, 0, 0); \
    }                                                                                                                \
    TW_DEVICE static void addressed(const void* source, machine::SharedPointer to, TwSite site) {                    \
      __builtin_amdgcn_global_load_lds(machine::global_pointer(source), to, BYTES, 0, 0);                            \
    }                                                                                                                \
  };
TW_STARTED(4)
#if defined(TW_GFX950)
TW_STARTED(16)
#endif
#undef TW_STARTED
template <int BYTES, class T> TW_DEVICE void cp_async(const void* to, const Place<T>& place, TW_SITE) {
  Started<BYTES>::described(place.tensor, place.inside ? place.index * uint32_t(sizeof(T)) : BEYOND, place_of_wave(to, site), site);
}
template <int BYTES, class T> TW_DEVICE void cp_async(const void* to, const Within<T>& place, TW_SITE) {
  const void* const source = place.inside ? static_cast<const void*>(place.pointer) : static_cast<const void*>(tw_zeros);
  Started<BYTES>::addressed(source, place_of_wave(to, site), site);
}
template <int BYTES, class T> TW_DEVICE void cp_async(const void* to, const T* pointer, TW_SITE) { cp_async<BYTES>(to, within(pointer, true), site); }
// Until at most LEFT of the wave's loads are under way: they end in the order in which they began, those into registers too.
template <int LEFT> TW_DEVICE void cp_async_wait(TW_SITE) {
  TW_AT(site);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_s_waitcnt(0x0f70 | (LEFT & 15) | LEFT >> 4 << 14);
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#endif
template <class T> TW_DEVICE T read(const Within<T>& place, TW_SITE) { return load<1>(place, site)[0]; }
template <class T> TW_DEVICE T read(const Place<T>& place, TW_SITE) { return load<1>(place, site)[0]; }
// The same between memory (a pointer, or one of these places) and elements [offset, offset + N) of a fragment.  All of them move at once: of
// bytes that are set one by one clang makes words again by dozens of instructions.
template <int N, class T, int SIZE, class SOURCE> TW_DEVICE void load_fragment(Fragment<T, SIZE>& fragment, int offset, const SOURCE& source, TW_SITE) {
  const auto value = carried<N>(source, site);
  static_assert(sizeof(value) == sizeof(T) * N, "the source has other elements");
  __builtin_memcpy(&fragment[offset + N - 1] - (N - 1), &value, sizeof(value));
}
template <int N, class T, int SIZE, int OTHERS> TW_DEVICE void move_fragment(Fragment<T, SIZE>& to, int at, const Fragment<T, OTHERS>& from, int first) {
  T moved[N];
  __builtin_memcpy(moved, &from[first + N - 1] - (N - 1), sizeof(moved));
  __builtin_memcpy(&to[at + N - 1] - (N - 1), moved, sizeof(moved));
}
// A value that the rest of the text is not executed without: its load has come back.
template <class T> TW_DEVICE T settled(T x) {
  constexpr int WORDS = sizeof(T) == 8 ? 2 : 1;
  uint32_t words[WORDS] = {};
  __builtin_memcpy(words, &x, sizeof(T));
#pragma unroll
  for (int i = 0; i < WORDS; ++i) TW_SETTLED(words[i]);
  __builtin_memcpy(&x, words, sizeof(T));
  return x;
}
template <int N, class T, int SIZE, int OTHERS> TW_DEVICE void settle_fragment(Fragment<T, SIZE>& to, int at, const Fragment<T, OTHERS>& from, int first) {
  uint32_t moved[N * sizeof(T) / 4];
  __builtin_memcpy(moved, &from[first + N - 1] - (N - 1), sizeof(moved));
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T) / 4); ++i) TW_SETTLED(moved[i]);
  __builtin_memcpy(&to[at + N - 1] - (N - 1), moved, sizeof(moved));
}
}  // namespace tw

#include "tilewright_codes.cuh"
