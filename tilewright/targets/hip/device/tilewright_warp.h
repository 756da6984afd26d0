// What the lanes of a warp do together: all of those that are there execute the call.  A warp is 32 threads on every machine; a wave of 64
// lanes is two of them, each with its own votes and exchanges.
#pragma once

namespace tw {

constexpr int WARP = 32;
typedef uint32_t Lanes;                    // of a warp
constexpr Lanes ALL_LANES = ~Lanes(0);

TW_DEVICE uint32_t lane_index() { return threadIdx.x % TW_WARP_SIZE; }   // in the wave
// The lanes that come to what a warp does together, and to what a wave does; the emulator asks for them.
TW_DEVICE uint64_t lanes_of_warp() { return uint64_t(ALL_LANES) << (lane_index() & 32); }
constexpr uint64_t LANES_OF_WAVE = ~uint64_t(0);
// The first thread of the wave, by its number in the block: known to be the same in all lanes.
TW_DEVICE int first_of_wave(TW_SITE) {
  TW_AT(site);
  TW_THERE(LANES_OF_WAVE);
  return __builtin_amdgcn_readfirstlane(int(threadIdx.x / TW_WARP_SIZE * TW_WARP_SIZE));
}
// A value that is the same in the whole warp anyway; in a scalar register where a wave is one warp.
TW_DEVICE int warp_uniform(int x, TW_SITE) {
  TW_AT(site);
  TW_THERE(LANES_OF_WAVE);
#if TW_WARP_SIZE == 64
  return x;
#else
  return __builtin_amdgcn_readfirstlane(x);
#endif
}
// A condition that is the same in the whole block anyway, known there and then.
TW_DEVICE bool agreed(bool x, TW_SITE) {
  TW_AT(site);
  TW_THERE(LANES_OF_WAVE);
  return __builtin_amdgcn_readfirstlane(int(x)) != 0;
}

// The value of another lane, any type of 1, 2, 4 or 8 bytes, as words.
template <class T> TW_DEVICE T from_lane(T x, int lane, uint64_t lanes, TW_SITE) {
  TW_AT(site);
  TW_THERE(lanes);
  constexpr int WORDS = sizeof(T) == 8 ? 2 : 1;
  uint32_t words[WORDS] = {};
  __builtin_memcpy(words, &x, sizeof(T));
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = uint32_t(__builtin_amdgcn_ds_bpermute(4 * lane, int(words[i])));
  __builtin_memcpy(&x, words, sizeof(T));
  return x;
}
// Lanes go in segments of `width`, a warp's by default; what would come from another segment is the lane's own.
template <class T> TW_DEVICE T shuffle(T x, int lane, Lanes = ALL_LANES, int width = WARP, TW_SITE) {
  const int first = int(lane_index()) / width * width;
  return from_lane(x, first + (lane & (width - 1)), lanes_of_warp(), site);
}
// Reductions of a whole wave exchange between its warps, too.
template <class T> TW_DEVICE T shuffle_xor(T x, int lanes, Lanes = ALL_LANES, int width = TW_WARP_SIZE, TW_SITE) {
  const int mine = int(lane_index()), other = mine ^ lanes;
  return from_lane(x, other < mine / width * width + width ? other : mine, lanes < WARP ? lanes_of_warp() : LANES_OF_WAVE, site);
}
template <class T> TW_DEVICE T shuffle_up(T x, int delta, Lanes = ALL_LANES, int width = WARP, TW_SITE) {
  const int mine = int(lane_index());
  return from_lane(x, mine % width >= delta ? mine - delta : mine, lanes_of_warp(), site);
}
template <class T> TW_DEVICE T shuffle_down(T x, int delta, Lanes = ALL_LANES, int width = WARP, TW_SITE) {
  const int mine = int(lane_index());
  return from_lane(x, mine % width + delta < width ? mine + delta : mine, lanes_of_warp(), site);
}

// The lanes of the wave in which a condition holds.
TW_DEVICE uint64_t wave_ballot(bool condition, uint64_t lanes, TW_SITE) {
  TW_AT(site);
  TW_THERE(lanes);
#if TW_WARP_SIZE == 64
  return __builtin_amdgcn_ballot_w64(condition);
#else
  return __builtin_amdgcn_ballot_w32(condition);
#endif
}
TW_DEVICE Lanes ballot(bool condition, Lanes mask = ALL_LANES, TW_SITE) {
  return Lanes(wave_ballot(condition, lanes_of_warp(), site) >> (lane_index() & 32)) & mask;
}
TW_DEVICE bool any(bool condition, Lanes mask = ALL_LANES, TW_SITE) { return ballot(condition, mask, site) != 0; }
TW_DEVICE bool all(bool condition, Lanes mask = ALL_LANES, TW_SITE) { return ballot(!condition, mask, site) == 0; }

template <class T> TW_DEVICE uint64_t bits_of(T x) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(T));
  return bits;
}
// The lanes of the warp whose x has the same bits; all of them if all have the same, and none if not.
template <class T> TW_DEVICE Lanes match_any(T x, TW_SITE) {
  Lanes same = 0;
  for (int lane = 0; lane < WARP; ++lane) {
    const T y = from_lane(x, int(lane_index() & 32) + lane, lanes_of_warp(), site);
    same |= Lanes(bits_of(x) == bits_of(y)) << lane;
  }
  return same & ballot(true, ALL_LANES, site);
}
template <class T> TW_DEVICE Lanes match_all(T x, TW_SITE) {
  const Lanes same = match_any(x, site), there = ballot(true, ALL_LANES, site);
  return same == there ? same : 0;
}

// The values of all lanes of the warp combined, in every lane, by a butterfly.
#define TW_WARP_REDUCE(NAME, COMBINED)                                                            \
  template <class T> TW_DEVICE T NAME(T x, TW_SITE) {                                             \
    _Pragma("unroll") for (int lanes = WARP / 2; lanes; lanes >>= 1) {                            \
      const T y = from_lane(x, int(lane_index()) ^ lanes, lanes_of_warp(), site);                 \
      x = COMBINED;                                                                               \
    }                                                                                             \
    return x;                                                                                     \
  }
TW_WARP_REDUCE(warp_add, T(x + y))
TW_WARP_REDUCE(warp_min, minimum(x, y))
TW_WARP_REDUCE(warp_max, maximum(x, y))
TW_WARP_REDUCE(warp_and, T(x & y))
TW_WARP_REDUCE(warp_or, T(x | y))
TW_WARP_REDUCE(warp_xor, T(x ^ y))
#undef TW_WARP_REDUCE
// The sum over the lanes that run together: a wave's.
template <class T> TW_DEVICE T simdgroup_add(T x, TW_SITE) {
  _Pragma("unroll") for (int lanes = TW_WARP_SIZE / 2; lanes; lanes >>= 1)
    x = T(x + from_lane(x, int(lane_index()) ^ lanes, TW_WARP_SIZE == 64 ? LANES_OF_WAVE : lanes_of_warp(), site));
  return x;
}

// True in exactly one lane of the (whole, converged) warp.
TW_DEVICE bool elect_one() { return lane_index() % WARP == 0; }

// Inside each quad of lanes: lane t holds row t of a 4 x 4 matrix of words and receives column t.
template <class T> TW_DEVICE void quad_transpose(Fragment<T, 4>& words, TW_SITE) {
  static_assert(sizeof(T) == 4, "quad_transpose moves 32-bit words");
  const int mine = int(lane_index()), t = mine & 3;
#pragma unroll
  for (int step = 1; step <= 2; step <<= 1)
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = step == 1 ? 2 * pair : pair, high = low + step;
      const bool upper = t & step;
      const T got = from_lane(upper ? words[low] : words[high], mine ^ step, lanes_of_warp(), site);
      if (upper) words[low] = got; else words[high] = got;
    }
}

}  // namespace tw
