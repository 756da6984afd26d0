// Short vectors, and fragments whose registers the emulator follows; a vocabulary has TW_DEVICE and its number types.
#pragma once
#include "tilewright_numbers.cuh"

namespace tw {

TW_DEVICE void check_index(int i, int size) {
#if TW_CHECK
  if (uint32_t(i) >= uint32_t(size)) ::tw_register_index(nullptr, i, uint32_t(size));
#endif
  (void)i; (void)size;
}

template <class T, int N> struct alignas(sizeof(T) * N) Vector {
  T data[N];
  TW_DEVICE T& operator[](int i) { check_index(i, N); return data[i]; }
  TW_DEVICE const T& operator[](int i) const { check_index(i, N); return data[i]; }
};

// Registers: the core knows where they are, which of them hold a value and which belong to a matrix instruction under way.
template <class T, int N> struct alignas(fragment_alignment(sizeof(T) * N)) Fragment {
  T data[N];
  TW_DEVICE T& operator[](int i) { check(i); return data[i]; }
  TW_DEVICE const T& operator[](int i) const { check(i); return data[i]; }
  TW_DEVICE void check(int i) const {
#if TW_CHECK
    ::tw_register_index(data, i, N);
#endif
    (void)i;
  }
#if TW_CHECK
  TW_DEVICE Fragment() { ::tw_registers_enter(data, sizeof data); }
  TW_DEVICE ~Fragment() { ::tw_registers_leave(data); }
  TW_DEVICE Fragment(const Fragment& other) {
    ::tw_registers_enter(data, sizeof data);
    ::tw_registers_copy(data, other.data, sizeof data);
  }
  TW_DEVICE Fragment& operator=(const Fragment& other) {
    ::tw_registers_copy(data, other.data, sizeof data);
    return *this;
  }
#endif
};

// What the function does with the registers behind it is not followed: from here on they count as written.
template <class T, int N> TW_DEVICE T* pointer(Fragment<T, N>& fragment, int i) {
#if TW_CHECK
  fragment.check(i);
  ::tw_registers_written(fragment.data + i, uint32_t(sizeof(T) * (N - i)));
#endif
  return fragment.data + i;
}

template <class To, class From> TW_DEVICE To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace tw

#include "tilewright_slices.cuh"
