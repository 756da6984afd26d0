// C's mathematical library for AMD's GPUs, which have none without ROCm: plain C++ above a few instructions.
//
// Errors in units of the last place (tests/unit/hip/test_hip_math.py): float 2 at most; double 2.5, pow 4, erf 6.
#pragma once

namespace tw {
namespace library {

TW_DEVICE double double_of(uint64_t bits) { return bit_cast<double>(bits); }
TW_DEVICE uint64_t bits_of_double(double x) { return bit_cast<uint64_t>(x); }
TW_DEVICE double infinity() { return double_of(0x7FF0000000000000ull); }
TW_DEVICE double not_a_number() { return double_of(0x7FF8000000000000ull); }
TW_DEVICE double with_sign(double magnitude, double sign) {
  return double_of((bits_of_double(magnitude) & 0x7FFFFFFFFFFFFFFFull) | (bits_of_double(sign) & 0x8000000000000000ull));
}
TW_DEVICE float with_sign(float magnitude, float sign) { return bits_float((float_bits(magnitude) & 0x7FFFFFFFu) | (float_bits(sign) & 0x80000000u)); }

// ---- instructions ----------------------------------------------------------------------------------------------------
#define TW_INSTRUCTION(NAME)                                                 \
  TW_DEVICE float NAME##f(float x) { return __builtin_##NAME##f(x); }        \
  TW_DEVICE double NAME(double x) { return __builtin_##NAME(x); }
TW_INSTRUCTION(sqrt)
TW_INSTRUCTION(floor)
TW_INSTRUCTION(ceil)
TW_INSTRUCTION(trunc)
TW_INSTRUCTION(rint)
TW_INSTRUCTION(fabs)
#undef TW_INSTRUCTION
TW_DEVICE float fminf(float a, float b) { return __builtin_fminf(a, b); }
TW_DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
TW_DEVICE double fmin(double a, double b) { return __builtin_fmin(a, b); }
TW_DEVICE double fmax(double a, double b) { return __builtin_fmax(a, b); }
TW_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TW_DEVICE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// A polynomial, the highest coefficient first.
template <class T> TW_DEVICE T polynomial(T, T value) { return value; }
template <class T, class... Rest> TW_DEVICE T polynomial(T x, T value, T next, Rest... rest) {
  return polynomial(x, T(sizeof(T) == 4 ? fmaf(float(value), float(x), float(next)) : fma(value, x, next)), rest...);
}
template <> TW_DEVICE float polynomial(float, float value) { return value; }

// p * 2^n for a whole n of up to twice the type's range, rounded once where the result is subnormal.
TW_DEVICE double scaled(double p, int n) {
  const int half = n >> 1, first = half < -1022 ? -1022 : half > 1023 ? 1023 : half, second = n - first;
  const int last = second < -1022 ? -1022 : second > 1023 ? 1023 : second;
  return p * double_of(uint64_t(first + 1023) << 52) * double_of(uint64_t(last + 1023) << 52);
}

// ---- powers and logarithms of doubles --------------------------------------------------------------------------------
// e^(high + low) 2^shift for |high| < 1100 and a low that is small beside it.
TW_DEVICE double exp_sum(double high, double low, int shift = 0) {
  const double n = rint(high * 0x1.71547652b82fep+0);
  const double r = fma(n, -0x1.abc9e3b39803fp-56, fma(n, -0x1.62e42fefa39efp-1, high)) + low;
  const double p = polynomial(r, 0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22, 0x1.71de3a556c734p-19,
                              0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10, 0x1.1111111111111p-7, 0x1.5555555555555p-5,
                              0x1.5555555555555p-3, 0.5);
  return scaled(1.0 + fma(r * r, p, r), int(n) + shift);
}
TW_DEVICE double exp(double x) {
  if (x != x) return x;
  if (x > 710.0) return infinity();
  if (x < -746.0) return 0.0;
  return exp_sum(x, 0.0);
}
// ln x as a sum of two doubles, for a positive finite x.
struct Sum { double high, low; };
TW_DEVICE Sum log_sum(double x) {
  const bool tiny = x < 0x1p-1022;
  const uint64_t offset = bits_of_double(tiny ? x * 0x1p54 : x) - 0x3FE6A09E667F3BCDull;
  const double e = double(int64_t(offset) >> 52) - (tiny ? 54.0 : 0.0);
  const double m = double_of((offset & 0xFFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  // (m - 1) / (m + 1) = s + t; ln m = 2 (s + s^3 / 3 + ...), the first term in two parts.
  const double f = m - 1.0, g = m + 1.0, lost = m - (g - 1.0);
  const double s = f / g, t = (fma(-s, g, f) - s * lost) / g, y = s * s;
  const double series = polynomial(y, 2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3);
  const double cube = s * y, rest = fma(cube, series, 2.0 * t);
  const double whole = e * 0x1.62e42fefa3800p-1, first = whole + 2.0 * s, error = (whole - first) + 2.0 * s;
  const double low = error + fma(e, 0x1.ef35793c76730p-45, rest), high = first + low;
  return {high, (first - high) + low};
}
TW_DEVICE double log_special(double x, double value) { return x == 0.0 ? -infinity() : x == infinity() ? x : x > 0.0 ? value : not_a_number(); }
TW_DEVICE bool is_ordinary(double x) { return x > 0.0 && x < infinity(); }
TW_DEVICE double log(double x) { return log_special(x, is_ordinary(x) ? log_sum(x).high : x); }
TW_DEVICE double log_in_base(double x, double factor, double factor_low) {
  if (!is_ordinary(x)) return log_special(x, x);
  const Sum sum = log_sum(x);
  const double product = sum.high * factor;
  return product + (fma(sum.high, factor, -product) + sum.high * factor_low + sum.low * factor);
}
TW_DEVICE double log2(double x) {
  const double whole = log_in_base(x, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56), near = rint(whole);
  return fabs(near) < 1100.0 && scaled(1.0, int(near)) == x ? near : whole;
}
TW_DEVICE double log10(double x) { return log_in_base(x, 0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57); }
TW_DEVICE double log1p(double x) {
  const double u = 1.0 + x;
  if (u == 1.0 || !(u > 0.0) || !(u < infinity())) return u == 1.0 ? x : log_special(u, u);
  const double lost = x >= 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
  return log(u) + lost / u;
}
TW_DEVICE double exp2(double x) {
  if (x != x) return x;
  if (x > 1025.0) return infinity();
  if (x < -1080.0) return 0.0;
  const double n = rint(x), f = x - n, high = f * 0x1.62e42fefa39efp-1;
  return scaled(exp_sum(high, fma(f, 0x1.62e42fefa39efp-1, -high) + f * 0x1.abc9e3b39803fp-56), int(n));
}
TW_DEVICE double exp10(double x) {
  if (x != x) return x;
  if (x > 309.0) return infinity();
  if (x < -325.0) return 0.0;
  const double high = x * 0x1.26bb1bbb55516p+1;
  return exp_sum(high, fma(x, 0x1.26bb1bbb55516p+1, -high) + x * -0x1.f48ad494ea3e9p-53);
}
// e^x - 1.
TW_DEVICE double exp_less_one(double x) {
  if (fabs(x) > 0.35) return exp(x) - 1.0;
  return fma(x * x, polynomial(x, 0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22, 0x1.71de3a556c734p-19,
                               0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10, 0x1.1111111111111p-7, 0x1.5555555555555p-5,
                               0x1.5555555555555p-3, 0.5), x);
}
TW_DEVICE double sinh(double x) {
  const double a = fabs(x);
  if (!(a < 22.0)) return with_sign(a > 711.0 ? infinity() : a != a ? a : exp_sum(a, 0.0, -1), x);
  const double e = exp_less_one(a);
  return with_sign(0.5 * (e + e / (e + 1.0)), x);
}
TW_DEVICE double cosh(double x) {
  const double a = fabs(x);
  if (!(a < 22.0)) return a > 711.0 ? infinity() : a != a ? a : exp_sum(a, 0.0, -1);
  const double e = exp(a);
  return 0.5 * (e + 1.0 / e);
}
TW_DEVICE double tanh(double x) {
  const double a = fabs(x);
  if (!(a < 20.0)) return a != a ? x : with_sign(1.0, x);
  const double e = exp_less_one(2.0 * a);
  return with_sign(e / (e + 2.0), x);
}

// x^y by e^(y ln x), with ln x in two parts.
TW_DEVICE double pow(double x, double y) {
  if (y == 0.0 || x == 1.0) return 1.0;
  if (x != x || y != y) return x + y;
  const double a = fabs(x), whole = trunc(y);
  const bool is_whole = whole == y, is_odd = is_whole && fabs(y) < 0x1p53 && trunc(0.5 * y) != 0.5 * y;
  const double sign = is_odd ? x : 1.0;
  if (a == 0.0 || a == infinity()) return with_sign((a == 0.0) == (y > 0.0) ? 0.0 : infinity(), sign);
  if (fabs(y) == infinity()) return a == 1.0 ? 1.0 : (a > 1.0) == (y > 0.0) ? infinity() : 0.0;
  if (x < 0.0 && !is_whole) return not_a_number();
  const Sum sum = log_sum(a);
  const double high = y * sum.high;
  if (!(high < 745.0)) return with_sign(infinity(), sign);
  if (!(high > -750.0)) return with_sign(0.0, sign);
  return with_sign(exp_sum(high, fma(y, sum.high, -high) + y * sum.low), sign);
}

// ---- angles ----------------------------------------------------------------------------------------------------------
// 64 bits of 2 / pi from the one with weight 2^-(first + 1) on; none stand before the point.
TW_DEVICE uint64_t two_over_pi(int first) {
  constexpr uint64_t WORDS[20] = {
      0xA2F9836E4E441529ull, 0xFC2757D1F534DDC0ull, 0xDB6295993C439041ull, 0xFE5163ABDEBBC561ull, 0xB7246E3A424DD2E0ull, 0x06492EEA09D1921Cull,
      0xFE1DEB1CB129A73Eull, 0xE88235F52EBB4484ull, 0xE99C7026B45F7E41ull, 0x3991D639835339F4ull, 0x9C845F8BBDF9283Bull, 0x1FF897FFDE05980Full,
      0xEF2F118B5A0A6D1Full, 0x6D367ECF27CB09B7ull, 0x4F463F669E5FEA2Dull, 0x7527BAC7EBE5F17Bull, 0x3D0739F78A5292EAull, 0x6BFB5FB11F8D5D08ull,
      0x56033046FC7B6BABull, 0xF0CFBC209AF4361Dull};
  const int word = first >> 6, bit = first & 63;
  const uint64_t high = word < 0 ? 0 : WORDS[word], low = WORDS[word + 1];
  return bit == 0 ? high : high << bit | low >> (64 - bit);
}
TW_DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return uint64_t((unsigned __int128)a * b >> 64); }
// x = quadrant pi / 2 + the result, the quadrant modulo 4, for a finite x.
TW_DEVICE Sum quarter_turns(double x, int& quadrant) {
  const double a = fabs(x);
  Sum r;
  if (a < 0x1p20) {
    const double n = rint(a * 0x1.45f306dc9c883p-1), first = fma(n, -0x1.921fb54442d18p+0, a), product = n * 0x1.1a62633145c07p-54;
    r.high = first - product;
    r.low = ((first - r.high) - product) - fma(n, 0x1.1a62633145c07p-54, -product);
    quadrant = int(n) & 3;
  } else {
    // a = mantissa 2^exponent; the bits of 2 / pi that give whole turns of four quarters are left out, 192 behind them count.
    const uint64_t mantissa = (bits_of_double(a) & 0xFFFFFFFFFFFFFull) | 0x10000000000000ull;
    const int first = int(bits_of_double(a) >> 52) - 1075 - 2;
    const uint64_t w0 = two_over_pi(first), w1 = two_over_pi(first + 64), w2 = two_over_pi(first + 128);
    const uint64_t p1 = mantissa * w1 + high_product(mantissa, w2);
    const uint64_t p2 = mantissa * w0 + high_product(mantissa, w1) + (p1 < mantissa * w1);
    uint64_t fraction = p2 << 2 | p1 >> 62, next = p1 << 2;
    const bool up = fraction >> 63;                               // nearer to the next quarter
    quadrant = int(p2 >> 62) + up & 3;
    if (up) {
      next = 0 - next;
      fraction = ~fraction + (next == 0);
    }
    const double high = double(fraction >> 11) * 0x1p-53, low = (double(fraction & 0x7FFull) + double(next) * 0x1p-64) * 0x1p-64;
    const double angle = high * 0x1.921fb54442d18p+0;
    const double rest = fma(high, 0x1.921fb54442d18p+0, -angle) + (high * 0x1.1a62633145c07p-54 + low * 0x1.921fb54442d18p+0);
    r.high = angle + rest;
    r.low = (angle - r.high) + rest;
    if (up) r = {-r.high, -r.low};
  }
  if (x < 0.0) {
    r = {-r.high, -r.low};
    quadrant = -quadrant & 3;
  }
  return r;
}
TW_DEVICE double sin_part(Sum r) {
  const double y = r.high * r.high;
  const double p = polynomial(y, 0x1.952c77030ad4ap-49, -0x1.ae7f3e733b81fp-41, 0x1.6124613a86d09p-33, -0x1.ae64567f544e4p-26, 0x1.71de3a556c734p-19,
                              -0x1.a01a01a01a01ap-13, 0x1.1111111111111p-7, -0x1.5555555555555p-3);
  return r.high + fma(r.high * y, p, r.low * (1.0 - 0.5 * y));
}
TW_DEVICE double cos_part(Sum r) {
  const double y = r.high * r.high;
  const double p = polynomial(y, 0x1.ae7f3e733b81fp-45, -0x1.93974a8c07c9dp-37, 0x1.1eed8eff8d898p-29, -0x1.27e4fb7789f5cp-22, 0x1.a01a01a01a01ap-16,
                              -0x1.6c16c16c16c17p-10, 0x1.5555555555555p-5);
  const double half = 0.5 * y, first = 1.0 - half;
  return first + (((1.0 - first) - half) + fma(y * y, p, -r.high * r.low));
}
TW_DEVICE double sin(double x) {
  if (!(fabs(x) < infinity())) return not_a_number();
  if (fabs(x) < 0x1p-27) return x;
  int quadrant;
  const Sum r = quarter_turns(x, quadrant);
  const double value = quadrant & 1 ? cos_part(r) : sin_part(r);
  return quadrant & 2 ? -value : value;
}
TW_DEVICE double cos(double x) {
  if (!(fabs(x) < infinity())) return not_a_number();
  int quadrant;
  const Sum r = quarter_turns(x, quadrant);
  const double value = quadrant & 1 ? sin_part(r) : cos_part(r);
  return quadrant == 1 || quadrant == 2 ? -value : value;
}
TW_DEVICE double tan(double x) {
  if (!(fabs(x) < infinity())) return not_a_number();
  if (fabs(x) < 0x1p-27) return x;
  int quadrant;
  const Sum r = quarter_turns(x, quadrant);
  return quadrant & 1 ? -cos_part(r) / sin_part(r) : sin_part(r) / cos_part(r);
}
// For |x| <= tan(pi / 16): x - x^3 / 3 + ...
TW_DEVICE double atan_series(double x) {
  const double y = x * x;
  return fma(x * y, polynomial(y, 1.0 / 25, -1.0 / 23, 1.0 / 21, -1.0 / 19, 1.0 / 17, -1.0 / 15, 1.0 / 13, -1.0 / 11, 1.0 / 9, -1.0 / 7, 1.0 / 5, -1.0 / 3), x);
}
TW_DEVICE double atan(double x) {
  const double a = fabs(x);
  if (x != x) return x;
  if (a < 0x1p-27) return x;
  const bool turned = a > 1.0;
  const double t = turned ? 1.0 / a : a, u = turned ? 1.0 : a, v = turned ? a : 1.0;   // t = u / v
  // The nearest of 0, tan(pi / 8) and tan(pi / 4), its angle and what a double leaves of that.
  double center = 0.0, angle = 0.0, rest = 0.0;
  if (t > 0.6681786379192989) { center = 1.0; angle = 0x1.921fb54442d18p-1; rest = 0x1.1a62633145c07p-55; }
  else if (t > 0.198912367379658) { center = 0x1.a827999fcef32p-2; angle = 0x1.921fb54442d18p-2; rest = 0x1.c398861b78b56p-59; }
  const double numerator = a == infinity() ? -center : fma(-center, v, u), denominator = a == infinity() ? 1.0 : fma(center, u, v);
  const double inner = atan_series(numerator / denominator), value = angle + (inner + rest);
  return with_sign(turned ? 0x1.921fb54442d18p+0 - (value - 0x1.1a62633145c07p-54) : value, x);
}
TW_DEVICE double atan2(double y, double x) {
  const double pi = 0x1.921fb54442d18p+1, low = 0x1.1a62633145c07p-53;
  if (x != x || y != y) return x + y;
  const bool left = bits_of_double(x) >> 63;
  const double a = fabs(x), b = fabs(y);
  double angle;
  if (b == 0.0) angle = 0.0;
  else if (a == infinity()) angle = b == infinity() ? 0.25 * pi : 0.0;
  else if (b == infinity() || a == 0.0) angle = 0.5 * pi;
  else angle = b > a ? 0.5 * pi - (atan(a / b) - 0.5 * low) : atan(b / a);
  return with_sign(left ? pi - (angle - low) : angle, y);
}

// ---- the error function ----------------------------------------------------------------------------------------------
TW_DEVICE double erf(double x) {
  const double a = fabs(x), y = a * a;
  if (x != x) return x;
  if (a > 6.0) return with_sign(1.0, x);
  if (a < 1.75) {                                                 // 2 / sqrt(pi) e^-y (x + 2 x^3 / 3 + 4 x^5 / 15 + ...): no term cancels
    double term = a, sum = a;
    for (int n = 1; n < 60 && term > sum * 0x1p-56; ++n) {
      term *= 2.0 * y / (2 * n + 1);
      sum += term;
    }
    return with_sign(sum * 0x1.20dd750429b6dp+0 * exp(-y), x);
  }
  double fraction = 0.0;                                          // the continued fraction of what is left to 1
  for (int n = 80; n > 0; --n) fraction = 0.5 * n / (a + fraction);
  return with_sign(1.0 - exp(-y) * 0x1.20dd750429b6dp-1 / (a + fraction), x);
}

// What is left of |x| by |y| taken away as often as that can be: exact.
TW_DEVICE double fmod(double x, double y) {
  const double a = fabs(x), b = fabs(y);
  if (x != x || y != y || a == infinity() || b == 0.0) return not_a_number();
  double rest = a;
  while (rest >= b) {
    const int apart = int(bits_of_double(rest) >> 52) - int(bits_of_double(b) >> 52);
    const double step = bits_of_double(b) >> 52 == 0 || apart < 1 ? b : scaled(b, apart);
    rest -= step > rest ? 0.5 * step : step;
  }
  return with_sign(rest, x);
}

// ---- floats ----------------------------------------------------------------------------------------------------------
TW_DEVICE float exp2f(float x) {
  const bool low = x < -126.0f;                                   // the instruction gives no subnormals
  return __builtin_amdgcn_exp2f(low ? x + 64.0f : x) * (low ? 0x1p-64f : 1.0f);
}
TW_DEVICE float expf(float x) {
  if (x > 89.0f) return bits_float(0x7F800000u);
  if (x < -104.0f) return 0.0f;
  const float product = x * 0x1.715476p+0f, n = rintf(product);
  const float rest = fmaf(x, 0x1.4ae0cp-26f, fmaf(x, 0x1.715476p+0f, -product));
  const float p = __builtin_amdgcn_exp2f((product - n) + rest);
  const int whole = int(n), half = whole >> 1;
  return x != x ? x : p * bits_float(uint32_t(half + 127) << 23) * bits_float(uint32_t(whole - half + 127) << 23);
}
TW_DEVICE float log2f(float x) {
  const bool tiny = x < 0x1p-126f;
  return __builtin_amdgcn_logf(tiny ? x * 0x1p32f : x) - (tiny ? 32.0f : 0.0f);
}
TW_DEVICE float tanhf(float x) {
  const float a = fabsf(x), y = x * x;
  const float q = polynomial(y, -0x1.647ab8p-8f, 0x1.4e3348p-6f, -0x1.b79fc4p-5f, 0x1.110270p-3f, -0x1.55551cp-2f);
  return with_sign(a < 0.65625f ? fmaf(a * y, q, a) : 1.0f - 2.0f / (expf(a + a) + 1.0f), x);
}
TW_DEVICE float erff(float x) {
  const float a = fabsf(x), y = x * x, b = a > 4.1f ? 4.1f : a;
  const float p = polynomial(y, 0x1.496a28p-14f, -0x1.a3f6fcp-11f, 0x1.5405b2p-8f, -0x1.b7f90cp-6f, 0x1.ce2cf8p-4f, -0x1.81273ep-2f, 0x1.06eba8p-3f);
  const float q = polynomial(b, -0x1.9d85a6p-13f, 0x1.908178p-9f, -0x1.6cfd02p-6f, 0x1.aa2324p-4f, 0x1.462cb0p-1f, 0x1.20b432p+0f, 0x1.743778p-13f);
  return x != x ? x : a < 1.0f ? fmaf(x, p, x) : with_sign(1.0f - expf(-q), x);
}
TW_DEVICE float logf(float x) { return float(log(double(x))); }
// The others through doubles, whose errors vanish in the rounding.
#define TW_THROUGH_DOUBLE(NAME) TW_DEVICE float NAME##f(float x) { return float(NAME(double(x))); }
TW_THROUGH_DOUBLE(log10)
TW_THROUGH_DOUBLE(log1p)
TW_THROUGH_DOUBLE(exp10)
TW_THROUGH_DOUBLE(sin)
TW_THROUGH_DOUBLE(cos)
TW_THROUGH_DOUBLE(tan)
TW_THROUGH_DOUBLE(sinh)
TW_THROUGH_DOUBLE(cosh)
TW_THROUGH_DOUBLE(atan)
#undef TW_THROUGH_DOUBLE
TW_DEVICE float powf(float x, float y) { return float(pow(double(x), double(y))); }
TW_DEVICE float atan2f(float y, float x) { return float(atan2(double(y), double(x))); }
TW_DEVICE float fmodf(float x, float y) { return float(fmod(double(x), double(y))); }

}  // namespace library
}  // namespace tw
