// Meeting points: the block, named barriers, mbarriers, clusters, dependent launches, register budgets, fences.
//
// A shared address is a 32-bit number; `shared_address` makes it from a pointer.  An mbarrier is 8 bytes of shared memory, 8-byte aligned.
#pragma once

namespace tw {

TW_DEVICE uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// ---- block and warp ------------------------------------------------------------------------------------------------
TW_DEVICE void sync_threads() { __syncthreads(); }
TW_DEVICE bool sync_threads_or(bool condition) { return __syncthreads_or(condition); }
TW_DEVICE bool sync_threads_and(bool condition) { return __syncthreads_and(condition); }
TW_DEVICE int sync_threads_count(bool condition) { return __syncthreads_count(condition); }
TW_DEVICE void sync_warp(uint32_t mask = ALL_LANES) { __syncwarp(mask); }
// `threads` counts all that arrive or wait, a multiple of 32; id 0 is sync_threads.
TW_DEVICE void named_barrier_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
TW_DEVICE void named_barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

// ---- fences --------------------------------------------------------------------------------------------------------
TW_DEVICE void fence_block() { __threadfence_block(); }
TW_DEVICE void fence_device() { __threadfence(); }
TW_DEVICE void fence_system() { __threadfence_system(); }
// Ordinary accesses before it are ordered before the copy engine's and the matrix units' accesses after it.
TW_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
TW_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TW_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- mbarrier ------------------------------------------------------------------------------------------------------
TW_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
TW_DEVICE void mbarrier_invalidate(uint32_t barrier) { asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(barrier) : "memory"); }
// Makes initialisations visible to the copy engine and to the cluster; a barrier of the block or cluster must follow.
TW_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TW_DEVICE void mbarrier_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
#else
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(barrier) : "memory");
#endif
}
TW_DEVICE void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
TW_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
// Arrive on the barrier at the same offset in block `rank` of the cluster.  The plain form orders only this thread's reads that were
// already waited for (enough to free a stage that was read); `_release` publishes writes to the cluster and costs a fence.
TW_DEVICE void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {
  asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [remote]; }"
               :: "r"(barrier), "r"(rank) : "memory");
}
TW_DEVICE void mbarrier_arrive_cluster_release(uint32_t barrier, uint32_t rank) {
  asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }"
               :: "r"(barrier), "r"(rank) : "memory");
}
// The same with bytes that the phase there waits for.
TW_DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t barrier, uint32_t rank, uint32_t bytes) {
  asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
               "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [remote], %2; }"
               :: "r"(barrier), "r"(rank), "r"(bytes) : "memory");
}
// Whether the phase of this parity has completed; a fresh barrier says yes for parity 1, no for 0.
TW_DEVICE bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
TW_DEVICE bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
#else
  return mbarrier_test_wait(barrier, parity);
#endif
}
TW_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  while (!mbarrier_try_wait(barrier, parity)) {}
#else
  while (!mbarrier_test_wait(barrier, parity)) __nanosleep(20);
#endif
}
// The same, seeing what other blocks of the cluster released.
TW_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}

// ---- cluster -------------------------------------------------------------------------------------------------------
TW_DEVICE uint32_t cluster_rank() { uint32_t rank; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
TW_DEVICE uint32_t cluster_size() { uint32_t size; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size)); return size; }
TW_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Orders the initialisations of barriers that a fence_mbarrier_init came after, and no other memory: it waits for no store.
TW_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
TW_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
TW_DEVICE void cluster_sync() { cluster_arrive(); cluster_wait(); }
// The cluster address of this block's shared address in block `rank`.
TW_DEVICE uint32_t mapa(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// ---- dependent launches, register budgets, clocks ---------------------------------------------------------------------
TW_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TW_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
template <int REGISTERS> TW_DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }
template <int REGISTERS> TW_DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }
TW_DEVICE uint64_t global_timer() { uint64_t t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
TW_DEVICE uint64_t clock() { uint64_t t; asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)); return t; }
TW_DEVICE void trap() { __trap(); }

}  // namespace tw
