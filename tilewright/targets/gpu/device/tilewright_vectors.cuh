// Short vectors and register fragments, of devices: the emulator has its own, whose registers it follows.
#pragma once
#include "tilewright_numbers.cuh"

#ifdef __CUDACC__   // NVRTC calls it by C's name alone
#define TW_COPY memcpy
#else
#define TW_COPY __builtin_memcpy
#endif

namespace tw {

// N consecutive elements that are moved by one access (two where the machine has none so wide).
template <class T, int N> struct alignas(sizeof(T) * N) Vector {
  T data[N];
  TW_DEVICE T& operator[](int i) { return data[i]; }
  TW_DEVICE const T& operator[](int i) const { return data[i]; }
};

// A thread's share of a tile, in registers as long as every index is known after unrolling.
template <class T, int N> struct alignas(fragment_alignment(sizeof(T) * N)) Fragment {
  typedef T TW_ANY Element;
  Element data[N];
  TW_DEVICE Element& operator[](int i) { return data[i]; }
  TW_DEVICE const Element& operator[](int i) const { return data[i]; }
};

// Where element i of a fragment is: for functions of the author's own text.
template <class T, int N> TW_DEVICE T* pointer(Fragment<T, N>& fragment, int i) { return fragment.data + i; }

// The bits of a value read as another type of the same size.
template <class To, class From> TW_DEVICE To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To result;
  TW_COPY(&result, &value, sizeof(To));
  return result;
}

}  // namespace tw

#include "tilewright_slices.cuh"
