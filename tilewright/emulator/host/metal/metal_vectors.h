// Vectors (2.2).
#pragma once

template <class T, int N> struct vec;
template <class T> struct vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T x, T y) : x(x), y(y) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
struct uint3 { uint x, y, z; };
struct alignas(8) uint2 { uint x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
