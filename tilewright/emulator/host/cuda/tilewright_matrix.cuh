// ldmatrix, stmatrix and mma.sync, by one function of the core each.
#pragma once

namespace tw {

#define TW_LOAD_MATRIX(NAME, COUNT, TRANSPOSED)                                                              \
  template <class T, int N> TW_DEVICE void ld##NAME(Fragment<T, N>& d, uint32_t address, TW_SITE) {          \
    static_assert(sizeof(T) * N == 4 * COUNT, "a fragment has 4 bytes of each matrix");                      \
    ::tw_load_matrix(reinterpret_cast<uint32_t*>(d.data), address, COUNT, TRANSPOSED, site);                 \
  }                                                                                                          \
  template <class T, int N> TW_DEVICE void st##NAME(uint32_t address, const Fragment<T, N>& s, TW_SITE) {    \
    static_assert(sizeof(T) * N == 4 * COUNT, "a fragment has 4 bytes of each matrix");                      \
    ::tw_store_matrix(reinterpret_cast<const uint32_t*>(s.data), address, COUNT, TRANSPOSED, site);          \
  }
TW_LOAD_MATRIX(matrix_x1, 1, 0)
TW_LOAD_MATRIX(matrix_x2, 2, 0)
TW_LOAD_MATRIX(matrix_x4, 4, 0)
TW_LOAD_MATRIX(matrix_x1_trans, 1, 1)
TW_LOAD_MATRIX(matrix_x2_trans, 2, 1)
TW_LOAD_MATRIX(matrix_x4_trans, 4, 1)
#undef TW_LOAD_MATRIX

template <class T> struct matrix_number;
template <> struct matrix_number<half> { static constexpr int value = TW_F16; };
template <> struct matrix_number<bfloat16> { static constexpr int value = TW_BF16; };
template <> struct matrix_number<tfloat32> { static constexpr int value = TW_TF32; };
template <> struct matrix_number<float> { static constexpr int value = TW_TF32; };     // as an operand
template <> struct matrix_number<double> { static constexpr int value = TW_F64; };
template <> struct matrix_number<int8_t> { static constexpr int value = TW_S8; };
template <> struct matrix_number<uint8_t> { static constexpr int value = TW_U8; };
template <> struct matrix_number<float8_e4m3> { static constexpr int value = TW_E4M3; };
template <> struct matrix_number<float8_e5m2> { static constexpr int value = TW_E5M2; };
template <class T> struct accumulator_number { static constexpr int value = matrix_number<T>::value; };
template <> struct accumulator_number<float> { static constexpr int value = TW_F32; };
template <> struct accumulator_number<int32_t> { static constexpr int value = TW_S32; };

template <int M, int K, class D, int ND, class A, int NA, class B, int NB>
TW_DEVICE void mma_any(Fragment<D, ND>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b, TwSite site) {
  static_assert(ND == M * 8 / 32 && NA == M * K / 32 && NB == K * 8 / 32, "fragments of another shape");
  const TwMatrixForm form = {M, matrix_number<A>::value, matrix_number<B>::value, accumulator_number<D>::value, K};
  ::tw_mma(form, d.data, a.data, b.data, d.data, site);
}
#define TW_MMA(NAME, M, K)                                                                                                \
  template <class D, int ND, class A, int NA, class B, int NB>                                                            \
  TW_DEVICE void NAME(Fragment<D, ND>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b, TW_SITE) { mma_any<M, K>(d, a, b, site); }
TW_MMA(mma_m16n8k4, 16, 4)
TW_MMA(mma_m16n8k8, 16, 8)
TW_MMA(mma_m16n8k16, 16, 16)
TW_MMA(mma_m16n8k32, 16, 32)
TW_MMA(mma_m16n8k16_through_half, 16, 16)
TW_MMA(mma_m16n8k32_through_half, 16, 32)
TW_MMA(mma_m8n8k4, 8, 4)
#undef TW_MMA
// A lane's word of metadata: two bytes of each of two rows (elements of 16 and 32 bits), or four of one (bytes).  Nibbles of zero, which
// stand where a copy met the end of the tensor, become those of the first two places.
TW_DEVICE uint32_t sparse_places(uint32_t word) { return word | (~(word >> 1) & 0x44444444u); }
TW_DEVICE uint32_t sparse_places(const uint8_t* upper, const uint8_t* lower) {
  return sparse_places(uint32_t(*reinterpret_cast<const uint16_t*>(upper)) | uint32_t(*reinterpret_cast<const uint16_t*>(lower)) << 16);
}
TW_DEVICE uint32_t sparse_places(const uint8_t* row) { return sparse_places(*reinterpret_cast<const uint32_t*>(row)); }
template <int N> TW_DEVICE void sparse_hold(const Fragment<uint32_t, N>&) {}
#define TW_MMA_SPARSE(NAME, K)                                                                                              \
  template <int SELECTOR = 0, class D, int ND, class A, int NA, class B, int NB>                                            \
  TW_DEVICE void NAME(Fragment<D, ND>& d, const Fragment<A, NA>& a, const Fragment<B, NB>& b, uint32_t metadata, TW_SITE) { \
    static_assert(ND == 4 && NA == K / 4 && NB == K / 4, "fragments of another shape");                                     \
    const TwMatrixForm form = {16, matrix_number<A>::value, matrix_number<B>::value, accumulator_number<D>::value, K};      \
    ::tw_mma_sparse(form, d.data, a.data, b.data, d.data, metadata, SELECTOR, site);                                        \
  }
TW_MMA_SPARSE(mma_sparse_m16n8k16, 16)
TW_MMA_SPARSE(mma_sparse_m16n8k32, 32)
TW_MMA_SPARSE(mma_sparse_m16n8k64, 64)
#undef TW_MMA_SPARSE

}  // namespace tw
