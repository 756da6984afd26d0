// Tensor copies by the copy engine (TMA): boxes of a tensor of 1 to 5 dimensions, coordinates innermost first, in elements.
//
// One thread issues.  The tensor map is a grid constant of the kernel (or lies in global memory).  A load completes its whole box's bytes
// on the mbarrier, also where part of it is out of bounds; a store joins the thread's bulk group (bulk_commit, bulk_wait).
#pragma once

namespace tw {

struct alignas(64) TensorMap { uint64_t words[16]; };

TW_DEVICE void tma_prefetch_descriptor(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }

// COORDINATES are the declared parameters, NAMES their asm operands %0.., AT their list; P0.. are the operands after them.
#define TW_TMA(RANK, COORDINATES, NAMES, AT, P0, P1, P2, P3, P4)                                                                            \
  TW_DEVICE void tma_load(uint32_t destination, const TensorMap& map, uint32_t barrier, COORDINATES) {                                      \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.mbarrier::complete_tx::bytes [" P0 "], [" P1 ", {" AT "}], [" P2 "];" \
                 :: NAMES, "r"(destination), "l"(&map), "r"(barrier) : "memory");                                                           \
  }                                                                                                                                         \
  TW_DEVICE void tma_load_hint(uint32_t destination, const TensorMap& map, uint32_t barrier, uint64_t policy, COORDINATES) {                \
    asm volatile("cp.async.bulk.tensor." RANK                                                                                               \
                 ".shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [" P0 "], [" P1 ", {" AT "}], [" P2 "], " P3 ";"      \
                 :: NAMES, "r"(destination), "l"(&map), "r"(barrier), "l"(policy) : "memory");                                              \
  }                                                                                                                                         \
  TW_DEVICE void tma_load_multicast(uint32_t destination, const TensorMap& map, uint32_t barrier, uint16_t ranks, COORDINATES) {            \
    asm volatile("cp.async.bulk.tensor." RANK                                                                                               \
                 ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [" P0 "], [" P1 ", {" AT "}], [" P2 "], " P3 ";"  \
                 :: NAMES, "r"(destination), "l"(&map), "r"(barrier), "h"(ranks) : "memory");                                               \
  }                                                                                                                                         \
  TW_DEVICE void tma_load_multicast_hint(uint32_t destination, const TensorMap& map, uint32_t barrier, uint16_t ranks, uint64_t policy,     \
                                         COORDINATES) {                                                                                     \
    asm volatile("cp.async.bulk.tensor." RANK                                                                                               \
                 ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [" P0 "], [" P1 ", {" AT           \
                 "}], [" P2 "], " P3 ", " P4 ";" :: NAMES, "r"(destination), "l"(&map), "r"(barrier), "h"(ranks), "l"(policy) : "memory");  \
  }                                                                                                                                         \
  TW_DEVICE void tma_store(const TensorMap& map, uint32_t source, COORDINATES) {                                                            \
    asm volatile("cp.async.bulk.tensor." RANK ".global.shared::cta.bulk_group [" P1 ", {" AT "}], [" P0 "];"                                \
                 :: NAMES, "r"(source), "l"(&map) : "memory");                                                                              \
  }                                                                                                                                         \
  TW_DEVICE void tma_reduce_add(const TensorMap& map, uint32_t source, COORDINATES) {                                                       \
    asm volatile("cp.reduce.async.bulk.tensor." RANK ".global.shared::cta.add.bulk_group [" P1 ", {" AT "}], [" P0 "];"                     \
                 :: NAMES, "r"(source), "l"(&map) : "memory");                                                                              \
  }                                                                                                                                         \
  TW_DEVICE void tma_prefetch(const TensorMap& map, COORDINATES) {                                                                          \
    asm volatile("cp.async.bulk.prefetch.tensor." RANK ".L2.global [" P0 ", {" AT "}];" :: NAMES, "l"(&map) : "memory");                    \
  }

#define TW_LIST(...) __VA_ARGS__
#define TW_C1 "r"(c0)
#define TW_C2 TW_C1, "r"(c1)
#define TW_C3 TW_C2, "r"(c2)
#define TW_C4 TW_C3, "r"(c3)
#define TW_C5 TW_C4, "r"(c4)
TW_TMA("1d", int c0, TW_C1, "%0", "%1", "%2", "%3", "%4", "%5")
TW_TMA("2d", TW_LIST(int c0, int c1), TW_C2, "%0, %1", "%2", "%3", "%4", "%5", "%6")
TW_TMA("3d", TW_LIST(int c0, int c1, int c2), TW_C3, "%0, %1, %2", "%3", "%4", "%5", "%6", "%7")
TW_TMA("4d", TW_LIST(int c0, int c1, int c2, int c3), TW_C4, "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8")
TW_TMA("5d", TW_LIST(int c0, int c1, int c2, int c3, int c4), TW_C5, "%0, %1, %2, %3, %4", "%5", "%6", "%7", "%8", "%9")
#undef TW_C1
#undef TW_C2
#undef TW_C3
#undef TW_C4
#undef TW_C5
#undef TW_LIST
#undef TW_TMA

}  // namespace tw
