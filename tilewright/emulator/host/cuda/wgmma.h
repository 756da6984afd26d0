// Matrix instructions of four warps, asynchronous, which only NVIDIA's GPUs have: what texts and `wgmma.cpp` know of each other.
#pragma once
#include "../core/interface.h"

extern "C" {
enum { TW_GROUP_LANES = 32, TW_GROUP_WARPS = 4 };   /* of a warp, of a warpgroup: 16 rows a warp */
/* A warpgroup's m64 matrix instruction; `a` is a pointer to registers, or null with the descriptor in `a_descriptor`. */
struct TwWarpgroupForm { tw_u8 a, b, d, a_major, b_major, accumulate, sparse, selector; tw_u32 n; };
void tw_wgmma(struct TwWarpgroupForm form, void* d, const void* a, tw_u64 a_descriptor, tw_u64 b_descriptor, const tw_u32* metadata, struct TwSite site);
void tw_wgmma_fence(struct TwSite site);
void tw_wgmma_commit(struct TwSite site);
void tw_wgmma_wait(tw_u32 pending, struct TwSite site);
}
