// What the lanes of a warp do together.  All lanes of `mask` must execute the call.
#pragma once

namespace tw {

constexpr uint32_t ALL_LANES = 0xFFFFFFFFu;

TW_DEVICE uint32_t lane_index() { return threadIdx.x & 31u; }
// A value that is the same in the whole warp anyway, in a uniform register.
TW_DEVICE int warp_uniform(int x) { return __shfl_sync(ALL_LANES, x, 0); }

enum Shuffle { SHUFFLE_LANE, SHUFFLE_XOR, SHUFFLE_UP, SHUFFLE_DOWN };
template <Shuffle KIND> TW_DEVICE uint32_t shuffle_word(uint32_t word, int by, uint32_t mask, int width) {
  if constexpr (KIND == SHUFFLE_LANE) return __shfl_sync(mask, word, by, width);
  else if constexpr (KIND == SHUFFLE_XOR) return __shfl_xor_sync(mask, word, by, width);
  else if constexpr (KIND == SHUFFLE_UP) return __shfl_up_sync(mask, word, by, width);
  else return __shfl_down_sync(mask, word, by, width);
}
// Any type of 1, 2, 4 or 8 bytes, as words.
template <Shuffle KIND, class T> TW_DEVICE T shuffle_value(T x, int by, uint32_t mask, int width) {
  constexpr int WORDS = sizeof(T) == 8 ? 2 : 1;
  uint32_t words[WORDS] = {};
  memcpy(words, &x, sizeof(T));
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = shuffle_word<KIND>(words[i], by, mask, width);
  memcpy(&x, words, sizeof(T));
  return x;
}
template <class T> TW_DEVICE T shuffle(T x, int lane, uint32_t mask = ALL_LANES, int width = 32) {
  return shuffle_value<SHUFFLE_LANE>(x, lane, mask, width);
}
template <class T> TW_DEVICE T shuffle_xor(T x, int lanes, uint32_t mask = ALL_LANES, int width = 32) {
  return shuffle_value<SHUFFLE_XOR>(x, lanes, mask, width);
}
template <class T> TW_DEVICE T shuffle_up(T x, int delta, uint32_t mask = ALL_LANES, int width = 32) {
  return shuffle_value<SHUFFLE_UP>(x, delta, mask, width);
}
template <class T> TW_DEVICE T shuffle_down(T x, int delta, uint32_t mask = ALL_LANES, int width = 32) {
  return shuffle_value<SHUFFLE_DOWN>(x, delta, mask, width);
}

TW_DEVICE uint32_t ballot(bool condition, uint32_t mask = ALL_LANES) { return __ballot_sync(mask, condition); }
TW_DEVICE bool any(bool condition, uint32_t mask = ALL_LANES) { return __any_sync(mask, condition); }
TW_DEVICE bool all(bool condition, uint32_t mask = ALL_LANES) { return __all_sync(mask, condition); }

// The lanes of the warp whose x has the same bits; all of them if all have the same, and none if not.
template <class T> TW_DEVICE uint64_t bits_of(T x) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof(T));
  return bits;
}
template <class T> TW_DEVICE uint32_t match_any(T x) {
  if constexpr (sizeof(T) == 8) return __match_any_sync(ALL_LANES, (unsigned long long)bits_of(x));
  else return __match_any_sync(ALL_LANES, uint32_t(bits_of(x)));
}
template <class T> TW_DEVICE uint32_t match_all(T x) {
  int same;
  if constexpr (sizeof(T) == 8) return __match_all_sync(ALL_LANES, (unsigned long long)bits_of(x), &same);
  else return __match_all_sync(ALL_LANES, uint32_t(bits_of(x)), &same);
}

// One instruction from sm_80: the result in every lane of the mask.
TW_DEVICE int32_t redux_add(int32_t x, uint32_t mask = ALL_LANES) { return __reduce_add_sync(mask, x); }
TW_DEVICE uint32_t redux_add(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_add_sync(mask, x); }
TW_DEVICE int32_t redux_min(int32_t x, uint32_t mask = ALL_LANES) { return __reduce_min_sync(mask, x); }
TW_DEVICE uint32_t redux_min(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_min_sync(mask, x); }
TW_DEVICE int32_t redux_max(int32_t x, uint32_t mask = ALL_LANES) { return __reduce_max_sync(mask, x); }
TW_DEVICE uint32_t redux_max(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_max_sync(mask, x); }
TW_DEVICE uint32_t redux_and(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_and_sync(mask, x); }
TW_DEVICE uint32_t redux_or(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_or_sync(mask, x); }
TW_DEVICE uint32_t redux_xor(uint32_t x, uint32_t mask = ALL_LANES) { return __reduce_xor_sync(mask, x); }

// The values of all lanes of the warp combined, in every lane: one instruction for 32-bit integers, else a butterfly.
#define TW_WARP_REDUCE(NAME, REDUX, COMBINED)                                                                        \
  template <class T> TW_DEVICE T NAME(T x) {                                                                         \
    _Pragma("unroll") for (int lanes = 16; lanes; lanes >>= 1) {                                                     \
      const T y = shuffle_xor(x, lanes);                                                                             \
      x = COMBINED;                                                                                                  \
    }                                                                                                                \
    return x;                                                                                                        \
  }                                                                                                                  \
  TW_DEVICE int32_t NAME(int32_t x) { return int32_t(REDUX(x)); }                                                    \
  TW_DEVICE uint32_t NAME(uint32_t x) { return uint32_t(REDUX(x)); }
TW_WARP_REDUCE(warp_add, redux_add, x + y)
TW_WARP_REDUCE(warp_min, redux_min, minimum(x, y))
TW_WARP_REDUCE(warp_max, redux_max, maximum(x, y))
TW_WARP_REDUCE(warp_and, redux_and, T(x & y))
TW_WARP_REDUCE(warp_or, redux_or, T(x | y))
TW_WARP_REDUCE(warp_xor, redux_xor, T(x ^ y))
#undef TW_WARP_REDUCE
// The sum over the lanes that run together.
template <class T> TW_DEVICE T simdgroup_add(T x) { return warp_add(x); }

// True in exactly one lane of the (whole, converged) warp.  sm_90.
TW_DEVICE bool elect_one() {
#if __CUDA_ARCH__ >= 900
  uint32_t elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.b32 %0, 1, 0, p; }" : "=r"(elected) :: "memory");
  return elected;
#else
  return lane_index() == 0;
#endif
}

// Inside each quad of lanes: lane t holds row t of a 4 x 4 matrix of words and receives column t.
template <class T> TW_DEVICE void quad_transpose(Fragment<T, 4>& words) {
  static_assert(sizeof(T) == 4, "quad_transpose moves 32-bit words");
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int step = 1; step <= 2; step <<= 1)
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = step == 1 ? 2 * pair : pair, high = low + step;
      const bool upper = t & step;
      const T got = shuffle_xor(upper ? words[low] : words[high], step);
      if (upper) words[low] = got; else words[high] = got;
    }
}

}  // namespace tw
