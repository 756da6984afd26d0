// Packed words: two 16-bit floats or four bytes in a 32-bit register, element by element.
#pragma once

namespace tw {

template <int LUT> TW_DEVICE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d = 0;
  if (LUT & 0x01) d |= ~a & ~b & ~c;
  if (LUT & 0x02) d |= ~a & ~b & c;
  if (LUT & 0x04) d |= ~a & b & ~c;
  if (LUT & 0x08) d |= ~a & b & c;
  if (LUT & 0x10) d |= a & ~b & ~c;
  if (LUT & 0x20) d |= a & ~b & c;
  if (LUT & 0x40) d |= a & b & ~c;
  if (LUT & 0x80) d |= a & b & c;
  return d;
}
TW_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> (4 * i) & 15u;
    uint32_t byte = uint32_t(bytes >> (8 * (which & 7u))) & 0xFFu;
    if (which & 8u) byte = byte & 0x80u ? 0xFFu : 0u;
    d |= byte << (8 * i);
  }
  return d;
}

TW_DEVICE uint32_t low_twice(uint32_t a) { return (a & 0xFFFFu) * 0x10001u; }
TW_DEVICE uint32_t high_twice(uint32_t a) { return (a >> 16) * 0x10001u; }
TW_DEVICE uint32_t neg_f16x2(uint32_t a) { return a ^ 0x80008000u; }
TW_DEVICE uint32_t neg_bf16x2(uint32_t a) { return a ^ 0x80008000u; }
template <class T> TW_DEVICE T low_of(uint32_t pair) { return T{uint16_t(pair)}; }
template <class T> TW_DEVICE T high_of(uint32_t pair) { return T{uint16_t(pair >> 16)}; }
template <class T> TW_DEVICE uint32_t pair_of(T low, T high) { return low.bits | uint32_t(high.bits) << 16; }
template <class T> TW_DEVICE T larger(T a, T b) { return to_float(a) != to_float(a) ? b : to_float(b) != to_float(b) ? a : a < b ? b : a; }
template <class T> TW_DEVICE T smaller(T a, T b) { return to_float(a) != to_float(a) ? b : to_float(b) != to_float(b) ? a : b < a ? b : a; }

#define TW_PAIRWISE(NAME, T, EXPRESSION)                                                       \
  TW_DEVICE uint32_t NAME(uint32_t u, uint32_t v) {                                            \
    auto one = [](T a, T b) { return EXPRESSION; };                                            \
    return pair_of<T>(one(low_of<T>(u), low_of<T>(v)), one(high_of<T>(u), high_of<T>(v)));     \
  }
TW_PAIRWISE(add_f16x2, half, a + b)
TW_PAIRWISE(sub_f16x2, half, a - b)
TW_PAIRWISE(mul_f16x2, half, a * b)
TW_PAIRWISE(max_f16x2, half, larger(a, b))
TW_PAIRWISE(min_f16x2, half, smaller(a, b))
TW_PAIRWISE(add_bf16x2, bfloat16, a + b)
TW_PAIRWISE(sub_bf16x2, bfloat16, a - b)
TW_PAIRWISE(mul_bf16x2, bfloat16, a * b)
TW_PAIRWISE(max_bf16x2, bfloat16, larger(a, b))
TW_PAIRWISE(min_bf16x2, bfloat16, smaller(a, b))
#undef TW_PAIRWISE
TW_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  return pair_of(fused(low_of<half>(a), low_of<half>(b), low_of<half>(c)), fused(high_of<half>(a), high_of<half>(b), high_of<half>(c)));
}
TW_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  return pair_of(fused(low_of<bfloat16>(a), low_of<bfloat16>(b), low_of<bfloat16>(c)), fused(high_of<bfloat16>(a), high_of<bfloat16>(b), high_of<bfloat16>(c)));
}

TW_DEVICE uint32_t pack_f16x2(float low, float high) { return pair_of(convert<half>(low), convert<half>(high)); }
TW_DEVICE uint32_t pack_bf16x2(float low, float high) { return pair_of(convert<bfloat16>(low), convert<bfloat16>(high)); }
TW_DEVICE float low_f16x2(uint32_t pair) { return to_float(low_of<half>(pair)); }
TW_DEVICE float high_f16x2(uint32_t pair) { return to_float(high_of<half>(pair)); }
TW_DEVICE float low_bf16x2(uint32_t pair) { return to_float(low_of<bfloat16>(pair)); }
TW_DEVICE float high_bf16x2(uint32_t pair) { return to_float(high_of<bfloat16>(pair)); }

TW_DEVICE uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
  return uint32_t(convert<float8_e4m3>(x0).bits) | uint32_t(convert<float8_e4m3>(x1).bits) << 8 | uint32_t(convert<float8_e4m3>(x2).bits) << 16 |
         uint32_t(convert<float8_e4m3>(x3).bits) << 24;
}
TW_DEVICE uint32_t saturated_byte(int32_t x) { return uint32_t(x < -128 ? -128 : x > 127 ? 127 : x) & 0xFFu; }
TW_DEVICE uint32_t pack_s8x4(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  return saturated_byte(x0) | saturated_byte(x1) << 8 | saturated_byte(x2) << 16 | saturated_byte(x3) << 24;
}

template <class A, class B> TW_DEVICE uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) {
  for (int i = 0; i < 4; ++i) sum += uint32_t(int32_t(A(a >> (8 * i))) * int32_t(B(b >> (8 * i))));
  return sum;
}
TW_DEVICE int32_t dp4a_s8s8(uint32_t a, uint32_t b, int32_t accumulator) { return int32_t(dot4<int8_t, int8_t>(a, b, uint32_t(accumulator))); }
TW_DEVICE int32_t dp4a_u8s8(uint32_t a, uint32_t b, int32_t accumulator) { return int32_t(dot4<uint8_t, int8_t>(a, b, uint32_t(accumulator))); }
TW_DEVICE uint32_t dp4a_u8u8(uint32_t a, uint32_t b, uint32_t accumulator) { return dot4<uint8_t, uint8_t>(a, b, accumulator); }

}  // namespace tw
