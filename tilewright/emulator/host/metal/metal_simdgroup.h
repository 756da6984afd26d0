// What the threads of a simdgroup, and of a threadgroup, do together (6.9), and their matrices (2.4, 6.7).
#pragma once

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

// A barrier orders accesses of the memory that its flags name, and of no other.
inline void tw_order(mem_flags flags) { ::tw_order_memory((uint(flags) & uint(mem_flags::mem_threadgroup)) != 0, (uint(flags) & uint(mem_flags::mem_device)) != 0); }
inline void threadgroup_barrier(mem_flags flags, TW_SITE) { tw_order(flags); ::tw_sync_threads(site); }
inline void simdgroup_barrier(mem_flags flags, TW_SITE) { tw_order(flags); ::tw_sync_warp(0xFFFFFFFFull, site); }

template <class T> inline T tw_exchange(tw_u32 how, T x, ushort lane, TwSite site) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  tw_u64 word = 0;
  memcpy(&word, &x, sizeof(T));
  word = ::tw_shuffle(how, 0xFFFFFFFFull, word, lane, 32, site);
  memcpy(&x, &word, sizeof(T));
  return x;
}
template <class T> inline T simd_shuffle(T x, ushort lane, TW_SITE) { return tw_exchange(TW_SHUFFLE_INDEX, x, lane, site); }
template <class T> inline T simd_shuffle_xor(T x, ushort mask, TW_SITE) { return tw_exchange(TW_SHUFFLE_XOR, x, mask, site); }
template <class T> inline T simd_shuffle_up(T x, ushort delta, TW_SITE) { return tw_exchange(TW_SHUFFLE_UP, x, delta, site); }
template <class T> inline T simd_shuffle_down(T x, ushort delta, TW_SITE) { return tw_exchange(TW_SHUFFLE_DOWN, x, delta, site); }
template <class T> inline T simd_sum(T x, TW_SITE) {
  for (ushort lanes = 16; lanes; lanes >>= 1) x = T(x + simd_shuffle_xor(x, lanes, site));
  return x;
}

struct simd_vote {
  ulong votes;
  explicit operator ulong() const { return votes; }
};
inline simd_vote simd_ballot(bool condition, TW_SITE) { return simd_vote{::tw_vote(0xFFFFFFFFull, condition, site)}; }
inline bool simd_any(bool condition, TW_SITE) { return ::tw_vote(0xFFFFFFFFull, condition, site) != 0; }
inline bool simd_all(bool condition, TW_SITE) { return ::tw_vote(0xFFFFFFFFull, !condition, site) == 0; }

// The elements of a lane: row (l / 4 & 4) + l / 2 % 4, columns (l / 4 & 2) * 2 + l % 2 * 2 and the next one.
template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "matrices are 8 x 8");
  vec<T, 2> elements;
  vec<T, 2>& thread_elements() { return elements; }
};
// A matrix to memory, its rows so many elements apart: each lane writes its own, once all have come.
template <class T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> matrix, T* to, ulong elements_per_row, TW_SITE) {
  const tw_u32 lane = ::tw_lane(), row = (lane >> 2 & 4) + (lane >> 1) % 4, column = (lane >> 2 & 2) * 2 + lane % 2 * 2;
  const ulong first = tw_exchange(TW_SHUFFLE_INDEX, ulong(to), 0, site), apart = tw_exchange(TW_SHUFFLE_INDEX, elements_per_row, 0, site);
  if (first != ulong(to) || apart != elements_per_row) ::tw_assertion_failed("lanes of a simdgroup store one matrix at several places", site);
  T* const own = to + row * elements_per_row + column;
  own[0] = matrix.elements.x;
  own[1] = matrix.elements.y;
}
// The two elements of a row at an even column and behind it, from the lane that holds them.
template <class T> inline vec<T, 2> tw_pair(const simdgroup_matrix<T, 8, 8>& matrix, tw_u32 row, tw_u32 column, TwSite site) {
  const tw_u32 lane = (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1);
  return tw_exchange(TW_SHUFFLE_INDEX, matrix.elements, ushort(lane), site);
}
// d = a b + c: sums of eight products in double, rounded once to the result's type.
template <class D, class A, class B>
inline void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<D, 8, 8> c, TW_SITE) {
  const tw_u32 lane = ::tw_lane(), row = (lane >> 2 & 4) + (lane >> 1) % 4, column = (lane >> 2 & 2) * 2 + lane % 2 * 2;
  double left[8], low = double(float(c.elements.x)), high = double(float(c.elements.y));
  for (tw_u32 k = 0; k < 8; k += 2) {
    const vec<A, 2> pair = tw_pair(a, row, k, site);
    left[k] = double(float(pair.x));
    left[k + 1] = double(float(pair.y));
  }
  for (tw_u32 k = 0; k < 8; ++k) {
    const vec<B, 2> pair = tw_pair(b, k, column, site);
    low += left[k] * double(float(pair.x));
    high += left[k] * double(float(pair.y));
  }
  d.elements = vec<D, 2>(D(float(low)), D(float(high)));
}

}  // namespace metal
