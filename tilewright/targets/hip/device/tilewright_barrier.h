// Meeting points of the block and of the grid, fences, clocks.
#pragma once

namespace tw {

TW_DEVICE uint32_t shared_address(const void* pointer, TW_SITE) { return machine::shared_address(pointer, site); }

// ---- fences --------------------------------------------------------------------------------------------------------
TW_DEVICE void fence_block(TW_SITE) { TW_AT(site); __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
TW_DEVICE void fence_device(TW_SITE) { TW_AT(site); __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
TW_DEVICE void fence_system(TW_SITE) { TW_AT(site); __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// The compiler moves no instruction over this place: it would load what many later ones take, and run out of registers.
TW_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

// ---- block and wave ------------------------------------------------------------------------------------------------
TW_DEVICE void sync_threads(TW_SITE) {
  TW_AT(site);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
#if TW_WARP_SIZE == 64
  __builtin_amdgcn_s_waitcnt(0x0f70);   // one thread's flag may tell other blocks what this wave stores: clang waits for it on RDNA alone
#endif
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// The same where threads of the block hand each other nothing but shared memory: loads from elsewhere stay on their way.
TW_DEVICE void sync_shared(TW_SITE) {
  TW_AT(site);
#if TW_WARP_SIZE == 64
  // A fence of the block waits for copies to shared memory too, which waits of their own follow: this waits for the lanes' accesses alone.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_s_waitcnt(0xc07f);
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#elif defined(__clang_major__) && __clang_major__ < 19
  sync_threads(site);
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#endif
#if TW_WARP_SIZE == 32
  schedule_fence();
#endif
}
// How many threads of the block a condition holds for: the waves' counts meet in shared memory.
#ifdef TW_COUNT_THREADS
TW_DEVICE int sync_threads_count(bool condition, TW_SITE) { return TW_COUNT_THREADS(condition); }
#else
TW_DEVICE int sync_threads_count(bool condition, TW_SITE) {
  TW_SMALL_SHARED(counts, 4 * 1024 / TW_WARP_SIZE);
  int32_t* const of_waves = reinterpret_cast<int32_t*>(counts);
  const int threads = int(blockDim.x), waves = (threads + TW_WARP_SIZE - 1) / TW_WARP_SIZE;
  const int mine = __builtin_popcountll(wave_ballot(condition, LANES_OF_WAVE, site));
  if (lane_index() == 0) of_waves[threadIdx.x / TW_WARP_SIZE] = mine;
  sync_threads(site);
  int total = 0;
  for (int wave = 0; wave < waves; ++wave) total += of_waves[wave];
  sync_threads(site);
  return total;
}
#endif
TW_DEVICE bool sync_threads_or(bool condition, TW_SITE) { return sync_threads_count(condition, site) != 0; }
TW_DEVICE bool sync_threads_and(bool condition, TW_SITE) { return sync_threads_count(!condition, site) == 0; }
// Lanes of a wave are in step: what is left is that the compiler moves no access over this place.
TW_DEVICE void sync_warp(Lanes = ALL_LANES, TW_SITE) {
  TW_AT(site);
  TW_THERE(lanes_of_warp());
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

TW_DEVICE uint64_t clock() { return __builtin_readcyclecounter(); }
TW_DEVICE uint64_t global_timer() { return __builtin_readsteadycounter() * 10; }   // it counts at 100 MHz
TW_DEVICE void trap() { __builtin_trap(); }
// Ends the kernel: what it would say has no way to the host.
TW_DEVICE void assertion_failed(const char* message, const char*, uint32_t, const char*, TW_SITE) { TW_AT(site); TW_FAILED(message); }

}  // namespace tw
