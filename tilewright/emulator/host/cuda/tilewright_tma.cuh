// Tensor copies by the copy engine (TMA): boxes of a tensor of 1 to 5 dimensions.
#pragma once

namespace tw {

struct alignas(64) TensorMap { uint64_t words[16]; };
static_assert(sizeof(TensorMap) == sizeof(TwTensorMap), "a tensor map is 128 bytes");

TW_DEVICE void tma_prefetch_descriptor(const TensorMap& map, TW_SITE) { ::tw_box_prefetch(&map, site); }

#define TW_TMA(RANK, COORDINATES, ...)                                                                                                       \
  TW_DEVICE void tma_load(uint32_t destination, const TensorMap& map, uint32_t barrier, COORDINATES, TW_SITE) {                              \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_load(destination, &map, barrier, RANK, at, 0, site);                                                                            \
  }                                                                                                                                          \
  TW_DEVICE void tma_load_hint(uint32_t destination, const TensorMap& map, uint32_t barrier, uint64_t, COORDINATES, TW_SITE) {               \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_load(destination, &map, barrier, RANK, at, 0, site);                                                                            \
  }                                                                                                                                          \
  TW_DEVICE void tma_load_multicast(uint32_t destination, const TensorMap& map, uint32_t barrier, uint16_t ranks, COORDINATES, TW_SITE) {    \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_load(destination, &map, barrier, RANK, at, ranks, site);                                                                        \
  }                                                                                                                                          \
  TW_DEVICE void tma_load_multicast_hint(uint32_t destination, const TensorMap& map, uint32_t barrier, uint16_t ranks, uint64_t, COORDINATES, TW_SITE) { \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_load(destination, &map, barrier, RANK, at, ranks, site);                                                                        \
  }                                                                                                                                          \
  TW_DEVICE void tma_store(const TensorMap& map, uint32_t source, COORDINATES, TW_SITE) {                                                    \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_store(&map, source, RANK, at, 0, site);                                                                                         \
  }                                                                                                                                          \
  TW_DEVICE void tma_reduce_add(const TensorMap& map, uint32_t source, COORDINATES, TW_SITE) {                                               \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    ::tw_box_store(&map, source, RANK, at, 1, site);                                                                                         \
  }                                                                                                                                          \
  TW_DEVICE void tma_prefetch(const TensorMap& map, COORDINATES, TW_SITE) {                                                                  \
    const int32_t at[] = {__VA_ARGS__};                                                                                                      \
    (void)at;                                                                                                                                \
    ::tw_box_prefetch(&map, site);                                                                                                           \
  }
#define TW_LIST(...) __VA_ARGS__
TW_TMA(1, int c0, c0)
TW_TMA(2, TW_LIST(int c0, int c1), c0, c1)
TW_TMA(3, TW_LIST(int c0, int c1, int c2), c0, c1, c2)
TW_TMA(4, TW_LIST(int c0, int c1, int c2, int c3), c0, c1, c2, c3)
TW_TMA(5, TW_LIST(int c0, int c1, int c2, int c3, int c4), c0, c1, c2, c3, c4)
#undef TW_LIST
#undef TW_TMA

}  // namespace tw
