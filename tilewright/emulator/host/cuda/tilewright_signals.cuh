// Meeting points of some threads and of clusters: named barriers, mbarriers, clusters, dependent launches, register budgets, fences.
#pragma once

namespace tw {

TW_DEVICE void named_barrier_sync(int id, int threads, TW_SITE) { ::tw_named_sync(uint32_t(id), uint32_t(threads), site); }
TW_DEVICE void named_barrier_arrive(int id, int threads, TW_SITE) { ::tw_named_arrive(uint32_t(id), uint32_t(threads), site); }

TW_DEVICE void fence_proxy_async(TW_SITE) { ::tw_fence_proxy(3, site); }
TW_DEVICE void fence_proxy_async_shared(TW_SITE) { ::tw_fence_proxy(1, site); }
TW_DEVICE void fence_proxy_async_global(TW_SITE) { ::tw_fence_proxy(2, site); }

TW_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals, TW_SITE) { ::tw_signal_init(barrier, arrivals, site); }
TW_DEVICE void mbarrier_invalidate(uint32_t barrier, TW_SITE) { ::tw_signal_invalidate(barrier, site); }
TW_DEVICE void fence_mbarrier_init(TW_SITE) { ::tw_fence_barrier_init(site); }
TW_DEVICE void mbarrier_arrive(uint32_t barrier, TW_SITE) { ::tw_signal_arrive(barrier, 1, site); }
TW_DEVICE void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes, TW_SITE) { ::tw_signal_expect_tx(barrier, bytes, site); }
TW_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes, TW_SITE) { ::tw_signal_arrive_expect_tx(barrier, bytes, site); }
TW_DEVICE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank, TW_SITE) { ::tw_signal_arrive_remote(::tw_map_shared(barrier, rank, site), 1, 0, site); }
TW_DEVICE void mbarrier_arrive_cluster_release(uint32_t barrier, uint32_t rank, TW_SITE) { ::tw_signal_arrive_remote(::tw_map_shared(barrier, rank, site), 1, 1, site); }
TW_DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t barrier, uint32_t rank, uint32_t bytes, TW_SITE) { ::tw_signal_arrive_expect_tx(::tw_map_shared(barrier, rank, site), bytes, site); }
TW_DEVICE bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, TW_SITE) { return ::tw_signal_test_wait(barrier, parity, 0, site); }
TW_DEVICE bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, TW_SITE) { return ::tw_signal_try_wait(barrier, parity, 0, site); }
TW_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity, TW_SITE) { ::tw_signal_wait(barrier, parity, 0, site); }
TW_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity, TW_SITE) { ::tw_signal_wait(barrier, parity, 1, site); }

TW_DEVICE uint32_t cluster_rank() { return ::tw_cluster_rank(); }
TW_DEVICE uint32_t cluster_size() { return ::tw_cluster_size(); }
TW_DEVICE void cluster_arrive(TW_SITE) { ::tw_cluster_arrive(site); }
TW_DEVICE void cluster_arrive_relaxed(TW_SITE) { ::tw_cluster_arrive_relaxed(site); }
TW_DEVICE void cluster_wait(TW_SITE) { ::tw_cluster_wait(site); }
TW_DEVICE void cluster_sync(TW_SITE) { ::tw_cluster_arrive(site); ::tw_cluster_wait(site); }
TW_DEVICE uint32_t mapa(uint32_t address, uint32_t rank, TW_SITE) { return ::tw_map_shared(address, rank, site); }

TW_DEVICE void griddepcontrol_wait(TW_SITE) { ::tw_grid_wait(site); }
TW_DEVICE void griddepcontrol_launch_dependents(TW_SITE) { ::tw_grid_launch(site); }
template <int REGISTERS> TW_DEVICE void setmaxnreg_dec(TW_SITE) { ::tw_set_registers(REGISTERS, 0, site); }
template <int REGISTERS> TW_DEVICE void setmaxnreg_inc(TW_SITE) { ::tw_set_registers(REGISTERS, 1, site); }

}  // namespace tw
