// Loads and stores of several elements, and of elements that share bytes.
#pragma once

namespace tw {

template <class T> TW_DEVICE T* global_pointer(uint64_t address) { return reinterpret_cast<T*>(address); }

template <int N, class T> TW_DEVICE Vector<T, N> load(const T* pointer, TW_SITE) {
  Vector<T, N> result;
  ::tw_load(&result, pointer, sizeof(result), site);
  return result;
}
template <class T, int N> TW_DEVICE void store(T* pointer, const Vector<T, N>& vector, TW_SITE) { ::tw_store(pointer, &vector, sizeof(vector), site); }
template <int N, class T, int SIZE> TW_DEVICE void load_fragment(Fragment<T, SIZE>& fragment, int offset, const T* pointer, TW_SITE) {
  const Vector<T, N> vector = load<N>(pointer, site);
  for (int i = 0; i < N; ++i) fragment[offset + i] = vector[i];
}
}  // namespace tw

#include "tilewright_codes.cuh"
