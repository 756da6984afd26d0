// Bit tricks that turn packed low-bit codes into operands, all exact; written in terms of tilewright_packed.cuh alone, so that the
// emulator compiles this very file.
//
// Fields of a word are counted from its low bits.  A 16-bit pair takes fields p and p + (fields / 2), because the halves of a register
// are 16 bits apart: weights packed in the order 0 4 1 5 2 6 3 7 (4-bit) come out consecutive.
#pragma once

namespace tw {

// Unsigned 4-bit fields PAIR and PAIR + 4 (PAIR 0..3), minus `zero`, as half.
template <int PAIR> TW_DEVICE uint32_t decode_u4_f16x2(uint32_t word, uint32_t zero) {
  const uint32_t shifted = PAIR >= 2 ? word >> 8 : word;
  if (PAIR % 2 == 0) return sub_f16x2(lop3<0xEA>(shifted, 0x000F000Fu, 0x64006400u), 0x64006400u + zero * 0x00010001u);      // 1024 + code
  return fma_f16x2(lop3<0xEA>(shifted, 0x00F000F0u, 0x64006400u), 0x2C002C00u, 0xD400D400u + (zero << 4) * 0x00010001u);     // 64 + code, after 1/16
}
// The same as bfloat16, whose mantissa is too short for a field that is not shifted down.
template <int PAIR> TW_DEVICE uint32_t decode_u4_bf16x2(uint32_t word, uint32_t zero) {
  return fma_bf16x2(lop3<0xEA>(word >> (4 * PAIR), 0x000F000Fu, 0x43004300u), 0x3F803F80u, 0xC300C300u + zero * 0x00010001u);
}
// The code itself as the half subnormal code * 2^-24 (PAIR even) or code * 2^-20 (PAIR odd): one operation; the caller folds the power of two.
template <int PAIR> TW_DEVICE uint32_t decode_u4_f16x2_raw(uint32_t word) {
  return (PAIR >= 2 ? word >> 8 : word) & (PAIR % 2 == 0 ? 0x000F000Fu : 0x00F000F0u);
}
// Unsigned 4-bit fields 0 2 4 6 (HALF 0) or 1 3 5 7 (HALF 1) as bytes.
template <int HALF> TW_DEVICE uint32_t decode_u4_u8x4(uint32_t word) { return (HALF ? word >> 4 : word) & 0x0F0F0F0Fu; }
// Signed 4-bit fields times 16 as signed bytes, the same order: the caller folds 1/16 into the scale.
template <int HALF> TW_DEVICE uint32_t decode_s4_s8x4_times16(uint32_t word) { return (HALF ? word : word << 4) & 0xF0F0F0F0u; }
// Bytes 0..15 minus 8; bytes that hold a two's-complement 4-bit code, sign-extended.
TW_DEVICE uint32_t subtract8_s8x4(uint32_t bytes) { return (bytes + 0x78787878u) ^ 0x80808080u; }
TW_DEVICE uint32_t sign_extend4_s8x4(uint32_t bytes) { return subtract8_s8x4(bytes ^ 0x08080808u); }

// Unsigned 2-bit fields PAIR and PAIR + 8 (PAIR 0..7) as half.
template <int PAIR> TW_DEVICE uint32_t decode_u2_f16x2(uint32_t word) {
  const uint32_t shifted = PAIR >= 4 ? word >> 8 : word;
  if (PAIR % 4 == 0) return sub_f16x2(lop3<0xEA>(shifted, 0x00030003u, 0x64006400u), 0x64006400u);
  if (PAIR % 4 == 1) return fma_f16x2(lop3<0xEA>(shifted, 0x000C000Cu, 0x64006400u), 0x34003400u, 0xDC00DC00u);
  if (PAIR % 4 == 2) return fma_f16x2(lop3<0xEA>(shifted, 0x00300030u, 0x64006400u), 0x2C002C00u, 0xD400D400u);
  return fma_f16x2(lop3<0xEA>(shifted, 0x00C000C0u, 0x64006400u), 0x24002400u, 0xCC00CC00u);
}
// Unsigned 2-bit fields PART, PART + 4, PART + 8, PART + 12 as bytes.
template <int PART> TW_DEVICE uint32_t decode_u2_u8x4(uint32_t word) { return word >> (2 * PART) & 0x03030303u; }

// Bytes 0, 1 (PAIR 0) or 2, 3 (PAIR 1) of a word, unsigned or signed.
template <int PAIR> TW_DEVICE uint32_t decode_u8_f16x2(uint32_t word) {
  return sub_f16x2(prmt(word, 0x64646464u, PAIR ? 0x5352u : 0x5150u), 0x64006400u);
}
template <int PAIR> TW_DEVICE uint32_t decode_s8_f16x2(uint32_t word) {
  return sub_f16x2(prmt(word ^ 0x80808080u, 0x64646464u, PAIR ? 0x5352u : 0x5150u), 0x64806480u);
}
template <int PAIR> TW_DEVICE uint32_t decode_s8_bf16x2(uint32_t word) {
  const uint32_t biased = word ^ 0x80808080u;                      // 2^23 + byte as a float
  return pack_bf16x2(bits_float(prmt(biased, 0x4B000000u, 0x7650u + 2 * PAIR)) - 8388736.0f,
                     bits_float(prmt(biased, 0x4B000000u, 0x7651u + 2 * PAIR)) - 8388736.0f);
}

// fp8 codes in the high byte of each half of the word; fp4 codes in the top four bits of each half.
TW_DEVICE uint32_t decode_e4m3_f16x2(uint32_t word) { return mul_f16x2((word & 0x80008000u) | (word & 0x7F007F00u) >> 1, 0x5C005C00u); }   // NaN codes: 480
TW_DEVICE uint32_t decode_e4m3_bf16x2(uint32_t word) { return mul_bf16x2((word & 0x80008000u) | (word & 0x7F007F00u) >> 4, 0x7B807B80u); }
TW_DEVICE uint32_t decode_e5m2_f16x2(uint32_t word) { return word & 0xFF00FF00u; }
TW_DEVICE uint32_t decode_e5m2_bf16x2(uint32_t word) { return mul_bf16x2((word & 0x80008000u) | (word & 0x7F007F00u) >> 3, 0x77807780u); } // finite codes
TW_DEVICE uint32_t decode_e2m1_f16x2(uint32_t word) { return mul_f16x2((word & 0x80008000u) | (word & 0x70007000u) >> 3, 0x74007400u); }
TW_DEVICE uint32_t decode_e2m1_bf16x2(uint32_t word) { return mul_bf16x2((word & 0x80008000u) | (word & 0x70007000u) >> 6, 0x7E807E80u); }

}  // namespace tw
