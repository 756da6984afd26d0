// Packed words: two 16-bit floats or four bytes in a 32-bit register, the low element first.
#pragma once

namespace tw {

// Any function of three bits, applied bitwise: LUT is the function evaluated on 0xF0, 0xCC, 0xAA; (a & b) | c is 0xEA.
template <int LUT> TW_DEVICE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(LUT));
  return d;
}
// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes b:a (a has bytes 0-3); bit 3 of a selector copies the sign.
TW_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// One half of a register in both; what takes it reads that half instead, where the instruction can.
TW_DEVICE uint32_t low_twice(uint32_t a) { uint32_t d; asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(d) : "r"(a)); return d; }
TW_DEVICE uint32_t high_twice(uint32_t a) { uint32_t d; asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(d) : "r"(a)); return d; }
TW_DEVICE uint32_t neg_f16x2(uint32_t a) { uint32_t d; asm("neg.f16x2 %0, %1;" : "=r"(d) : "r"(a)); return d; }
TW_DEVICE uint32_t neg_bf16x2(uint32_t a) { uint32_t d; asm("neg.bf16x2 %0, %1;" : "=r"(d) : "r"(a)); return d; }
TW_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b) { uint32_t d; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t sub_f16x2(uint32_t a, uint32_t b) { uint32_t d; asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b) { uint32_t d; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
TW_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// The same operations for bfloat16 are special cases of fma, which sm_80 has: a * 1 + b and a * b + (-0).
TW_DEVICE uint32_t add_bf16x2(uint32_t a, uint32_t b) { return fma_bf16x2(a, 0x3F803F80u, b); }
TW_DEVICE uint32_t sub_bf16x2(uint32_t a, uint32_t b) { return fma_bf16x2(b, 0xBF80BF80u, a); }
TW_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b) { return fma_bf16x2(a, b, 0x80008000u); }
TW_DEVICE uint32_t max_f16x2(uint32_t a, uint32_t b) { uint32_t d; asm("max.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t max_bf16x2(uint32_t a, uint32_t b) { uint32_t d; asm("max.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t min_f16x2(uint32_t a, uint32_t b) { uint32_t d; asm("min.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
TW_DEVICE uint32_t min_bf16x2(uint32_t a, uint32_t b) { uint32_t d; asm("min.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }

// Two floats, each rounded once, in one register.
TW_DEVICE uint32_t pack_f16x2(float low, float high) { uint32_t d; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d; }
TW_DEVICE uint32_t pack_bf16x2(float low, float high) { uint32_t d; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d; }
TW_DEVICE float low_f16x2(uint32_t pair) { return to_float(half{uint16_t(pair)}); }
TW_DEVICE float high_f16x2(uint32_t pair) { return to_float(half{uint16_t(pair >> 16)}); }
TW_DEVICE float low_bf16x2(uint32_t pair) { return bits_float(pair << 16); }
TW_DEVICE float high_bf16x2(uint32_t pair) { return bits_float(pair & 0xFFFF0000u); }

// Four floats to four fp8 codes, saturating.
TW_DEVICE uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
#if __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
  return low | uint32_t(high) << 16;
#else
  return convert<float8_e4m3>(x0).bits | convert<float8_e4m3>(x1).bits << 8 | convert<float8_e4m3>(x2).bits << 16 |
         uint32_t(convert<float8_e4m3>(x3).bits) << 24;
#endif
}
// Two fp8 codes of a word as a pair of halves, exactly, subnormals and NaN included: codes 0 and 1, or 2 and 3.
template <bool HIGH> TW_DEVICE uint32_t halves(float8_e5m2, uint32_t codes) { return prmt(codes, 0, HIGH ? 0x3424 : 0x1404); }
template <bool HIGH> TW_DEVICE uint32_t halves(float8_e4m3, uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(HIGH ? codes >> 16 : codes)));
  return pair;
#else
  const uint32_t high_bytes = prmt(codes, 0, HIGH ? 0x3424 : 0x1404), magnitude = high_bytes & 0x7F007F00u;
  // Exponent and mantissa where a half has its own are the value times 2^-8; the code of NaN becomes 480, one exponent bit from NaN.
  const uint32_t nan = ((magnitude + 0x01000100u) & 0x80008000u) >> 2;
  return mul_f16x2((high_bytes & 0x80008000u) | magnitude >> 1, 0x5C005C00u) | nan;
#endif
}
// Four integers to four signed bytes, saturating.
TW_DEVICE uint32_t pack_s8x4(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  uint32_t high, d;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(x3), "r"(x2), "r"(0));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(x1), "r"(x0), "r"(high));
  return d;
}

// accumulator + the four byte products of a and b; the suffix names the signedness of a and of b.
TW_DEVICE int32_t dp4a_s8s8(uint32_t a, uint32_t b, int32_t accumulator) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(accumulator) : "r"(a), "r"(b));
  return accumulator;
}
TW_DEVICE int32_t dp4a_u8s8(uint32_t a, uint32_t b, int32_t accumulator) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(accumulator) : "r"(a), "r"(b));
  return accumulator;
}
TW_DEVICE uint32_t dp4a_u8u8(uint32_t a, uint32_t b, uint32_t accumulator) {
  asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(accumulator) : "r"(a), "r"(b));
  return accumulator;
}

}  // namespace tw
