// Number types as bits: decoded exactly, encoded with one rounding to nearest even.
#pragma once
#include <cstdint>

#include "interface.h"

namespace emulator {

double decode(TwNumber kind, const void* bits);
void encode(TwNumber kind, double value, void* bits);
uint32_t bytes_of(TwNumber kind);
void decode_many(TwNumber kind, const void* bits, uint32_t count, double* values);
float half_to_float(uint16_t bits);
uint16_t float_to_half(double value);
uint16_t float_to_bfloat(double value);

}  // namespace emulator
