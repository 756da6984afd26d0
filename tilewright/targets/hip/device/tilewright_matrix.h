// d += a * b by a wave, from registers: MFMA of CDNA and WMMA of RDNA, with the lane layouts of machine/amd.py.
//
// Functions of longer k than the instruction's take the parts of a lane's registers one after the other: both operands have the same
// elements of k there, in whatever order.  MFMA and gfx12's WMMA multiply b by a, so that a lane's results are neighbours in a row.
#pragma once

namespace tw {

// Registers of a fragment from `first` on as what the instruction takes, and back.
template <class V, class T, int N> TW_DEVICE V operand(const Fragment<T, N>& fragment, int first = 0) {
  static_assert(sizeof(V) <= sizeof(T) * N, "the fragment is shorter than the operand");
  V value;
  __builtin_memcpy(&value, fragment.data + first, sizeof(V));
  return value;
}
template <class V, class T, int N> TW_DEVICE void set_result(Fragment<T, N>& fragment, const V& value) {
  static_assert(sizeof(V) == sizeof(T) * N, "the fragment is not the instruction's result");
  __builtin_memcpy(fragment.data, &value, sizeof(V));
}

// One instruction, and two: (name, result, its registers, types of a and b, registers of one step, operands, built-in).
#define TW_PRODUCT(NAME, D, ND, RESULT, A, B, N, OPERAND, BUILTIN)                                                   \
  TW_DEVICE void NAME(Fragment<D, ND>& d, const Fragment<A, N>& a, const Fragment<B, N>& b, TW_SITE) {               \
    TW_AT(site);                                                                                                     \
    set_result(d, BUILTIN(operand<OPERAND>(b), operand<OPERAND>(a), operand<RESULT>(d), 0, 0, 0));                   \
  }
#define TW_TWO_PRODUCTS(NAME, STEP, D, ND, A, B, N)                                                                  \
  TW_DEVICE void NAME(Fragment<D, ND>& d, const Fragment<A, N>& a, const Fragment<B, N>& b, TW_SITE) {               \
    STEP(d, slice<N / 2>(a, 0), slice<N / 2>(b, 0), site);                                                           \
    STEP(d, slice<N / 2>(a, N / 2), slice<N / 2>(b, N / 2), site);                                                   \
  }

#if TW_WARP_SIZE == 64
TW_PRODUCT(mfma_m16n16k16, float, 4, machine::Float4, half, half, 4, machine::Half4, __builtin_amdgcn_mfma_f32_16x16x16f16)
TW_PRODUCT(mfma_m16n16k16, float, 4, machine::Float4, bfloat16, bfloat16, 4, machine::Short4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
TW_PRODUCT(mfma_m16n16k4, float, 4, machine::Float4, float, float, 1, float, __builtin_amdgcn_mfma_f32_16x16x4f32)
TW_PRODUCT(mfma_m16n16k4, double, 4, machine::Double4, double, double, 1, double, __builtin_amdgcn_mfma_f64_16x16x4f64)
#if defined(TW_GFX950)
TW_PRODUCT(mfma_m16n16k32, float, 4, machine::Float4, half, half, 8, machine::Half8, __builtin_amdgcn_mfma_f32_16x16x32_f16)
TW_PRODUCT(mfma_m16n16k32, float, 4, machine::Float4, bfloat16, bfloat16, 8, machine::Bfloat8, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
TW_PRODUCT(mfma_m16n16k64, int32_t, 4, machine::Int4, int8_t, int8_t, 16, machine::Int4, __builtin_amdgcn_mfma_i32_16x16x64_i8)
#else
TW_TWO_PRODUCTS(mfma_m16n16k32, mfma_m16n16k16, float, 4, half, half, 8)
TW_TWO_PRODUCTS(mfma_m16n16k32, mfma_m16n16k16, float, 4, bfloat16, bfloat16, 8)
#endif
#if defined(TW_GFX90A)
TW_PRODUCT(mfma_m16n16k16, int32_t, 4, machine::Int4, int8_t, int8_t, 4, int32_t, __builtin_amdgcn_mfma_i32_16x16x16i8)
#else
TW_PRODUCT(mfma_m16n16k32, int32_t, 4, machine::Int4, int8_t, int8_t, 8, int64_t, __builtin_amdgcn_mfma_i32_16x16x32_i8)
#endif
#if defined(TW_GFX942)
TW_TWO_PRODUCTS(mfma_m16n16k64, mfma_m16n16k32, int32_t, 4, int8_t, int8_t, 16)
// float operands of this one are tfloat32: their low 13 bits are ignored.
TW_PRODUCT(mfma_m16n16k8, float, 4, machine::Float4, tfloat32, tfloat32, 2, machine::Float2, __builtin_amdgcn_mfma_f32_16x16x8_xf32)
#endif
#if defined(TW_GFX942) || defined(TW_GFX950)
// 8-bit floats: AMD's own on gfx942, the OCP's on gfx950; b is the instruction's first operand.
#if defined(TW_GFX942)
typedef float8_e4m3fnuz Fp8;
typedef float8_e5m2fnuz Bf8;
#else
typedef float8_e4m3 Fp8;
typedef float8_e5m2 Bf8;
#endif
#define TW_FP8_PRODUCTS(A, B, BUILTIN)                                                                               \
  TW_PRODUCT(mfma_m16n16k32, float, 4, machine::Float4, A, B, 8, int64_t, BUILTIN)                                   \
  TW_TWO_PRODUCTS(mfma_m16n16k64, mfma_m16n16k32, float, 4, A, B, 16)
TW_FP8_PRODUCTS(Fp8, Fp8, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
TW_FP8_PRODUCTS(Fp8, Bf8, __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8)
TW_FP8_PRODUCTS(Bf8, Fp8, __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8)
TW_FP8_PRODUCTS(Bf8, Bf8, __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8)
#undef TW_FP8_PRODUCTS
// 2:4 sparse ones: a is the instruction's first operand, and the low bits of a lane's word say where its elements stood.
#define TW_SPARSE_PRODUCT(NAME, D, RESULT, A, B, N, LEFT, RIGHT, BUILTIN)                                            \
  TW_DEVICE void NAME(Fragment<D, 4>& d, const Fragment<A, N>& a, const Fragment<B, 2 * N>& b, uint32_t places, TW_SITE) { \
    TW_AT(site);                                                                                                     \
    set_result(d, BUILTIN(operand<LEFT>(a), operand<RIGHT>(b), operand<RESULT>(d), int32_t(places), 0, 0));          \
  }
TW_SPARSE_PRODUCT(smfmac_m16n16k32, float, machine::Float4, half, half, 4, machine::Half4, machine::Half8, __builtin_amdgcn_smfmac_f32_16x16x32_f16)
TW_SPARSE_PRODUCT(smfmac_m16n16k32, float, machine::Float4, bfloat16, bfloat16, 4, machine::Short4, machine::Short8, __builtin_amdgcn_smfmac_f32_16x16x32_bf16)
TW_SPARSE_PRODUCT(smfmac_m16n16k64, int32_t, machine::Int4, int8_t, int8_t, 8, machine::Int2, machine::Int4, __builtin_amdgcn_smfmac_i32_16x16x64_i8)
TW_SPARSE_PRODUCT(smfmac_m16n16k64, float, machine::Float4, Fp8, Fp8, 8, machine::Int2, machine::Int4, __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8)
TW_SPARSE_PRODUCT(smfmac_m16n16k64, float, machine::Float4, Fp8, Bf8, 8, machine::Int2, machine::Int4, __builtin_amdgcn_smfmac_f32_16x16x64_fp8_bf8)
TW_SPARSE_PRODUCT(smfmac_m16n16k64, float, machine::Float4, Bf8, Fp8, 8, machine::Int2, machine::Int4, __builtin_amdgcn_smfmac_f32_16x16x64_bf8_fp8)
TW_SPARSE_PRODUCT(smfmac_m16n16k64, float, machine::Float4, Bf8, Bf8, 8, machine::Int2, machine::Int4, __builtin_amdgcn_smfmac_f32_16x16x64_bf8_bf8)
#undef TW_SPARSE_PRODUCT
#endif
#endif

#if defined(TW_GFX1100)
#define TW_WMMA(D, RESULT, A, B, OPERAND, CALL)                                                                      \
  TW_DEVICE void wmma_m16n16k16(Fragment<D, 8>& d, const Fragment<A, 16>& a, const Fragment<B, 16>& b, TW_SITE) {    \
    TW_AT(site);                                                                                                     \
    const OPERAND x = operand<OPERAND>(a), y = operand<OPERAND>(b);                                                  \
    set_result(d, CALL);                                                                                             \
  }
TW_WMMA(float, machine::Float8, half, half, machine::Half16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, operand<machine::Float8>(d)))
TW_WMMA(float, machine::Float8, bfloat16, bfloat16, machine::Short16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, operand<machine::Float8>(d)))
#define TW_WMMA_BYTES(A, IS_SIGNED_A, B, IS_SIGNED_B)                                                                \
  TW_WMMA(int32_t, machine::Int8, A, B, machine::Int4,                                                               \
          __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(IS_SIGNED_A, x, IS_SIGNED_B, y, operand<machine::Int8>(d), false))
TW_WMMA_BYTES(int8_t, true, int8_t, true)
TW_WMMA_BYTES(uint8_t, false, uint8_t, false)
TW_WMMA_BYTES(int8_t, true, uint8_t, false)
TW_WMMA_BYTES(uint8_t, false, int8_t, true)
#undef TW_WMMA_BYTES
#undef TW_WMMA
#endif

#if defined(TW_GFX1201)
#define TW_WMMA(D, RESULT, A, B, OPERAND, CALL)                                                                      \
  TW_DEVICE void wmma12_m16n16k16(Fragment<D, 8>& d, const Fragment<A, 8>& a, const Fragment<B, 8>& b, TW_SITE) {    \
    TW_AT(site);                                                                                                     \
    const OPERAND x = operand<OPERAND>(b), y = operand<OPERAND>(a);                                                  \
    set_result(d, CALL);                                                                                             \
  }
TW_WMMA(float, machine::Float8, half, half, machine::Half8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, operand<machine::Float8>(d)))
TW_WMMA(float, machine::Float8, bfloat16, bfloat16, machine::Short8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, operand<machine::Float8>(d)))
#define TW_WMMA_BYTES(A, IS_SIGNED_A, B, IS_SIGNED_B)                                                                \
  TW_WMMA(int32_t, machine::Int8, A, B, machine::Int2,                                                               \
          __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(IS_SIGNED_B, x, IS_SIGNED_A, y, operand<machine::Int8>(d), false))
TW_WMMA_BYTES(int8_t, true, int8_t, true)
TW_WMMA_BYTES(uint8_t, false, uint8_t, false)
TW_WMMA_BYTES(int8_t, true, uint8_t, false)
TW_WMMA_BYTES(uint8_t, false, int8_t, true)
#undef TW_WMMA_BYTES
#define TW_WMMA_FP8(A, B, BUILTIN) TW_WMMA(float, machine::Float8, A, B, machine::Int2, BUILTIN(x, y, operand<machine::Float8>(d)))
TW_WMMA_FP8(float8_e4m3, float8_e4m3, __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12)
TW_WMMA_FP8(float8_e4m3, float8_e5m2, __builtin_amdgcn_wmma_f32_16x16x16_bf8_fp8_w32_gfx12)
TW_WMMA_FP8(float8_e5m2, float8_e4m3, __builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12)
TW_WMMA_FP8(float8_e5m2, float8_e5m2, __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12)
#undef TW_WMMA_FP8
#undef TW_WMMA
#endif
#undef TW_PRODUCT
#undef TW_TWO_PRODUCTS

// ---- sums of halves: added to in float32, and rounded once a step ----------------------------------------------------------
#define TW_INTO_HALF(NAME, ND, N)                                                                                    \
  TW_DEVICE void NAME##_into_half(Fragment<half, ND>& d, const Fragment<half, N>& a, const Fragment<half, N>& b, TW_SITE) { \
    Fragment<float, ND> sums;                                                                                        \
    for (int i = 0; i < ND; ++i) sums[i] = convert<float>(d[i]);                                                     \
    NAME(sums, a, b, site);                                                                                          \
    for (int i = 0; i < ND; ++i) d[i] = convert<half>(sums[i]);                                                      \
  }
#if TW_WARP_SIZE == 64
TW_INTO_HALF(mfma_m16n16k16, 4, 4)
TW_INTO_HALF(mfma_m16n16k32, 4, 8)
#elif defined(TW_GFX1100)
TW_INTO_HALF(wmma_m16n16k16, 8, 16)
#elif defined(TW_GFX1201)
TW_INTO_HALF(wmma12_m16n16k16, 8, 8)
#endif
#undef TW_INTO_HALF

// ---- the OCP's 8-bit floats on matrix units of halves: each code becomes a half, exactly -----------------------------------
template <class T, int N> TW_DEVICE Fragment<half, N> halves_of(const Fragment<T, N>& codes) {
  Fragment<half, N> result;
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const uint32_t word = get_word(codes, i);
    set_word(result, 2 * i, halves<false>(T{}, word));
    set_word(result, 2 * i + 1, halves<true>(T{}, word));
  }
  return result;
}
#if defined(TW_GFX90A)
// Its products of 16-bit floats take subnormal operands for zeros, which the two least numbers of e5m2 are as halves.
template <class T, int N> TW_DEVICE Fragment<bfloat16, N> bfloats_of(const Fragment<T, N>& codes) {
  Fragment<bfloat16, N> result;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    set_word(result, i, __builtin_amdgcn_perm(float_bits(to_float(codes[2 * i + 1])), float_bits(to_float(codes[2 * i])), 0x07060302u));
  return result;
}
template <class A, class B>
TW_DEVICE void mfma_m16n16k32_through_bfloat16(Fragment<float, 4>& d, const Fragment<A, 8>& a, const Fragment<B, 8>& b, TW_SITE) {
  mfma_m16n16k32(d, bfloats_of(a), bfloats_of(b), site);
}
#endif
#if defined(TW_GFX90A) || defined(TW_GFX942)
template <class A, class B>
TW_DEVICE void mfma_m16n16k32_through_half(Fragment<float, 4>& d, const Fragment<A, 8>& a, const Fragment<B, 8>& b, TW_SITE) {
  mfma_m16n16k32(d, halves_of(a), halves_of(b), site);
}
#endif
#if defined(TW_GFX1100)
template <class A, class B>
TW_DEVICE void wmma_m16n16k16_through_half(Fragment<float, 8>& d, const Fragment<A, 16>& a, const Fragment<B, 16>& b, TW_SITE) {
  wmma_m16n16k16(d, halves_of(a), halves_of(b), site);
}
#endif

}  // namespace tw
