// What lanes and blocks do together.
#pragma once

// Lane `address / 4`, counted within the wave.  `there` are the lanes that come: a wave's two warps may be at different places.
#define __builtin_amdgcn_ds_bpermute(address, word) \
  int32_t(uint32_t(::tw_shuffle(TW_SHUFFLE_INDEX, there, uint32_t(word), uint32_t(address) / 4, TW_WARP_SIZE, site)))
#define __builtin_amdgcn_readfirstlane(word) int32_t(uint32_t(::tw_shuffle(TW_SHUFFLE_INDEX, there, uint32_t(word), 0, TW_WARP_SIZE, site)))
#define __builtin_amdgcn_ballot_w64(condition) ::tw_vote(there, condition, site)
#define __builtin_amdgcn_ballot_w32(condition) uint32_t(::tw_vote(there, condition, site))

// Fences of the block order what its barrier orders anyway; those of lanes, what they do in step.
namespace tw {
namespace machine {
TW_DEVICE void fence(int order, const char* scope, ::TwSite site) {
  if (scope[0] == 'a') ::tw_fence(2, site);
  else if (scope[0] == 0) ::tw_fence(3, site);
  else if (order == __ATOMIC_SEQ_CST) ::tw_fence(0, site);
}
}  // namespace machine
}  // namespace tw
#define __builtin_amdgcn_fence(order, scope, ...) ::tw::machine::fence(order, scope, site)
#define __builtin_amdgcn_s_barrier() ::tw_sync_threads(site)
#define __builtin_amdgcn_wave_barrier() ::tw_sync_warp(there, site)
#define __builtin_amdgcn_s_sleep(time) ((void)0)
#define __builtin_amdgcn_sched_barrier(kinds) ((void)0)
#define __builtin_readcyclecounter() ::tw_clock()
#define __builtin_readsteadycounter() ::tw_clock()
#define __builtin_trap() ::tw_trap(::TwSite::here())
