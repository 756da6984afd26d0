// Floats of at most eight bits: their records, and the two functions that read them.  Plain C++ of every device's dialect.
//
// Every conversion rounds once, to nearest even.  A finite number beyond the largest becomes the largest.  An infinity becomes the
// format's infinity, else its NaN, else its largest number; NaN stays NaN, or becomes the largest number, without a sign.
#pragma once

namespace tw {

TW_DEVICE uint32_t float_bits(float x);
TW_DEVICE float bits_float(uint32_t x);

// Which codes are no numbers: none; the one of ones; those of the largest exponent, as IEEE has them; that of minus zero.  Powers of two
// have neither sign nor zero.
enum SpecialCodes { NO_SPECIALS, ONES_ARE_NAN, LARGEST_EXPONENT, MINUS_ZERO_IS_NAN, POWERS_OF_TWO };

template <int EXPONENT, int MANTISSA, int BIAS, SpecialCodes SPECIALS> struct SmallFloat {
  enum : uint32_t {
    SIGN = 1u << (EXPONENT + MANTISSA),
    ONES = SIGN - 1u,
    INFINITE = ONES >> MANTISSA << MANTISSA,   // where there are infinities
    LARGEST = SPECIALS == ONES_ARE_NAN ? ONES - 1u : SPECIALS == LARGEST_EXPONENT ? INFINITE - 1u : ONES,
    GRID = uint32_t(151 - BIAS - MANTISSA) << 23,   // a float whose last place is the least number of the format
  };
  // Nothing here is a subnormal float, which some devices take for zero.
  TW_DEVICE static float decode(uint32_t code) {
    const uint32_t magnitude = code & ONES;
    const float normal = bits_float((magnitude << (23 - MANTISSA)) + (uint32_t(127 - BIAS) << 23));
    const float subnormal = bits_float(magnitude | GRID) - bits_float(GRID);
    uint32_t found = float_bits(magnitude < (1u << MANTISSA) ? subnormal : normal) | uint32_t((code & SIGN) != 0u) << 31;
    if (SPECIALS == ONES_ARE_NAN && magnitude == ONES) found |= 0x7FC00000u;
    if (SPECIALS == LARGEST_EXPONENT && magnitude == INFINITE) found = 0x7F800000u | (found & 0x80000000u);
    if (SPECIALS == LARGEST_EXPONENT && magnitude > INFINITE) found |= 0x7FC00000u;
    if (SPECIALS == MINUS_ZERO_IS_NAN && (code & (SIGN | ONES)) == SIGN) found = 0x7FC00000u;
    return bits_float(found);
  }
  TW_DEVICE static uint32_t encode(float x) {
    const uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu, sign = float_bits(x) >> 31 ? SIGN : 0u;
    const uint32_t nearest = magnitude + ((1u << (22 - MANTISSA)) - 1u) + (magnitude >> (23 - MANTISSA) & 1u);
    const uint32_t normal = (nearest >> (23 - MANTISSA)) - (uint32_t(127 - BIAS) << MANTISSA);
    const uint32_t subnormal = float_bits(bits_float(magnitude) + bits_float(GRID)) - GRID;
    uint32_t code = magnitude < uint32_t(128 - BIAS) << 23 ? subnormal : normal;
    if (code > LARGEST) code = LARGEST;
    if (SPECIALS == NO_SPECIALS) return magnitude > 0x7F800000u ? code : code | sign;
    if (SPECIALS == LARGEST_EXPONENT && magnitude == 0x7F800000u) code = INFINITE;
    if (SPECIALS == LARGEST_EXPONENT ? magnitude > 0x7F800000u : magnitude >= 0x7F800000u) code = ONES;
    if (SPECIALS == MINUS_ZERO_IS_NAN) return magnitude >= 0x7F800000u ? uint32_t(SIGN) : code ? code | sign : 0u;
    return code | sign;
  }
};

// Code c is 2^(c - 127), 0xFF is NaN.  Code 0 is a subnormal float: the middle to the next one is a half further.
template <> struct SmallFloat<8, 0, 127, POWERS_OF_TWO> {
  TW_DEVICE static float decode(uint32_t code) { return bits_float(code == 0xFFu ? 0x7FC00000u : code ? code << 23 : 0x00400000u); }
  TW_DEVICE static uint32_t encode(float x) {
    const uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu, code = magnitude >> 23, rest = magnitude & 0x7FFFFFu;
    const uint32_t middle = code ? 0x400000u : 0x600000u;
    const uint32_t rounded = code + uint32_t(rest > middle || (rest == middle && (code & 1u)));
    const bool none = magnitude >= 0x7F800000u || (magnitude && float_bits(x) >> 31);
    return none ? 0xFFu : rounded < 0xFEu ? rounded : 0xFEu;
  }
};

// Every format: its type, and its record.
#define TW_FORMATS(X)                                   \
  X(float8_e4m3, 4, 3, 7, ONES_ARE_NAN)                 \
  X(float8_e4m3fnuz, 4, 3, 8, MINUS_ZERO_IS_NAN)        \
  X(float8_e4m3b11fnuz, 4, 3, 11, MINUS_ZERO_IS_NAN)    \
  X(float8_e5m2, 5, 2, 15, LARGEST_EXPONENT)            \
  X(float8_e5m2fnuz, 5, 2, 16, MINUS_ZERO_IS_NAN)       \
  X(float8_e8m0, 8, 0, 127, POWERS_OF_TWO)              \
  X(float6_e2m3, 2, 3, 1, NO_SPECIALS)                  \
  X(float6_e3m2, 3, 2, 3, NO_SPECIALS)                  \
  X(float4_e2m1, 2, 1, 1, NO_SPECIALS)

}  // namespace tw
