// Fragments to memory, and elements of BITS < 8 bits: bytes in memory, low bits first, a register each in fragments.  Above a vocabulary's
// loads and stores of vectors; TW_GET_BITS reads the bits of a mask in a byte, whoever changes the others.
#pragma once

namespace tw {

template <int N, class T, int SIZE> TW_DEVICE void store_fragment(T* pointer, const Fragment<T, SIZE>& fragment, int offset, TW_SITE) {
  Vector<T, N> vector;
#pragma unroll
  for (int i = 0; i < N; ++i) vector[i] = fragment[offset + i];
  store(pointer, vector, site);
}

template <int BITS> struct Code {
  static constexpr uint32_t mask = (1u << BITS) - 1u;
  TW_DEVICE static void read(uint32_t code, int8_t& to) { to = int8_t(int32_t(code << (32 - BITS)) >> (32 - BITS)); }
  TW_DEVICE static void read(uint32_t code, uint8_t& to) { to = uint8_t(code & mask); }
  TW_DEVICE static void read(uint32_t code, float4_e2m1& to) { to.bits = uint8_t(code & mask); }
  template <class T> TW_DEVICE static uint32_t of(T value) { return uint32_t(value) & mask; }
  TW_DEVICE static uint32_t of(float4_e2m1 value) { return value.bits & mask; }
};
// One element of BITS < 8 bits: its code.
template <int BITS, class I> TW_DEVICE uint32_t get_packed(const uint8_t* pointer, I index, TW_SITE) {
  const uint32_t shift = uint32_t(index % (8 / BITS)) * BITS;
  return TW_GET_BITS(pointer + index / (8 / BITS), Code<BITS>::mask << shift) >> shift;
}
// N neighbours, whole bytes of them, as one access of up to 16 bytes.
template <int BITS, int N, class T, int SIZE, class SOURCE> TW_DEVICE void load_packed(Fragment<T, SIZE>& fragment, int offset, const SOURCE& source, TW_SITE) {
  const Vector<uint8_t, N * BITS / 8> bytes = load<N * BITS / 8>(source, site);
#pragma unroll
  for (int i = 0; i < N; ++i) Code<BITS>::read(uint32_t(bytes[i * BITS / 8]) >> i * BITS % 8, fragment[offset + i]);
}
template <int BITS, int N, class T, int SIZE> TW_DEVICE void store_packed(uint8_t* pointer, const Fragment<T, SIZE>& fragment, int offset, TW_SITE) {
  Vector<uint8_t, N * BITS / 8> bytes;
#pragma unroll
  for (int i = 0; i < N * BITS / 8; ++i) {
    uint32_t byte = 0;
#pragma unroll
    for (int j = 0; j < 8 / BITS; ++j) byte |= Code<BITS>::of(fragment[offset + i * (8 / BITS) + j]) << j * BITS;
    bytes[i] = uint8_t(byte);
  }
  store(pointer, bytes, site);
}

}  // namespace tw
