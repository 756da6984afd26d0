// Number types as storage, and what a template asks of one: plain C++, for all devices and for the emulator.
#pragma once

namespace tw {

// 16-bit and 8-bit floats are bits; arithmetic on them is in tilewright_small_floats.cuh.
struct half { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
struct float8_e4m3 { uint8_t bits; };
struct float8_e5m2 { uint8_t bits; };
struct float8_e8m0 { uint8_t bits; };   // a power of two: 2^(bits - 127), 0xFF is NaN
struct float4_e2m1 { uint8_t bits; };   // one code in the low four bits
struct tfloat32 { float value; };       // the matrix units ignore the low 13 bits

template <class T> struct is_small_float { static constexpr bool value = false; };
template <> struct is_small_float<half> { static constexpr bool value = true; };
template <> struct is_small_float<bfloat16> { static constexpr bool value = true; };
template <> struct is_small_float<float8_e4m3> { static constexpr bool value = true; };
template <> struct is_small_float<float8_e5m2> { static constexpr bool value = true; };
template <> struct is_small_float<float8_e8m0> { static constexpr bool value = true; };
template <> struct is_small_float<float4_e2m1> { static constexpr bool value = true; };
template <> struct is_small_float<tfloat32> { static constexpr bool value = true; };
template <class A, class B> struct same_type { static constexpr bool value = false; };
template <class A> struct same_type<A, A> { static constexpr bool value = true; };
template <class T> struct is_wide_float { static constexpr bool value = same_type<T, float>::value || same_type<T, double>::value; };

// Where N registers of a type may begin, so that they move in as few accesses as possible.
TW_DEVICE constexpr int fragment_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

}  // namespace tw
