// Decoding and encoding the number types of matrix instructions and reductions.
#include "convert.h"

#include <cmath>
#include <cstring>

namespace emulator {

namespace {

// |value| rounded to nearest even to `mantissa` bits with least normal exponent `least`.
double round_to(double value, int mantissa, int least) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  std::frexp(value, &exponent);
  --exponent;
  const int quantum = (exponent < least ? least : exponent) - mantissa;
  return std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
}

double decode_small(uint32_t bits, int exponent_bits, int mantissa, int bias, bool has_infinity) {
  const uint32_t field = bits >> mantissa & ((1u << exponent_bits) - 1), fraction = bits & ((1u << mantissa) - 1);
  const bool negative = bits >> (exponent_bits + mantissa) & 1;
  double value;
  if (field == (1u << exponent_bits) - 1 && has_infinity) value = fraction ? NAN : INFINITY;
  else if (!field) value = std::ldexp(double(fraction), 1 - bias - mantissa);
  else value = std::ldexp(double(fraction + (1u << mantissa)), int(field) - bias - mantissa);
  return negative ? -value : value;
}

}  // namespace

float half_to_float(uint16_t bits) {
  static float* table = [] {
    float* t = new float[65536];
    for (uint32_t i = 0; i < 65536; ++i) t[i] = float(decode_small(i, 5, 10, 15, true));
    return t;
  }();
  return table[bits];
}

uint16_t float_to_half(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7FFF;
  const double magnitude = round_to(std::fabs(value), 10, -14);
  if (magnitude >= 65520.0) return sign | 0x7C00;
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);
  --exponent;
  if (exponent < -14) return sign | uint16_t(std::ldexp(magnitude, 24));
  return sign | uint16_t((exponent + 15) << 10 | (uint32_t(std::ldexp(magnitude, 10 - exponent)) & 0x3FF));
}

uint16_t float_to_bfloat(double value) {
  if (std::isnan(value)) return 0x7FFF;
  // To the nearest bfloat16 directly from double, so that there is one rounding.
  const float rounded = float(round_to(value, 7, -126));
  uint32_t bits;
  memcpy(&bits, &rounded, 4);
  return uint16_t(bits >> 16);
}

uint32_t bytes_of(TwNumber kind) {
  switch (kind) {
    case TW_F64: return 8;
    case TW_F32: case TW_TF32: case TW_S32: return 4;
    case TW_F16: case TW_BF16: return 2;
    default: return 1;
  }
}

double decode(TwNumber kind, const void* bits) {
  uint8_t byte;
  uint16_t word;
  uint32_t word32;
  float single;
  double twice;
  int32_t integer;
  switch (kind) {
    case TW_F16: memcpy(&word, bits, 2); return half_to_float(word);
    case TW_BF16:
      memcpy(&word, bits, 2);
      word32 = uint32_t(word) << 16;
      memcpy(&single, &word32, 4);
      return single;
    case TW_TF32:                                       // the matrix units ignore the low 13 bits
      memcpy(&word32, bits, 4);
      word32 &= 0xFFFFE000u;
      memcpy(&single, &word32, 4);
      return single;
    case TW_F32: memcpy(&single, bits, 4); return single;
    case TW_F64: memcpy(&twice, bits, 8); return twice;
    case TW_S32: memcpy(&integer, bits, 4); return integer;
    case TW_S8: memcpy(&byte, bits, 1); return int8_t(byte);
    case TW_U8: memcpy(&byte, bits, 1); return byte;
    case TW_E4M3:
      memcpy(&byte, bits, 1);
      return (byte & 0x7F) == 0x7F ? NAN : decode_small(byte, 4, 3, 7, false);
    case TW_E5M2: memcpy(&byte, bits, 1); return decode_small(byte, 5, 2, 15, true);
    case TW_E4M3_FNUZ: memcpy(&byte, bits, 1); return byte == 0x80 ? NAN : decode_small(byte, 4, 3, 8, false);
    case TW_E5M2_FNUZ: memcpy(&byte, bits, 1); return byte == 0x80 ? NAN : decode_small(byte, 5, 2, 16, false);
    default: return 0;
  }
}

void decode_many(TwNumber kind, const void* bits, uint32_t count, double* values) {
  const char* at = static_cast<const char*>(bits);
  if (kind == TW_E4M3 || kind == TW_E5M2) {
    static double* tables = [] {
      double* t = new double[512];
      for (uint32_t i = 0; i < 256; ++i) {
        const uint8_t byte = uint8_t(i);
        t[i] = decode(TW_E4M3, &byte);
        t[256 + i] = decode(TW_E5M2, &byte);
      }
      return t;
    }();
    for (uint32_t i = 0; i < count; ++i) values[i] = tables[(kind == TW_E5M2 ? 256 : 0) + uint8_t(at[i])];
    return;
  }
  const uint32_t size = bytes_of(kind);
  for (uint32_t i = 0; i < count; ++i) values[i] = decode(kind, at + i * size);
}

void encode(TwNumber kind, double value, void* bits) {
  uint16_t word;
  float single;
  int32_t integer;
  switch (kind) {
    case TW_F16: word = float_to_half(value); memcpy(bits, &word, 2); return;
    case TW_BF16: word = float_to_bfloat(value); memcpy(bits, &word, 2); return;
    case TW_F64: memcpy(bits, &value, 8); return;
    case TW_S32: integer = int32_t(int64_t(value)); memcpy(bits, &integer, 4); return;
    default: single = float(value); memcpy(bits, &single, 4); return;
  }
}

}  // namespace emulator
