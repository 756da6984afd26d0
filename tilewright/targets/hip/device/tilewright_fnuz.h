// AMD's own 8-bit floats: finite, unsigned zero, one NaN (0x80); exponents begin one lower than in the OCP's.
#pragma once

namespace tw {

struct float8_e4m3fnuz { uint8_t bits; };
struct float8_e5m2fnuz { uint8_t bits; };
template <> struct is_small_float<float8_e4m3fnuz> { static constexpr bool value = true; };
template <> struct is_small_float<float8_e5m2fnuz> { static constexpr bool value = true; };

}  // namespace tw
