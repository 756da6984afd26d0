// Warpgroup matrix multiply: descriptors, issue, fences and waits.
#pragma once
#include "wgmma.h"

namespace tw {

enum Major { K_MAJOR = 0, MN_MAJOR = 1 };
enum Swizzle { SWIZZLE_NONE = 0, SWIZZLE_128B = 1, SWIZZLE_64B = 2, SWIZZLE_32B = 3 };

TW_DEVICE uint64_t wgmma_descriptor(uint32_t address, Swizzle swizzle, uint32_t leading, uint32_t stride) {
  return uint64_t(swizzle) << 62 | uint64_t(stride >> 4) << 32 | uint64_t(leading >> 4) << 16 | uint64_t((address & 0x3FFFF) >> 4);
}
TW_DEVICE uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

template <int N, class A, class B, Major MAJOR_A, Major MAJOR_B, class D> TW_DEVICE TwWarpgroupForm wgmma_form(bool accumulate) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N is a multiple of 8 up to 256");
  static_assert(sizeof(A) == 2 || (MAJOR_A == K_MAJOR && MAJOR_B == K_MAJOR), "only 16-bit operands may be MN-major");
  return TwWarpgroupForm{matrix_number<A>::value, matrix_number<B>::value, accumulator_number<D>::value, MAJOR_A, MAJOR_B, accumulate, 0, 0, N};
}
template <int... BYTES> struct Steps { static constexpr int count = sizeof...(BYTES), at[] = {BYTES...}; };

template <int N, class A, class B, Major MAJOR_A = K_MAJOR, Major MAJOR_B = K_MAJOR, class STEPS_A = Steps<0>, class STEPS_B = Steps<0>, class D, int SIZE>
TW_DEVICE void wgmma_ss(Fragment<D, SIZE>& d, uint64_t a, uint64_t b, bool accumulate, TW_SITE) {
  static_assert(SIZE == N / 2, "a thread holds N / 2 accumulators");
  static_assert(STEPS_A::count == STEPS_B::count, "a and b have as many steps");
  for (int step = 0; step < STEPS_A::count; ++step)
    ::tw_wgmma(wgmma_form<N, A, B, MAJOR_A, MAJOR_B, D>(step || accumulate), d.data, nullptr, wgmma_advance(a, STEPS_A::at[step]), wgmma_advance(b, STEPS_B::at[step]), nullptr, site);
}
template <int N, class B, Major MAJOR_B = K_MAJOR, class STEPS_B = Steps<0>, class D, int SIZE, class A, int SIZE_A>
TW_DEVICE void wgmma_rs(Fragment<D, SIZE>& d, const Fragment<A, SIZE_A>& a, uint64_t b, bool accumulate, TW_SITE) {
  static_assert(SIZE == N / 2 && sizeof(A) * SIZE_A == 16 * STEPS_B::count, "N / 2 accumulators, and 16 bytes of a a step, in a thread");
  for (int step = 0; step < STEPS_B::count; ++step)
    ::tw_wgmma(wgmma_form<N, A, B, K_MAJOR, MAJOR_B, D>(step || accumulate), d.data, a.data + step * (16 / sizeof(A)), 0, wgmma_advance(b, STEPS_B::at[step]), nullptr, site);
}
template <int N, class A, class B, int SELECTOR = 0, Major MAJOR_B = K_MAJOR, class D, int SIZE>
TW_DEVICE void wgmma_sparse_ss(Fragment<D, SIZE>& d, uint64_t a, uint64_t b, const Fragment<uint32_t, 1>& metadata, bool accumulate, TW_SITE) {
  static_assert(SIZE == N / 2, "a thread holds N / 2 accumulators");
  TwWarpgroupForm form = wgmma_form<N, A, B, K_MAJOR, MAJOR_B, D>(accumulate);
  form.sparse = 1;
  form.selector = SELECTOR;
  ::tw_wgmma(form, d.data, nullptr, a, b, metadata.data, site);
}
template <int N, class B, int SELECTOR = 0, Major MAJOR_B = K_MAJOR, class D, int SIZE, class A, int SIZE_A>
TW_DEVICE void wgmma_sparse_rs(Fragment<D, SIZE>& d, const Fragment<A, SIZE_A>& a, uint64_t b, const Fragment<uint32_t, 1>& metadata, bool accumulate, TW_SITE) {
  static_assert(SIZE == N / 2 && sizeof(A) * SIZE_A == 16, "N / 2 accumulators and 16 bytes of a in a thread");
  TwWarpgroupForm form = wgmma_form<N, A, B, K_MAJOR, MAJOR_B, D>(accumulate);
  form.sparse = 1;
  form.selector = SELECTOR;
  ::tw_wgmma(form, d.data, a.data, 0, b, metadata.data, site);
}

TW_DEVICE void wgmma_fence(TW_SITE) { ::tw_wgmma_fence(site); }
TW_DEVICE void wgmma_commit(TW_SITE) { ::tw_wgmma_commit(site); }
template <int PENDING> TW_DEVICE void wgmma_wait(TW_SITE) { ::tw_wgmma_wait(PENDING, site); }
template <class T, int N> TW_DEVICE void hold_registers(Fragment<T, N>&) {}

}  // namespace tw
