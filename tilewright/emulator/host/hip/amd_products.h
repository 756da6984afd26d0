// Matrix instructions, from AMD's formulas of where lanes hold elements ("CDNA 3 instruction set", "RDNA 3", "RDNA 4").
#pragma once

namespace tw {
namespace machine {

// MFMA of side 16: four groups of lanes along k, and along the rows of the result, in runs of four (of one for doubles).
template <uint32_t K> struct Mfma {
  static constexpr uint32_t lanes = 64, run = K / 4;
  static TwPlace left(tw_u32 lane, tw_u32 i) { return {lane % 16, lane / 16 * run + i}; }
  static TwPlace right(tw_u32 lane, tw_u32 i) { return {lane / 16 * run + i, lane % 16}; }
  static TwPlace result(tw_u32 lane, tw_u32 i) { return {lane / 16 * 4 + i, lane % 16}; }
};
struct MfmaDouble : Mfma<4> {
  static TwPlace result(tw_u32 lane, tw_u32 i) { return {lane / 16 + 4 * i, lane % 16}; }
};
// gfx11: every lane has all of k, both half-waves the same; rows of the result alternate between them.
struct Wmma11 {
  static constexpr uint32_t lanes = 32, run = 16;
  static TwPlace left(tw_u32 lane, tw_u32 i) { return {lane % 16, i}; }
  static TwPlace right(tw_u32 lane, tw_u32 i) { return {i, lane % 16}; }
  static TwPlace result(tw_u32 lane, tw_u32 i) { return {2 * i + lane / 16, lane % 16}; }
};
// gfx12: half-waves share k, in runs of four of 16 bits, of eight bytes; each has eight rows of the result.
template <uint32_t RUN> struct Wmma12 {
  static constexpr uint32_t lanes = 32, run = 8;
  static tw_u32 depth(tw_u32 lane, tw_u32 i) { return i / RUN * 2 * RUN + lane / 16 * RUN + i % RUN; }
  static TwPlace left(tw_u32 lane, tw_u32 i) { return {lane % 16, depth(lane, i)}; }
  static TwPlace right(tw_u32 lane, tw_u32 i) { return {depth(lane, i), lane % 16}; }
  static TwPlace result(tw_u32 lane, tw_u32 i) { return {lane / 16 * 8 + i, lane % 16}; }
};

template <class FORM, uint32_t K, uint32_t A, uint32_t B, uint32_t D> const TwWaveForm* wave_form() {
  static constexpr TwWaveForm form = {FORM::lanes, 16, 16, K, A, B, D, FORM::run, FORM::run, 256 / FORM::lanes, FORM::left, FORM::right, FORM::result};
  return &form;
}
// MI200 takes subnormal operands of 16 bits for zeros ("MI200 MFMA behavior specifics", AMD).
template <uint32_t KIND, class V> TW_DEVICE V taken(V value) {
#if defined(TW_GFX90A)
  const uint32_t exponent = KIND == TW_F16 ? 0x7C00u : KIND == TW_BF16 ? 0x7F80u : 0u;
  uint16_t parts[sizeof(V) / 2];
  __builtin_memcpy(parts, &value, sizeof(V));
  for (uint16_t& part : parts) if (exponent && !(part & exponent)) part &= 0x8000u;
  __builtin_memcpy(&value, parts, sizeof(V));
#endif
  return value;
}
template <class FORM, uint32_t K, uint32_t A, uint32_t B, uint32_t D, class LEFT, class RIGHT, class SUM>
TW_DEVICE SUM wave_product(LEFT a, RIGHT b, SUM c, ::TwSite site) {
  a = taken<A>(a);
  b = taken<B>(b);
  ::tw_wave_mma(wave_form<FORM, K, A, B, D>(), &c, &a, &b, &c, site);
  return c;
}
// Products of which the left operand has two of every four elements along k: a lane says by four bits of each group which two.
// The lane's part of k is its part of the right operand's; the others are zeros there.
template <uint32_t K, uint32_t A, uint32_t B, uint32_t D, class LEFT, class RIGHT, class SUM>
TW_DEVICE SUM sparse_product(const LEFT& kept, const RIGHT& b, SUM c, int32_t places, ::TwSite site) {
  constexpr uint32_t size = sizeof(RIGHT) / (K / 4);
  unsigned char whole[sizeof(RIGHT)] = {};
  for (uint32_t i = 0; i < K / 8; ++i) {
    const uint32_t place = i / 2 * 4 + (uint32_t(places) >> (2 * i) & 3u);
    __builtin_memcpy(whole + place * size, reinterpret_cast<const unsigned char*>(&kept) + i * size, size);
  }
  ::tw_wave_mma(wave_form<Mfma<K>, K, A, B, D>(), &c, whole, &b, &c, site);
  return c;
}
// Bytes of which an instruction says whether they have a sign.
template <class FORM, class LEFT, class SUM> TW_DEVICE SUM byte_product(bool signed_a, const LEFT& a, bool signed_b, const LEFT& b, SUM c, ::TwSite site) {
  return signed_a ? signed_b ? wave_product<FORM, 16, TW_S8, TW_S8, TW_S32>(a, b, c, site) : wave_product<FORM, 16, TW_S8, TW_U8, TW_S32>(a, b, c, site)
                  : signed_b ? wave_product<FORM, 16, TW_U8, TW_S8, TW_S32>(a, b, c, site) : wave_product<FORM, 16, TW_U8, TW_U8, TW_S32>(a, b, c, site);
}

template <int FLAGS, class SUM> TW_DEVICE SUM plain(SUM sum) {
  static_assert(FLAGS == 0, "products without modifiers");
  return sum;
}

}  // namespace machine
}  // namespace tw

// The instructions have the same names on both machines, and other numbers.
#if defined(TW_GFX942)
#define TW_FP8 TW_E4M3_FNUZ
#define TW_BF8 TW_E5M2_FNUZ
#else
#define TW_FP8 TW_E4M3
#define TW_BF8 TW_E5M2
#endif
// Operands that are broadcast or negated have no model: nobody asks for them.
#define TW_PLAIN(x, y, z, product) ::tw::machine::plain<(x) | (y) | (z)>(product)
#define TW_WAVE(FORM, K, A, B, D, a, b, c) ::tw::machine::wave_product<::tw::machine::FORM, K, A, B, D>(a, b, c, site)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<16>, 16, TW_F16, TW_F16, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<16>, 16, TW_BF16, TW_BF16, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<4>, 4, TW_F32, TW_F32, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(MfmaDouble, 4, TW_F64, TW_F64, TW_F64, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_F16, TW_F16, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_BF16, TW_BF16, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<16>, 16, TW_S8, TW_S8, TW_S32, a, b, c))
#define __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_S8, TW_S8, TW_S32, a, b, c))
#define __builtin_amdgcn_mfma_i32_16x16x64_i8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<64>, 64, TW_S8, TW_S8, TW_S32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x8_xf32(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<8>, 8, TW_TF32, TW_TF32, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_FP8, TW_FP8, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_FP8, TW_BF8, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_BF8, TW_FP8, TW_F32, a, b, c))
#define __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8(a, b, c, x, y, z) TW_PLAIN(x, y, z, TW_WAVE(Mfma<32>, 32, TW_BF8, TW_BF8, TW_F32, a, b, c))
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c) TW_WAVE(Wmma11, 16, TW_F16, TW_F16, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c) TW_WAVE(Wmma11, 16, TW_BF16, TW_BF16, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(sa, a, sb, b, c, clamp) ::tw::machine::byte_product<::tw::machine::Wmma11>(sa, a, sb, b, c, site)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c) TW_WAVE(Wmma12<4>, 16, TW_F16, TW_F16, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c) TW_WAVE(Wmma12<4>, 16, TW_BF16, TW_BF16, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(sa, a, sb, b, c, clamp) ::tw::machine::byte_product<::tw::machine::Wmma12<8>>(sa, a, sb, b, c, site)
#define __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a, b, c) TW_WAVE(Wmma12<8>, 16, TW_E4M3, TW_E4M3, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12(a, b, c) TW_WAVE(Wmma12<8>, 16, TW_E4M3, TW_E5M2, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf8_fp8_w32_gfx12(a, b, c) TW_WAVE(Wmma12<8>, 16, TW_E5M2, TW_E4M3, TW_F32, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12(a, b, c) TW_WAVE(Wmma12<8>, 16, TW_E5M2, TW_E5M2, TW_F32, a, b, c)
#define TW_SPARSE(K, A, B, D, a, b, c, places, x, y) TW_PLAIN(x, y, 0, TW_SPARSE_OF(K, A, B, D, a, b, c, places))
#define TW_SPARSE_OF(K, A, B, D, a, b, c, places) ::tw::machine::sparse_product<K, A, B, D>(a, b, c, places, site)
#define __builtin_amdgcn_smfmac_f32_16x16x32_f16(a, b, c, places, x, y) TW_SPARSE(32, TW_F16, TW_F16, TW_F32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_f32_16x16x32_bf16(a, b, c, places, x, y) TW_SPARSE(32, TW_BF16, TW_BF16, TW_F32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_i32_16x16x64_i8(a, b, c, places, x, y) TW_SPARSE(64, TW_S8, TW_S8, TW_S32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(a, b, c, places, x, y) TW_SPARSE(64, TW_FP8, TW_FP8, TW_F32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_f32_16x16x64_fp8_bf8(a, b, c, places, x, y) TW_SPARSE(64, TW_FP8, TW_BF8, TW_F32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_f32_16x16x64_bf8_fp8(a, b, c, places, x, y) TW_SPARSE(64, TW_BF8, TW_FP8, TW_F32, a, b, c, places, x, y)
#define __builtin_amdgcn_smfmac_f32_16x16x64_bf8_bf8(a, b, c, places, x, y) TW_SPARSE(64, TW_BF8, TW_BF8, TW_F32, a, b, c, places, x, y)
