// Number types as storage with conversions, short vectors, and register fragments.
#pragma once

namespace tw {

// 16-bit and 8-bit floats are bits; arithmetic on them is in tilewright_convert.cuh.
struct half { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
struct float8_e4m3 { uint8_t bits; };
struct float8_e5m2 { uint8_t bits; };
struct float8_e8m0 { uint8_t bits; };   // a power of two: 2^(bits - 127), 0xFF is NaN
struct float4_e2m1 { uint8_t bits; };   // one code in the low four bits
struct tfloat32 { float value; };       // the matrix units ignore the low 13 bits

template <int BYTES> struct Carrier;    // the machine's type for an access of this many bytes
template <> struct Carrier<1> { typedef uint8_t type; };
template <> struct Carrier<2> { typedef uint16_t type; };
template <> struct Carrier<4> { typedef uint32_t type; };
template <> struct Carrier<8> { typedef uint2 type; };
template <> struct Carrier<16> { typedef uint4 type; };

// N consecutive elements that are moved by one access (two where the architecture has no access of 32 bytes).
template <class T, int N> struct alignas(sizeof(T) * N) Vector {
  T data[N];
  TW_DEVICE T& operator[](int i) { return data[i]; }
  TW_DEVICE const T& operator[](int i) const { return data[i]; }
};

TW_DEVICE constexpr int fragment_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

// A thread's share of a tile, in registers as long as every index is known after unrolling.
template <class T, int N> struct alignas(fragment_alignment(sizeof(T) * N)) Fragment {
  T data[N];
  TW_DEVICE T& operator[](int i) { return data[i]; }
  TW_DEVICE const T& operator[](int i) const { return data[i]; }
};

// Elements [offset, offset + N) of a fragment, as an operand of a matrix or copy function.
template <int N, class T, int SIZE> TW_DEVICE Fragment<T, N>& slice(Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<Fragment<T, N>*>(fragment.data + offset);
}
template <int N, class T, int SIZE> TW_DEVICE const Fragment<T, N>& slice(const Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<const Fragment<T, N>*>(fragment.data + offset);
}

template <int N, class T, int SIZE> TW_DEVICE const Vector<T, N>& slice_vector(const Vector<T, SIZE>& vector, int offset) {
  return *reinterpret_cast<const Vector<T, N>*>(vector.data + offset);
}

// The 32-bit registers that hold a fragment of smaller elements.
template <class T, int N> TW_DEVICE uint32_t get_word(const Fragment<T, N>& fragment, int index) {
  return reinterpret_cast<const uint32_t*>(fragment.data)[index];
}
template <class T, int N> TW_DEVICE void set_word(Fragment<T, N>& fragment, int index, uint32_t word) {
  reinterpret_cast<uint32_t*>(fragment.data)[index] = word;
}

// The bits of a value read as another type of the same size.
template <class To, class From> TW_DEVICE To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace tw
