// The words of a GPU that nobody makes, for the emulator: how kernels, memory and places are written, and its product.
#pragma once
#include "vocabulary.h"

#ifndef LOOM_LANES
#define LOOM_LANES 64
#endif
#define TW_WARP_SIZE LOOM_LANES
#define weaver(count) extern "C" void
#define alone __restrict__
#define near
#define far

TW_DEVICE TwDim place() { return ::tw_thread()->block_index; }
TW_DEVICE int32_t strand() { return int32_t(::tw_thread()->thread_index.x); }

#include "tilewright_types.cuh"
#include "tilewright_convert.cuh"
#include "tilewright_packed.cuh"
#include "tilewright_decode.cuh"
#include "tilewright_math.cuh"
#include "tilewright_warp.cuh"
#include "tilewright_barrier.cuh"
#include "tilewright_memory.cuh"
#include "tilewright_atomic.cuh"
#include "tilewright_debug.cuh"

namespace loom {

using namespace tw;

TW_DEVICE void rendezvous(TW_SITE) { sync_threads(site); }
TW_DEVICE void line_up(TW_SITE) { sync_warp(ALL_LANES, site); }
template <class T> TW_DEVICE T pick(T x, int lane, TW_SITE) { return shuffle(x, lane, ALL_LANES, WARP, site); }
template <class T> TW_DEVICE T swap(T x, int lanes, TW_SITE) { return shuffle_xor(x, lanes, ALL_LANES, TW_WARP_SIZE, site); }
template <class T> TW_DEVICE T pass_on(T x, int lanes, TW_SITE) { return shuffle_up(x, lanes, ALL_LANES, WARP, site); }
template <class T> TW_DEVICE T pass_back(T x, int lanes, TW_SITE) { return shuffle_down(x, lanes, ALL_LANES, WARP, site); }
TW_DEVICE uint32_t show_of_hands(bool hand, TW_SITE) { return ballot(hand, ALL_LANES, site); }
TW_DEVICE int32_t first_of_all(int32_t x, TW_SITE) { return warp_uniform(x, site); }

// Where lane l has its register r of the 32 x 8, the 8 x 32 and the 32 x 32 matrix.
TW_DEVICE TwPlace left(tw_u32 l, tw_u32 r) { return {l % 4 + r / 2 * 4 + l / 16 * 8, r % 2 + l / 4 % 4 * 2}; }
TW_DEVICE TwPlace right(tw_u32 l, tw_u32 r) { return {r % 2 + l / 16 * 2, l / 4 % 4 + l % 4 * 4 + r / 2 * 16}; }
TW_DEVICE TwPlace result(tw_u32 l, tw_u32 r) { return {r / 8 + l / 16 * 2 + l % 4 * 8, r % 2 + l / 4 % 4 * 2 + r / 2 % 4 * 8}; }
template <class T> constexpr tw_u32 KIND = 0;
template <> constexpr tw_u32 KIND<half> = TW_F16;
template <> constexpr tw_u32 KIND<bfloat16> = TW_BF16;
template <> constexpr tw_u32 KIND<float> = TW_F32;
template <> constexpr tw_u32 KIND<int8_t> = TW_S8;
template <> constexpr tw_u32 KIND<int32_t> = TW_S32;

// d += a b of the lanes that multiply together.
template <class D, int SUMS, class A, int LEFT, class B, int RIGHT>
TW_DEVICE void multiply(const TwWaveForm& form, Fragment<D, SUMS>& d, const Fragment<A, LEFT>& a, const Fragment<B, RIGHT>& b, TwSite site) {
  const Fragment<D, SUMS> before = d;
  D after[SUMS];
  A left_row[LEFT];
  B right_row[RIGHT];
  for (int i = 0; i < LEFT; ++i) left_row[i] = a[i];
  for (int i = 0; i < RIGHT; ++i) right_row[i] = b[i];
  ::tw_wave_mma(&form, after, left_row, right_row, before.data, site);
  for (int i = 0; i < SUMS; ++i) d[i] = after[i];
}
template <class D, class T> TW_DEVICE void weave(Fragment<D, 16>& d, const Fragment<T, 4>& a, const Fragment<T, 4>& b, TW_SITE) {
  static constexpr TwWaveForm form = {64, 32, 32, 8, KIND<T>, KIND<T>, KIND<D>, 4, 4, 16, left, right, result};
  multiply(form, d, a, b, site);
}

}  // namespace loom
