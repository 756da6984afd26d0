// What the lanes of a warp do together.  A warp is 32 threads on every machine: where more lanes run together it is some of them.
#pragma once

namespace tw {

constexpr int WARP = 32;
constexpr uint32_t ALL_LANES = 0xFFFFFFFFu;
constexpr uint64_t TOGETHER = ~uint64_t(0) >> (64 - TW_WARP_SIZE);

TW_DEVICE uint32_t lane_index() { return ::tw_lane(); }
TW_DEVICE uint32_t first_of_warp() { return ::tw_lane() / WARP * WARP; }
TW_DEVICE uint64_t lanes_of_warp(uint32_t mask) { return uint64_t(mask) << first_of_warp(); }

template <class T> TW_DEVICE T shuffle_any(T x, uint32_t how, uint32_t lane, uint64_t mask, int width, TwSite site) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  uint64_t word = 0;
  __builtin_memcpy(&word, &x, sizeof(T));
  word = ::tw_shuffle(how, mask, word, lane, uint32_t(width), site);
  T result;
  __builtin_memcpy(&result, &word, sizeof(T));
  return result;
}
#define TW_SHUFFLED(NAME, HOW)                                                                                           \
  template <class T> TW_DEVICE T NAME(T x, int lane, uint32_t mask = ALL_LANES, int width = WARP, TW_SITE) {             \
    return shuffle_any(x, HOW, uint32_t(lane), lanes_of_warp(mask), width, site);                                        \
  }
TW_SHUFFLED(shuffle, TW_SHUFFLE_INDEX)
TW_SHUFFLED(shuffle_up, TW_SHUFFLE_UP)
TW_SHUFFLED(shuffle_down, TW_SHUFFLE_DOWN)
#undef TW_SHUFFLED
// Reductions of all lanes that run together exchange between their warps, too.
template <class T> TW_DEVICE T shuffle_xor(T x, int lanes, uint32_t mask = ALL_LANES, int width = TW_WARP_SIZE, TW_SITE) {
  return shuffle_any(x, TW_SHUFFLE_XOR, uint32_t(lanes), lanes < WARP ? lanes_of_warp(mask) : TOGETHER, width, site);
}
TW_DEVICE int warp_uniform(int x, TW_SITE) { return shuffle_any(x, TW_SHUFFLE_INDEX, 0u, lanes_of_warp(ALL_LANES), WARP, site); }

TW_DEVICE uint32_t ballot(bool condition, uint32_t mask = ALL_LANES, TW_SITE) { return uint32_t(::tw_vote(lanes_of_warp(mask), condition, site) >> first_of_warp()); }
TW_DEVICE bool any(bool condition, uint32_t mask = ALL_LANES, TW_SITE) { return ::tw_vote(lanes_of_warp(mask), condition, site) != 0; }
TW_DEVICE bool all(bool condition, uint32_t mask = ALL_LANES, TW_SITE) { return ::tw_vote(lanes_of_warp(mask), !condition, site) == 0; }

template <class T> TW_DEVICE uint32_t match_any(T x, TW_SITE) {
  uint32_t same = 0;
  for (uint32_t lane = 0; lane < WARP; ++lane) {
    const T y = shuffle_any(x, TW_SHUFFLE_INDEX, lane, lanes_of_warp(ALL_LANES), WARP, site);
    same |= uint32_t(__builtin_memcmp(&x, &y, sizeof(T)) == 0) << lane;
  }
  return same;
}
template <class T> TW_DEVICE uint32_t match_all(T x, TW_SITE) {
  const uint32_t same = match_any(x, site);
  return same == ALL_LANES ? same : 0;
}

#define TW_REDUX(NAME, HOW, T) \
  TW_DEVICE T NAME(T x, uint32_t mask = ALL_LANES, TW_SITE) { return T(::tw_warp_reduce(HOW, T(-1) < T(0), lanes_of_warp(mask), uint32_t(x), site)); }
TW_REDUX(redux_add, TW_REDUCE_ADD, int32_t)
TW_REDUX(redux_add, TW_REDUCE_ADD, uint32_t)
TW_REDUX(redux_min, TW_REDUCE_MIN, int32_t)
TW_REDUX(redux_min, TW_REDUCE_MIN, uint32_t)
TW_REDUX(redux_max, TW_REDUCE_MAX, int32_t)
TW_REDUX(redux_max, TW_REDUCE_MAX, uint32_t)
TW_REDUX(redux_and, TW_REDUCE_AND, uint32_t)
TW_REDUX(redux_or, TW_REDUCE_OR, uint32_t)
TW_REDUX(redux_xor, TW_REDUCE_XOR, uint32_t)
#undef TW_REDUX

#define TW_WARP_REDUCE(NAME, HOW, COMBINED)                                                                          \
  template <class T> TW_DEVICE T NAME(T x, TW_SITE) {                                                                \
    for (int lanes = WARP / 2; lanes; lanes >>= 1) {                                                                 \
      const T y = shuffle_xor(x, lanes, ALL_LANES, WARP, site);                                                      \
      x = COMBINED;                                                                                                  \
    }                                                                                                                \
    return x;                                                                                                        \
  }                                                                                                                  \
  TW_DEVICE int32_t NAME(int32_t x, TW_SITE) { return int32_t(::tw_warp_reduce(HOW, 1, lanes_of_warp(ALL_LANES), uint32_t(x), site)); } \
  TW_DEVICE uint32_t NAME(uint32_t x, TW_SITE) { return uint32_t(::tw_warp_reduce(HOW, 0, lanes_of_warp(ALL_LANES), x, site)); }
TW_WARP_REDUCE(warp_add, TW_REDUCE_ADD, x + y)
TW_WARP_REDUCE(warp_min, TW_REDUCE_MIN, minimum(x, y))
TW_WARP_REDUCE(warp_max, TW_REDUCE_MAX, maximum(x, y))
TW_WARP_REDUCE(warp_and, TW_REDUCE_AND, T(x & y))
TW_WARP_REDUCE(warp_or, TW_REDUCE_OR, T(x | y))
TW_WARP_REDUCE(warp_xor, TW_REDUCE_XOR, T(x ^ y))
#undef TW_WARP_REDUCE
// The sum over the lanes that run together.
template <class T> TW_DEVICE T simdgroup_add(T x, TW_SITE) {
  if (TW_WARP_SIZE == WARP) return warp_add(x, site);
  for (int lanes = TW_WARP_SIZE / 2; lanes; lanes >>= 1) x = T(x + shuffle_xor(x, lanes, ALL_LANES, TW_WARP_SIZE, site));
  return x;
}

TW_DEVICE bool elect_one(TW_SITE) { return ::tw_elect(lanes_of_warp(ALL_LANES), site); }

template <class T> TW_DEVICE void quad_transpose(Fragment<T, 4>& words, TW_SITE) {
  static_assert(sizeof(T) == 4, "quad_transpose moves 32-bit words");
  const uint32_t t = lane_index() & 3u;
  T rows[4][4];                                      // row of each lane of the quad
  for (uint32_t lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 4; ++i) rows[lane][i] = shuffle_any(words[i], TW_SHUFFLE_INDEX, lane, lanes_of_warp(ALL_LANES), 4, site);
  for (int i = 0; i < 4; ++i) words[i] = rows[i][t];
}

}  // namespace tw
