// Meeting points of the block and of warps, fences, clocks.
#pragma once

namespace tw {

TW_DEVICE uint32_t shared_address(const void* pointer, TW_SITE) { return ::tw_shared_address(pointer, site); }
TW_DEVICE void sync_threads(TW_SITE) { ::tw_sync_threads(site); }
TW_DEVICE bool sync_threads_or(bool condition, TW_SITE) { return ::tw_sync_threads_count(condition, 2, site); }
TW_DEVICE bool sync_threads_and(bool condition, TW_SITE) { return ::tw_sync_threads_count(condition, 1, site); }
TW_DEVICE int sync_threads_count(bool condition, TW_SITE) { return int(::tw_sync_threads_count(condition, 0, site)); }
TW_DEVICE void sync_warp(uint32_t mask = ALL_LANES, TW_SITE) { ::tw_sync_warp(lanes_of_warp(mask), site); }
TW_DEVICE void fence_block(TW_SITE) { ::tw_fence(0, site); }
TW_DEVICE void fence_device(TW_SITE) { ::tw_fence(2, site); }
TW_DEVICE void fence_system(TW_SITE) { ::tw_fence(3, site); }
TW_DEVICE uint64_t global_timer() { return ::tw_clock(); }
TW_DEVICE uint64_t clock() { return ::tw_clock(); }
TW_DEVICE void trap(TW_SITE) { ::tw_trap(site); }

}  // namespace tw
