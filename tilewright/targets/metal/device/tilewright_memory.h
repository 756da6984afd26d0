// A thread's share of tiles, and accesses of several elements at once.
namespace tw {

// Behind the members of a fragment: the emulator follows its registers from there, and looks at each index of one.
#ifndef TW_FOLLOWED
#define TW_FOLLOWED(name)
#define TW_INDEXED(first, index, count)
#endif
// The end of a thread before the end of its text: the emulator leaves the thread's fibre.
#ifndef TW_RETURN
#define TW_RETURN return
#endif

constexpr int fragment_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1; }

template <class T, int N> struct alignas(fragment_alignment(sizeof(T) * N)) Fragment {
  typedef T TW_ANY Element;
  Element data[N];
  thread Element& operator[](int i) thread { TW_INDEXED(data, i, N) return data[i]; }
  const thread Element& operator[](int i) const thread { TW_INDEXED(data, i, N) return data[i]; }
  TW_FOLLOWED(Fragment)
};

// The bits of a value read as another type of the same size.
template <class To, class From> TW_DEVICE To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  typedef To TW_ANY Any;
  return *reinterpret_cast<const thread Any*>(&x);
}

// Elements [offset, offset + N) of a fragment.
template <int N, class T, int SIZE> TW_DEVICE thread Fragment<T, N>& slice(thread Fragment<T, SIZE>& fragment, int offset) {
  TW_INDEXED(fragment.data, offset, SIZE - N + 1)
  return *reinterpret_cast<thread Fragment<T, N>*>(fragment.data + offset);
}
// The same registers as elements of another type.
template <class U, int M, class T, int N> TW_DEVICE thread Fragment<U, M>& viewed_as(thread Fragment<T, N>& fragment) {
  static_assert(sizeof(U) * M == sizeof(T) * N, "a view has the bytes of what it views");
  return *reinterpret_cast<thread Fragment<U, M>*>(fragment.data);
}
// Products are done when their function returns: nothing is kept from moving here.
template <class T, int N> TW_DEVICE void hold_registers(thread Fragment<T, N>&) {}
// Where an element lies, for functions of the author's own text.
template <class T, int N> TW_DEVICE thread T* pointer(thread Fragment<T, N>& fragment, int i) { return fragment.data + i; }
// The 32-bit registers that hold a fragment of smaller elements.
typedef uint32_t TW_ANY Word;
template <class T, int N> TW_DEVICE uint32_t get_word(const thread Fragment<T, N>& fragment, int index) {
  TW_INDEXED(fragment.data, index, int(sizeof(T) * N / 4))
  return reinterpret_cast<const thread Word*>(fragment.data)[index];
}
template <class T, int N> TW_DEVICE void set_word(thread Fragment<T, N>& fragment, int index, uint32_t word) {
  TW_INDEXED(fragment.data, index, int(sizeof(T) * N / 4))
  reinterpret_cast<thread Word*>(fragment.data)[index] = word;
}

// The type whose access moves so many bytes.
template <int BYTES> struct Carrier;
template <> struct Carrier<1> { typedef uint8_t type; };
template <> struct Carrier<2> { typedef uint16_t TW_ANY type; };
template <> struct Carrier<4> { typedef uint32_t TW_ANY type; };
template <> struct Carrier<8> { typedef uint2 type; };
template <> struct Carrier<16> { typedef uint4 type; };

// What an address of device memory points to; the type says that it is device memory.
template <class T> TW_DEVICE T* global_pointer(uint64_t address) { return reinterpret_cast<T*>(address); }

// Elements of BITS < 8 bits: bytes in memory, low bits first, a register each in fragments.
template <int BITS> TW_DEVICE void read_code(uint32_t code, thread int8_t& to) { to = int8_t(int32_t(code << (32 - BITS)) >> (32 - BITS)); }
template <int BITS> TW_DEVICE void read_code(uint32_t code, thread uint8_t& to) { to = uint8_t(code & ((1u << BITS) - 1u)); }
template <int BITS> TW_DEVICE void read_code(uint32_t code, thread float4_e2m1& to) { to = float4_e2m1(code & ((1u << BITS) - 1u)); }
template <int BITS, class T> TW_DEVICE uint32_t code_of(T value) { return uint32_t(value) & ((1u << BITS) - 1u); }

// The bits of a mask in a byte, whoever changes the others: the emulator asks its core.
#ifndef TW_GET_BITS
#define TW_GET_BITS(byte, mask) (uint32_t(*(byte)) & (mask))
#endif
#define TW_LOADS(SPACE)                                                                                                             \
  template <int BYTES, class T> TW_DEVICE typename Carrier<BYTES>::type load(const SPACE T* p) {                                    \
    return *reinterpret_cast<const SPACE typename Carrier<BYTES>::type*>(p);                                                        \
  }                                                                                                                                 \
  template <int N, class T, int SIZE> TW_DEVICE void load_fragment(thread Fragment<T, SIZE>& fragment, int offset, const SPACE T* p) { \
    typename Carrier<int(N * sizeof(T))>::type words = *reinterpret_cast<const SPACE typename Carrier<int(N * sizeof(T))>::type*>(p); \
    const thread T* elements = reinterpret_cast<const thread T*>(&words);                                                           \
    for (int i = 0; i < N; ++i) fragment[offset + i] = elements[i];                                                                 \
  }                                                                                                                                 \
  /* One element of BITS < 8 bits: its code. */                                                                                     \
  template <int BITS, class I> TW_DEVICE uint32_t get_packed(const SPACE uint8_t* p, I index) {                                     \
    const uint32_t shift = uint32_t(index % (8 / BITS)) * BITS;                                                                     \
    return TW_GET_BITS(p + index / (8 / BITS), ((1u << BITS) - 1u) << shift) >> shift;                                              \
  }                                                                                                                                 \
  template <int BITS, int N, class T, int SIZE>                                                                                     \
  TW_DEVICE void load_packed(thread Fragment<T, SIZE>& fragment, int offset, const SPACE uint8_t* p) {                              \
    typename Carrier<N * BITS / 8>::type words = *reinterpret_cast<const SPACE typename Carrier<N * BITS / 8>::type*>(p);           \
    const thread uint8_t* bytes = reinterpret_cast<const thread uint8_t*>(&words);                                                  \
    for (int i = 0; i < N; ++i) read_code<BITS>(uint32_t(bytes[i * BITS / 8]) >> (i * BITS % 8), fragment[offset + i]);             \
  }
#define TW_STORES(SPACE)                                                                                                            \
  template <int N, class T, int SIZE> TW_DEVICE void store_fragment(SPACE T* p, const thread Fragment<T, SIZE>& fragment, int offset) { \
    typename Carrier<int(N * sizeof(T))>::type words;                                                                               \
    thread T* elements = reinterpret_cast<thread T*>(&words);                                                                       \
    for (int i = 0; i < N; ++i) elements[i] = fragment[offset + i];                                                                 \
    *reinterpret_cast<SPACE typename Carrier<int(N * sizeof(T))>::type*>(p) = words;                                                \
  }                                                                                                                                 \
  template <int BITS, int N, class T, int SIZE>                                                                                     \
  TW_DEVICE void store_packed(SPACE uint8_t* p, const thread Fragment<T, SIZE>& fragment, int offset) {                             \
    typename Carrier<N * BITS / 8>::type words;                                                                                     \
    thread uint8_t* bytes = reinterpret_cast<thread uint8_t*>(&words);                                                              \
    for (int i = 0; i < N * BITS / 8; ++i) {                                                                                        \
      uint32_t byte = 0;                                                                                                            \
      for (int j = 0; j < 8 / BITS; ++j) byte |= code_of<BITS>(fragment[offset + i * (8 / BITS) + j]) << (j * BITS);                \
      bytes[i] = uint8_t(byte);                                                                                                     \
    }                                                                                                                               \
    *reinterpret_cast<SPACE typename Carrier<N * BITS / 8>::type*>(p) = words;                                                      \
  }
TW_LOADS(device)
TW_STORES(device)
#ifndef TW_ONE_MEMORY   // where pointers do not say which memory they point to, as in the emulator
TW_LOADS(threadgroup)
TW_LOADS(constant)
TW_STORES(threadgroup)
#endif
#undef TW_LOADS
#undef TW_STORES

}  // namespace tw
