// Number types as storage, short vectors, and fragments whose registers the emulator follows.
#pragma once

namespace tw {

struct half { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
struct float8_e4m3 { uint8_t bits; };
struct float8_e5m2 { uint8_t bits; };
struct float8_e8m0 { uint8_t bits; };
struct float4_e2m1 { uint8_t bits; };
struct tfloat32 { float value; };

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

constexpr int fragment_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

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

template <int N, class T, int SIZE> TW_DEVICE Fragment<T, N>& slice(Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<Fragment<T, N>*>(fragment.data + offset);
}
template <int N, class T, int SIZE> TW_DEVICE const Fragment<T, N>& slice(const Fragment<T, SIZE>& fragment, int offset) {
  return *reinterpret_cast<const Fragment<T, N>*>(fragment.data + offset);
}
template <int N, class T, int SIZE> TW_DEVICE const Vector<T, N>& slice_vector(const Vector<T, SIZE>& vector, int offset) {
  return *reinterpret_cast<const Vector<T, N>*>(vector.data + offset);
}

template <class T, int N> TW_DEVICE uint32_t get_word(const Fragment<T, N>& fragment, int index) {
  return reinterpret_cast<const uint32_t*>(fragment.data)[index];
}
template <class T, int N> TW_DEVICE void set_word(Fragment<T, N>& fragment, int index, uint32_t word) {
  reinterpret_cast<uint32_t*>(fragment.data)[index] = word;
}

template <class To, class From> TW_DEVICE To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace tw
