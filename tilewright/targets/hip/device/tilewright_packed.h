// Packed words: two 16-bit floats or four bytes in a 32-bit register, the low element first.
#pragma once

namespace tw {

// Any function of three bits, applied bitwise: LUT is the function evaluated on 0xF0, 0xCC, 0xAA; (a & b) | c is 0xEA.
template <int LUT> TW_DEVICE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  return (LUT & 1 ? ~a & ~b & ~c : 0u) | (LUT & 2 ? ~a & ~b & c : 0u) | (LUT & 4 ? ~a & b & ~c : 0u) | (LUT & 8 ? ~a & b & c : 0u) |
         (LUT & 16 ? a & ~b & ~c : 0u) | (LUT & 32 ? a & ~b & c : 0u) | (LUT & 64 ? a & b & ~c : 0u) | (LUT & 128 ? a & b & c : 0u);
}
// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes b:a (a has bytes 0-3); bit 3 of a selector copies the sign.
TW_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint32_t spread = (selector & 0xFu) | (selector & 0xF0u) << 4 | (selector & 0xF00u) << 8 | (selector & 0xF000u) << 12;
  const uint32_t bytes = __builtin_amdgcn_perm(b, a, spread & 0x07070707u), signs = spread >> 3 & 0x01010101u;
  const uint32_t filled = (bytes >> 7 & 0x01010101u) * 255u;
  return (bytes & ~(signs * 255u)) | (filled & signs * 255u);
}

// Byte number BYTE of a word as a float, by one instruction: clang would else mask each byte of a word by itself.
template <int BYTE> TW_DEVICE float float_of_byte(uint32_t word) {
  TW_KEPT(word);
  return float(word >> 8 * BYTE & 255u);
}
// Blocks of ROWS by COLUMNS elements of 8 or 16 bits, row by row, to the same ones column by column: in each square of as many as a word has,
// two words become two of pairs, and of bytes two of those two of fours.
template <int ROWS, int COLUMNS, class T, int N> TW_DEVICE void transpose_blocks(Fragment<T, N>& to, const Fragment<T, N>& from) {
  constexpr int SIDE = 4 / int(sizeof(T)), WIDE = COLUMNS / SIDE, HIGH = ROWS / SIDE;   // words of a row, and of a column
  static_assert(ROWS % SIDE == 0 && COLUMNS % SIDE == 0 && N % (ROWS * COLUMNS) == 0, "blocks are of whole words");
#pragma unroll
  for (int square = 0; square < N / (SIDE * SIDE); ++square) {
    const int block = square / (WIDE * HIGH) * (WIDE * HIGH * SIDE), row = square / WIDE % HIGH, column = square % WIDE;
    uint32_t words[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) words[i] = get_word(from, block + (row * SIDE + i) * WIDE + column);
    if (SIDE == 4) {
#pragma unroll
      for (int i = 0; i < SIDE; i += 2) {
        const uint32_t upper = words[i], lower = words[i + 1];
        words[i] = __builtin_amdgcn_perm(lower, upper, 0x05010400u);
        words[i + 1] = __builtin_amdgcn_perm(lower, upper, 0x07030602u);
      }
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
      set_word(to, block + (column * SIDE + i) * HIGH + row,
               __builtin_amdgcn_perm(words[SIDE / 2 + i / 2], words[SIDE == 4 ? i / 2 : 0], i % 2 ? 0x07060302u : 0x05040100u));
  }
}

TW_DEVICE uint32_t low_twice(uint32_t a) { return (a & 0xFFFFu) | a << 16; }
TW_DEVICE uint32_t high_twice(uint32_t a) { return (a & 0xFFFF0000u) | a >> 16; }
TW_DEVICE uint32_t neg_f16x2(uint32_t a) { return a ^ 0x80008000u; }
TW_DEVICE uint32_t neg_bf16x2(uint32_t a) { return a ^ 0x80008000u; }
TW_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b) { return machine::add_pairs(a, b); }
TW_DEVICE uint32_t sub_f16x2(uint32_t a, uint32_t b) { return machine::subtract_pairs(a, b); }
TW_DEVICE uint32_t mul_f16x2(uint32_t a, uint32_t b) { return machine::multiply_pairs(a, b); }
TW_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) { return machine::fused_pairs(a, b, c); }
TW_DEVICE uint32_t max_f16x2(uint32_t a, uint32_t b) { return machine::larger_pairs(a, b); }
TW_DEVICE uint32_t min_f16x2(uint32_t a, uint32_t b) { return machine::smaller_pairs(a, b); }

TW_DEVICE uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; }
#define TW_BFLOAT_PAIRS(NAME, EXPRESSION)                                                      \
  TW_DEVICE bfloat16 NAME##_bf16(bfloat16 a, bfloat16 b) { return EXPRESSION; }                \
  TW_DEVICE uint32_t NAME##_bf16x2(uint32_t u, uint32_t v) {                                   \
    return pair_of(NAME##_bf16(bfloat16{uint16_t(u)}, bfloat16{uint16_t(v)}).bits,             \
                   NAME##_bf16(bfloat16{uint16_t(u >> 16)}, bfloat16{uint16_t(v >> 16)}).bits); \
  }
TW_BFLOAT_PAIRS(add, a + b)
TW_BFLOAT_PAIRS(sub, a - b)
TW_BFLOAT_PAIRS(mul, a * b)
TW_BFLOAT_PAIRS(max, to_float(a) != to_float(a) ? b : to_float(b) != to_float(b) ? a : a < b ? b : a)
TW_BFLOAT_PAIRS(min, to_float(a) != to_float(a) ? b : to_float(b) != to_float(b) ? a : b < a ? b : a)
#undef TW_BFLOAT_PAIRS
TW_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  return pair_of(fma(bfloat16{uint16_t(a)}, bfloat16{uint16_t(b)}, bfloat16{uint16_t(c)}).bits,
                 fma(bfloat16{uint16_t(a >> 16)}, bfloat16{uint16_t(b >> 16)}, bfloat16{uint16_t(c >> 16)}).bits);
}

// Two floats, each rounded once, in one register.
TW_DEVICE uint32_t pack_f16x2(float low, float high) { return pair_of(convert<half>(low).bits, convert<half>(high).bits); }
TW_DEVICE uint32_t pack_bf16x2(float low, float high) { return pair_of(convert<bfloat16>(low).bits, convert<bfloat16>(high).bits); }
TW_DEVICE float low_f16x2(uint32_t pair) { return to_float(half{uint16_t(pair)}); }
TW_DEVICE float high_f16x2(uint32_t pair) { return to_float(half{uint16_t(pair >> 16)}); }
TW_DEVICE float low_bf16x2(uint32_t pair) { return bits_float(pair << 16); }
TW_DEVICE float high_bf16x2(uint32_t pair) { return bits_float(pair & 0xFFFF0000u); }

// Four floats to four fp8 codes, saturating.
TW_DEVICE uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
  return convert<float8_e4m3>(x0).bits | convert<float8_e4m3>(x1).bits << 8 | convert<float8_e4m3>(x2).bits << 16 |
         uint32_t(convert<float8_e4m3>(x3).bits) << 24;
}
// Two fp8 codes of a word as a pair of halves, exactly, subnormals and NaN included: codes 0 and 1, or 2 and 3.
template <bool HIGH> TW_DEVICE uint32_t halves(float8_e5m2, uint32_t codes) { return prmt(codes, 0, HIGH ? 0x3424 : 0x1404); }
template <bool HIGH> TW_DEVICE uint32_t halves(float8_e4m3, uint32_t codes) {
  const uint32_t high_bytes = prmt(codes, 0, HIGH ? 0x3424 : 0x1404), magnitude = high_bytes & 0x7F007F00u;
  // Exponent and mantissa where a half has its own are the value times 2^-8; the code of NaN becomes 480, one exponent bit from NaN.
  const uint32_t nan = ((magnitude + 0x01000100u) & 0x80008000u) >> 2;
  return mul_f16x2((high_bytes & 0x80008000u) | magnitude >> 1, 0x5C005C00u) | nan;
}
// Four integers to four signed bytes, saturating.
TW_DEVICE uint32_t saturated_byte(int32_t x) { return uint32_t(min(max(x, -128), 127)) & 0xFFu; }
TW_DEVICE uint32_t pack_s8x4(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  return saturated_byte(x0) | saturated_byte(x1) << 8 | saturated_byte(x2) << 16 | saturated_byte(x3) << 24;
}

// accumulator + the four byte products of a and b; the suffix names the signedness of a and of b.
#if TW_WARP_SIZE == 64
TW_DEVICE int32_t dp4a_s8s8(uint32_t a, uint32_t b, int32_t accumulator) { return __builtin_amdgcn_sdot4(int32_t(a), int32_t(b), accumulator, false); }
TW_DEVICE int32_t dp4a_u8s8(uint32_t a, uint32_t b, int32_t accumulator) {   // a = (a - 128) + 128
  return dp4a_s8s8(a ^ 0x80808080u, b, accumulator) + 128 * dp4a_s8s8(0x01010101u, b, 0);
}
#else
TW_DEVICE int32_t dp4a_s8s8(uint32_t a, uint32_t b, int32_t accumulator) {
  return __builtin_amdgcn_sudot4(true, int32_t(a), true, int32_t(b), accumulator, false);
}
TW_DEVICE int32_t dp4a_u8s8(uint32_t a, uint32_t b, int32_t accumulator) {
  return __builtin_amdgcn_sudot4(false, int32_t(a), true, int32_t(b), accumulator, false);
}
#endif
TW_DEVICE uint32_t dp4a_u8u8(uint32_t a, uint32_t b, uint32_t accumulator) { return __builtin_amdgcn_udot4(a, b, accumulator, false); }

}  // namespace tw
