// What the 32 lanes of a warp do on 8x8 matrices and m16n8 tiles: ldmatrix, stmatrix, mma.sync.  docs/cuda_vocabulary.md has the fragments.
//
// Fragments are typed by element; which element of the tile a lane holds at each place is in targets/cuda/instructions.py.
#pragma once

namespace tw {

// ---- ldmatrix, stmatrix: 1, 2 or 4 matrices of 8 rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8 ------
// A fragment has 4 bytes of each matrix.  `trans` gives the transposed matrix, of 16-bit elements (or pairs of bytes).
#define TW_MATRIX_4(T, N) static_assert(sizeof(T) * N == 16, "four matrices are 16 bytes a lane")
template <class T, int N> TW_DEVICE void ldmatrix_x1(Fragment<T, N>& d, uint32_t address) {
  static_assert(sizeof(T) * N == 4, "one matrix is 4 bytes a lane");
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void ldmatrix_x1_trans(Fragment<T, N>& d, uint32_t address) {
  static_assert(sizeof(T) * N == 4, "one matrix is 4 bytes a lane");
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void ldmatrix_x2(Fragment<T, N>& d, uint32_t address) {
  static_assert(sizeof(T) * N == 8, "two matrices are 8 bytes a lane");
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void ldmatrix_x2_trans(Fragment<T, N>& d, uint32_t address) {
  static_assert(sizeof(T) * N == 8, "two matrices are 8 bytes a lane");
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void ldmatrix_x4(Fragment<T, N>& d, uint32_t address) {
  TW_MATRIX_4(T, N);
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void ldmatrix_x4_trans(Fragment<T, N>& d, uint32_t address) {
  TW_MATRIX_4(T, N);
  uint32_t* r = reinterpret_cast<uint32_t*>(d.data);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x1(uint32_t address, const Fragment<T, N>& s) {
  static_assert(sizeof(T) * N == 4, "one matrix is 4 bytes a lane");
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(address), "r"(r[0]) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x1_trans(uint32_t address, const Fragment<T, N>& s) {
  static_assert(sizeof(T) * N == 4, "one matrix is 4 bytes a lane");
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(address), "r"(r[0]) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x2(uint32_t address, const Fragment<T, N>& s) {
  static_assert(sizeof(T) * N == 8, "two matrices are 8 bytes a lane");
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(address), "r"(r[0]), "r"(r[1]) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x2_trans(uint32_t address, const Fragment<T, N>& s) {
  static_assert(sizeof(T) * N == 8, "two matrices are 8 bytes a lane");
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" :: "r"(address), "r"(r[0]), "r"(r[1]) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x4(uint32_t address, const Fragment<T, N>& s) {
  TW_MATRIX_4(T, N);
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
template <class T, int N> TW_DEVICE void stmatrix_x4_trans(uint32_t address, const Fragment<T, N>& s) {
  TW_MATRIX_4(T, N);
  const uint32_t* r = reinterpret_cast<const uint32_t*>(s.data);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#undef TW_MATRIX_4

// ---- mma.sync: d += a * b, d is m x n, a is m x k, b is k x n -----------------------------------------------------------
#define TW_WORDS(f) reinterpret_cast<const uint32_t*>(f.data)
// Accumulators of four 32-bit registers (constraint C), or of two that hold pairs of halves.
#define TW_MMA_4_2(NAME, PTX, D, C, A, NA, B, NB)                                                                              \
  TW_DEVICE void NAME(Fragment<D, 4>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b) {                                 \
    const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);                                                                         \
    asm volatile("mma.sync.aligned." PTX " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                              \
                 : "+" C(d.data[0]), "+" C(d.data[1]), "+" C(d.data[2]), "+" C(d.data[3])                                      \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                                          \
  }
#define TW_MMA_2_1(NAME, PTX, D, C, A, NA, B, NB)                                                                              \
  TW_DEVICE void NAME(Fragment<D, 4>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b) {                                 \
    const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);                                                                         \
    asm volatile("mma.sync.aligned." PTX " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"                                       \
                 : "+" C(d.data[0]), "+" C(d.data[1]), "+" C(d.data[2]), "+" C(d.data[3]) : "r"(x[0]), "r"(x[1]), "r"(y[0]));  \
  }
#define TW_MMA_HALF_4_2(NAME, PTX, A, NA, B, NB)                                                                               \
  TW_DEVICE void NAME(Fragment<half, 4>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b) {                              \
    const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);                                                                         \
    uint32_t* c = reinterpret_cast<uint32_t*>(d.data);                                                                         \
    asm volatile("mma.sync.aligned." PTX " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" : "+r"(c[0]), "+r"(c[1])                 \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                                          \
  }
TW_MMA_4_2(mma_m16n8k16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f", half, 8, half, 4)
TW_MMA_4_2(mma_m16n8k16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f", bfloat16, 8, bfloat16, 4)
TW_MMA_HALF_4_2(mma_m16n8k16, "m16n8k16.row.col.f16.f16.f16.f16", half, 8, half, 4)
TW_MMA_2_1(mma_m16n8k8, "m16n8k8.row.col.f32.f16.f16.f32", float, "f", half, 4, half, 2)
TW_MMA_2_1(mma_m16n8k8, "m16n8k8.row.col.f32.bf16.bf16.f32", float, "f", bfloat16, 4, bfloat16, 2)
// float operands are taken as tfloat32: their low 13 bits are ignored.
TW_MMA_4_2(mma_m16n8k8, "m16n8k8.row.col.f32.tf32.tf32.f32", float, "f", tfloat32, 4, tfloat32, 2)
TW_MMA_4_2(mma_m16n8k8, "m16n8k8.row.col.f32.tf32.tf32.f32", float, "f", float, 4, float, 2)
TW_MMA_2_1(mma_m16n8k4, "m16n8k4.row.col.f32.tf32.tf32.f32", float, "f", tfloat32, 2, tfloat32, 1)
TW_MMA_2_1(mma_m16n8k4, "m16n8k4.row.col.f32.tf32.tf32.f32", float, "f", float, 2, float, 1)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.s32.s8.s8.s32", int32_t, "r", int8_t, 16, int8_t, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.s32.u8.u8.s32", int32_t, "r", uint8_t, 16, uint8_t, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.s32.s8.u8.s32", int32_t, "r", int8_t, 16, uint8_t, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.s32.u8.s8.s32", int32_t, "r", uint8_t, 16, int8_t, 8)
TW_MMA_2_1(mma_m16n8k16, "m16n8k16.row.col.s32.s8.s8.s32", int32_t, "r", int8_t, 8, int8_t, 4)
TW_MMA_2_1(mma_m16n8k16, "m16n8k16.row.col.s32.u8.u8.s32", int32_t, "r", uint8_t, 8, uint8_t, 4)
TW_MMA_2_1(mma_m16n8k16, "m16n8k16.row.col.s32.s8.u8.s32", int32_t, "r", int8_t, 8, uint8_t, 4)
TW_MMA_2_1(mma_m16n8k16, "m16n8k16.row.col.s32.u8.s8.s32", int32_t, "r", uint8_t, 8, int8_t, 4)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.f32.e4m3.e4m3.f32", float, "f", float8_e4m3, 16, float8_e4m3, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.f32.e5m2.e5m2.f32", float, "f", float8_e5m2, 16, float8_e5m2, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.f32.e4m3.e5m2.f32", float, "f", float8_e4m3, 16, float8_e5m2, 8)
TW_MMA_4_2(mma_m16n8k32, "m16n8k32.row.col.f32.e5m2.e4m3.f32", float, "f", float8_e5m2, 16, float8_e4m3, 8)
TW_MMA_HALF_4_2(mma_m16n8k32, "m16n8k32.row.col.f16.e4m3.e4m3.f16", float8_e4m3, 16, float8_e4m3, 8)
TW_MMA_HALF_4_2(mma_m16n8k32, "m16n8k32.row.col.f16.e5m2.e5m2.f16", float8_e5m2, 16, float8_e5m2, 8)
// ---- fp8 on matrix units of halves: each code becomes a half, exactly; k comes in the order of a's and b's registers ---------
template <class D, class A, class B>
TW_DEVICE void mma_m16n8k16_through_half(Fragment<D, 4>& d, const Fragment<A, 8>& a, const Fragment<B, 4>& b) {
  const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);
  Fragment<half, 8> left;
  Fragment<half, 4> right;
  set_word(left, 0, halves<false>(A{}, x[0])), set_word(left, 1, halves<false>(A{}, x[1]));
  set_word(left, 2, halves<true>(A{}, x[0])), set_word(left, 3, halves<true>(A{}, x[1]));
  set_word(right, 0, halves<false>(B{}, y[0])), set_word(right, 1, halves<true>(B{}, y[0]));
  mma_m16n8k16(d, left, right);
}
template <class D, class A, class B>
TW_DEVICE void mma_m16n8k32_through_half(Fragment<D, 4>& d, const Fragment<A, 16>& a, const Fragment<B, 8>& b) {
  mma_m16n8k16_through_half(d, slice<8>(a, 0), slice<4>(b, 0));
  mma_m16n8k16_through_half(d, slice<8>(a, 8), slice<4>(b, 4));
}
// ---- mma.sp: a holds two of every four elements along k; `metadata` has their places, in the lanes that SELECTOR names ----
// A lane's word of metadata: two bytes of each of two rows (elements of 16 and 32 bits), or four of one (bytes).  Nibbles of zero, which
// stand where a copy met the end of the tensor, become those of the first two places.
TW_DEVICE uint32_t sparse_places(uint32_t word) { return word | (~(word >> 1) & 0x44444444u); }
TW_DEVICE uint32_t sparse_places(const uint8_t* upper, const uint8_t* lower) {
  return sparse_places(uint32_t(*reinterpret_cast<const uint16_t*>(upper)) | uint32_t(*reinterpret_cast<const uint16_t*>(lower)) << 16);
}
TW_DEVICE uint32_t sparse_places(const uint8_t* row) { return sparse_places(*reinterpret_cast<const uint32_t*>(row)); }
// Uses words of metadata, behind the wait for the products that read them: until then nobody else gets their registers.  (A store that
// never happens: no word of metadata is zero.)
template <int N> TW_DEVICE void sparse_hold(const Fragment<uint32_t, N>& words) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p st.shared.u32 [%1], %0; }" :: "r"(words.data[i]), "r"(0) : "memory");
}
#define TW_MMA_SPARSE_4_4(NAME, PTX, D, C, A, B, N)                                                                            \
  template <int SELECTOR = 0>                                                                                                  \
  TW_DEVICE void NAME(Fragment<D, 4>& d, const Fragment<A, N>& a, const Fragment<B, N>& b, uint32_t metadata) {                \
    const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);                                                                         \
    asm volatile("mma.sp::ordered_metadata.sync.aligned." PTX                                                                  \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"                                    \
                 : "+" C(d.data[0]), "+" C(d.data[1]), "+" C(d.data[2]), "+" C(d.data[3])                                      \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]), "r"(metadata),      \
                   "n"(SELECTOR));                                                                                             \
  }
#define TW_MMA_SPARSE_2_2(NAME, PTX, D, C, A, B, N)                                                                            \
  template <int SELECTOR = 0>                                                                                                  \
  TW_DEVICE void NAME(Fragment<D, 4>& d, const Fragment<A, N>& a, const Fragment<B, N>& b, uint32_t metadata) {                \
    const uint32_t *x = TW_WORDS(a), *y = TW_WORDS(b);                                                                         \
    asm volatile("mma.sp::ordered_metadata.sync.aligned." PTX " {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%0,%1,%2,%3}, %8, %9;"       \
                 : "+" C(d.data[0]), "+" C(d.data[1]), "+" C(d.data[2]), "+" C(d.data[3])                                      \
                 : "r"(x[0]), "r"(x[1]), "r"(y[0]), "r"(y[1]), "r"(metadata), "n"(SELECTOR));                                  \
  }
TW_MMA_SPARSE_2_2(mma_sparse_m16n8k16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f", half, half, 4)
TW_MMA_SPARSE_2_2(mma_sparse_m16n8k16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f", bfloat16, bfloat16, 4)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k32, "m16n8k32.row.col.f32.f16.f16.f32", float, "f", half, half, 8)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k32, "m16n8k32.row.col.f32.bf16.bf16.f32", float, "f", bfloat16, bfloat16, 8)
TW_MMA_SPARSE_2_2(mma_sparse_m16n8k32, "m16n8k32.row.col.s32.s8.s8.s32", int32_t, "r", int8_t, int8_t, 8)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k16, "m16n8k16.row.col.f32.tf32.tf32.f32", float, "f", tfloat32, tfloat32, 4)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.s32.s8.s8.s32", int32_t, "r", int8_t, int8_t, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.s32.u8.u8.s32", int32_t, "r", uint8_t, uint8_t, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.s32.s8.u8.s32", int32_t, "r", int8_t, uint8_t, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.s32.u8.s8.s32", int32_t, "r", uint8_t, int8_t, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.f32.e4m3.e4m3.f32", float, "f", float8_e4m3, float8_e4m3, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.f32.e5m2.e5m2.f32", float, "f", float8_e5m2, float8_e5m2, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.f32.e4m3.e5m2.f32", float, "f", float8_e4m3, float8_e5m2, 16)
TW_MMA_SPARSE_4_4(mma_sparse_m16n8k64, "m16n8k64.row.col.f32.e5m2.e4m3.f32", float, "f", float8_e5m2, float8_e4m3, 16)
#undef TW_MMA_SPARSE_4_4
#undef TW_MMA_SPARSE_2_2
#undef TW_MMA_4_2
#undef TW_MMA_2_1
#undef TW_MMA_HALF_4_2
#undef TW_WORDS
TW_DEVICE void mma_m8n8k4(Fragment<double, 2>& d, const Fragment<double, 1>& a, const Fragment<double, 1>& b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(d.data[0]), "+d"(d.data[1]) : "d"(a.data[0]), "d"(b.data[0]));
}
TW_DEVICE void mma_m16n8k8(Fragment<double, 4>& d, const Fragment<double, 4>& a, const Fragment<double, 2>& b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+d"(d.data[0]), "+d"(d.data[1]), "+d"(d.data[2]), "+d"(d.data[3])
               : "d"(a.data[0]), "d"(a.data[1]), "d"(a.data[2]), "d"(a.data[3]), "d"(b.data[0]), "d"(b.data[1]));
}

}  // namespace tw
