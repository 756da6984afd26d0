// Parts of fragments and vectors: plain C++, for the device and for the emulator, each with a Fragment and a Vector of its own.
#pragma once

namespace tw {

// Elements [offset, offset + N) of a fragment, as an operand of a matrix or copy function.
template <int N, class T, int SIZE> TW_DEVICE Fragment<T, N>& slice(Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<Fragment<T, N>*>(fragment.data + offset);
}
template <int N, class T, int SIZE> TW_DEVICE const Fragment<T, N>& slice(const Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<const Fragment<T, N>*>(fragment.data + offset);
}

template <int N, class T, int SIZE> TW_DEVICE const Vector<T, N>& slice_vector(const Vector<T, SIZE>& vector, int offset) {
  return *reinterpret_cast<const Vector<T, N>*>(vector.data + offset);
}

// The same registers as elements of another type.
template <class U, int M, class T, int N> TW_DEVICE Fragment<U, M>& viewed_as(Fragment<T, N>& fragment) {
  static_assert(sizeof(U) * M == sizeof(T) * N, "a view has the bytes of what it views");
  return *reinterpret_cast<Fragment<U, M>*>(fragment.data);
}

// The 32-bit registers that hold a fragment of smaller elements.
template <class T, int N> TW_DEVICE uint32_t get_word(const Fragment<T, N>& fragment, int index) {
  return reinterpret_cast<const Word*>(fragment.data)[index];
}
template <class T, int N> TW_DEVICE void set_word(Fragment<T, N>& fragment, int index, uint32_t word) {
  reinterpret_cast<Word*>(fragment.data)[index] = word;
}

}  // namespace tw
