// Short vectors and register fragments.
#pragma once
#include "tilewright_numbers.cuh"

namespace tw {

template <int BYTES> struct Carrier;    // the machine's type for an access of this many bytes
template <> struct Carrier<1> { typedef uint8_t type; };
template <> struct Carrier<2> { typedef uint16_t type; };
template <> struct Carrier<4> { typedef uint32_t type; };
template <> struct Carrier<8> { typedef uint2 type; };
template <> struct Carrier<16> { typedef uint4 type; };
struct alignas(32) Words { uint64_t data[4]; };  // one access to global memory from sm_100, else two
template <> struct Carrier<32> { typedef Words type; };

// N consecutive elements that are moved by one access (two where the architecture has no access of 32 bytes).
template <class T, int N> struct alignas(sizeof(T) * N) Vector {
  T data[N];
  TW_DEVICE T& operator[](int i) { return data[i]; }
  TW_DEVICE const T& operator[](int i) const { return data[i]; }
};

// A thread's share of a tile, in registers as long as every index is known after unrolling.
template <class T, int N> struct alignas(fragment_alignment(sizeof(T) * N)) Fragment {
  T data[N];
  TW_DEVICE T& operator[](int i) { return data[i]; }
  TW_DEVICE const T& operator[](int i) const { return data[i]; }
};

// Where element i of a fragment is: for functions of the author's own text.
template <class T, int N> TW_DEVICE T* pointer(Fragment<T, N>& fragment, int i) { return fragment.data + i; }

// The bits of a value read as another type of the same size.
template <class To, class From> TW_DEVICE To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace tw

#include "tilewright_slices.cuh"
