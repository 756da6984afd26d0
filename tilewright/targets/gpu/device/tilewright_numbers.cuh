// Number types as storage, and what a template asks of one: plain C++, for all devices and for the emulator.
#pragma once
#include "tilewright_formats.cuh"

namespace tw {

// 16-bit and 8-bit floats are bits; arithmetic on them is in tilewright_small_floats.cuh.
// Bits of a number, whatever else memory is read as (`TW_ANY`): views and vectors reach the same bytes by other types.
#ifndef TW_ANY
#define TW_ANY
#endif
typedef uint16_t TW_ANY HalfBits;
typedef uint32_t TW_ANY Word;
struct half { HalfBits bits; };
struct bfloat16 { HalfBits bits; };
struct tfloat32 { float value; };       // the matrix units ignore the low 13 bits

template <class T> struct is_small_float { static constexpr bool value = false; };
template <> struct is_small_float<half> { static constexpr bool value = true; };
template <> struct is_small_float<bfloat16> { static constexpr bool value = true; };
template <> struct is_small_float<tfloat32> { static constexpr bool value = true; };
// One code of a format in the low bits of a byte, whose other bits are zeros.
#define TW_FORMAT(NAME, ...)                                                            \
  struct NAME { uint8_t bits; };                                                        \
  template <> struct is_small_float<NAME> { static constexpr bool value = true; };
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
template <class A, class B> struct same_type { static constexpr bool value = false; };
template <class A> struct same_type<A, A> { static constexpr bool value = true; };
template <class T> struct is_wide_float { static constexpr bool value = same_type<T, float>::value || same_type<T, double>::value; };

// Where N registers of a type may begin, so that they move in as few accesses as possible.
TW_DEVICE constexpr int fragment_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

}  // namespace tw
