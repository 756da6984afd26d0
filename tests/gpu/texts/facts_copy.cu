// Copies and meeting points, one small kernel a fact; results go to arrays that the host compares.
#include "tilewright_cuda.cuh"

// ---- cp.async: thread i copies its piece; `valid[i]` bytes of it exist -----------------------------------------------
#define CP_ASYNC(NAME, BYTES)                                                                                          \
  TW_KERNEL(64, 1) NAME(const uint8_t* source, const int* valid, uint8_t* out) {                                       \
    TW_DYNAMIC_SHARED(smem);                                                                                           \
    const int at = threadIdx.x * BYTES;                                                                                \
    tw::cp_async_zfill<BYTES, 128>(tw::shared_address(smem) + at, source + at, valid[threadIdx.x]);                    \
    tw::cp_async_commit();                                                                                             \
    tw::cp_async<BYTES>(tw::shared_address(smem) + 64 * BYTES + at, source + at);                                      \
    tw::cp_async_commit();                                                                                             \
    tw::cp_async_wait<0>();                                                                                            \
    tw::sync_threads();                                                                                                \
    for (int i = threadIdx.x; i < 128 * BYTES; i += 64) out[i] = smem[i];                                              \
  }
CP_ASYNC(cp_async_4, 4)
CP_ASYNC(cp_async_8, 8)
CP_ASYNC(cp_async_16, 16)

// An mbarrier counts the threads' copies: as their own arrivals (noinc), or beside them.
TW_KERNEL(128, 1) cp_async_arrival(const uint32_t* source, uint32_t* out, int noinc) {
  TW_DYNAMIC_SHARED(smem);
  uint32_t* tile = reinterpret_cast<uint32_t*>(smem);
  const uint32_t bar = tw::shared_address(smem) + 4096;
  if (threadIdx.x == 0) tw::mbarrier_init(bar, 128);
  tw::sync_threads();
  tw::cp_async<4>(tw::shared_address(smem) + threadIdx.x * 4, source + threadIdx.x);
  if (noinc) {
    tw::cp_async_mbarrier_arrive_noinc(bar);
  } else {
    tw::cp_async_mbarrier_arrive(bar);
    tw::mbarrier_arrive(bar);
  }
  tw::mbarrier_wait(bar, 0);
  out[threadIdx.x] = tile[127 - threadIdx.x];
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// ---- mbarrier: phases and bytes, by one thread -----------------------------------------------------------------------
TW_KERNEL(32, 1) mbarrier_phases(const uint8_t* source, int* out) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t bar = tw::shared_address(smem), data = bar + 128;
  if (threadIdx.x == 0) {
    int n = 0;
    tw::mbarrier_init(bar, 2);
    tw::fence_mbarrier_init();
    out[n++] = tw::mbarrier_test_wait(bar, 1); out[n++] = !tw::mbarrier_test_wait(bar, 0);      // fresh
    tw::mbarrier_arrive(bar);
    out[n++] = !tw::mbarrier_test_wait(bar, 0); out[n++] = tw::mbarrier_test_wait(bar, 1);      // one of two
    tw::mbarrier_arrive(bar);
    out[n++] = tw::mbarrier_test_wait(bar, 0); out[n++] = !tw::mbarrier_test_wait(bar, 1);      // complete: phase 1 begins
    tw::mbarrier_arrive(bar); tw::mbarrier_arrive(bar);
    out[n++] = tw::mbarrier_test_wait(bar, 1); out[n++] = !tw::mbarrier_test_wait(bar, 0);
    tw::mbarrier_arrive_expect_tx(bar, 64); tw::mbarrier_arrive(bar);
    out[n++] = !tw::mbarrier_test_wait(bar, 0);                                                 // bytes outstanding
    tw::bulk_load(data, source, 64, bar);
    tw::mbarrier_wait(bar, 0);
    out[n++] = smem[128 + 63] == 63;
    tw::mbarrier_expect_tx(bar, 32); tw::mbarrier_arrive(bar); tw::mbarrier_arrive(bar);
    out[n++] = !tw::mbarrier_test_wait(bar, 1);                                                 // expect_tx is no arrival
    tw::bulk_load(data, source, 32, bar);
    tw::mbarrier_wait(bar, 1);
    tw::bulk_load(data, source, 16, bar);                                                       // bytes before they are expected,
    tw::mbarrier_arrive(bar);                                                                   // while an arrival is pending
    tw::mbarrier_arrive_expect_tx(bar, 16);
    tw::mbarrier_wait(bar, 0);
    tw::mbarrier_invalidate(bar);
    tw::mbarrier_init(bar, 1);
    out[n++] = tw::mbarrier_test_wait(bar, 1) && !tw::mbarrier_test_wait(bar, 0);
    out[n] = n;
  }
}

// Ring of four stages: warp 0 brings 2 KB tiles, four warps add them up.
TW_KERNEL(160, 1) bulk_ring(const int* source, int tiles, uint64_t* sum) {
  TW_DYNAMIC_SHARED(smem);
  constexpr int STAGES = 4, N = 512;
  const int* ring = reinterpret_cast<const int*>(smem);
  const uint32_t base = tw::shared_address(smem), full = base + STAGES * N * 4, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) { tw::mbarrier_init(full + 8 * s, 1); tw::mbarrier_init(empty + 8 * s, 4); }
    tw::fence_mbarrier_init();
  }
  tw::sync_threads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    if (lane == 0)
      for (int i = 0; i < tiles; ++i) {
        const int s = i % STAGES;
        tw::mbarrier_wait(empty + 8 * s, i / STAGES & 1 ^ 1);
        tw::mbarrier_arrive_expect_tx(full + 8 * s, N * 4);
        tw::bulk_load_hint(base + s * N * 4, source + i * N, N * 4, full + 8 * s, tw::POLICY_EVICT_FIRST);
      }
  } else {
    uint64_t total = 0;
    for (int i = 0; i < tiles; ++i) {
      const int s = i % STAGES;
      tw::mbarrier_wait(full + 8 * s, i / STAGES & 1);
      for (int j = (warp - 1) * 32 + lane; j < N; j += 128) total += ring[s * N + j];
      tw::sync_warp();
      if (lane == 0) tw::mbarrier_arrive(empty + 8 * s);
    }
    tw::atomic_add(sum, total);
  }
}

// ---- TMA: a box into shared memory that held 0xAB, at `shift`; then everything out --------------------------------------
#define TMA_LOAD(NAME, ...)                                                                                            \
  TW_KERNEL(128, 1) NAME(const TW_GRID_CONSTANT tw::TensorMap map, const int* c, int bytes, int shift, uint8_t* out, int size) { \
    TW_DYNAMIC_SHARED(smem);                                                                                           \
    const uint32_t bar = tw::shared_address(smem) + size;                                                              \
    for (int i = threadIdx.x; i < size; i += 128) smem[i] = 0xAB;                                                      \
    if (threadIdx.x == 0) { tw::mbarrier_init(bar, 1); tw::fence_mbarrier_init(); }                                    \
    tw::fence_proxy_async_shared();                                                                                    \
    tw::sync_threads();                                                                                                \
    if (threadIdx.x == 0) {                                                                                            \
      tw::tma_prefetch_descriptor(map);                                                                                \
      tw::tma_prefetch(map, __VA_ARGS__);                                                                              \
      tw::mbarrier_arrive_expect_tx(bar, bytes);                                                                       \
      tw::tma_load(tw::shared_address(smem) + shift, map, bar, __VA_ARGS__);                                           \
    }                                                                                                                  \
    tw::mbarrier_wait(bar, 0);                                                                                         \
    for (int i = threadIdx.x; i < size; i += 128) out[i] = smem[i];                                                    \
  }
TMA_LOAD(tma_load_1d, c[0])
TMA_LOAD(tma_load_2d, c[0], c[1])
TMA_LOAD(tma_load_3d, c[0], c[1], c[2])
TMA_LOAD(tma_load_4d, c[0], c[1], c[2], c[3])
TMA_LOAD(tma_load_5d, c[0], c[1], c[2], c[3], c[4])

#define TMA_STORE(NAME, FUNCTION, ...)                                                                                 \
  TW_KERNEL(128, 1) NAME(const TW_GRID_CONSTANT tw::TensorMap map, const int* c, const uint8_t* in, int size) {        \
    TW_DYNAMIC_SHARED(smem);                                                                                           \
    for (int i = threadIdx.x; i < size; i += 128) smem[i] = in[i];                                                     \
    tw::fence_proxy_async_shared();                                                                                    \
    tw::sync_threads();                                                                                                \
    if (threadIdx.x == 0) {                                                                                            \
      tw::FUNCTION(map, tw::shared_address(smem), __VA_ARGS__);                                                        \
      tw::bulk_commit();                                                                                               \
      tw::bulk_wait_read<0>();                                                                                         \
      tw::bulk_wait<0>();                                                                                              \
    }                                                                                                                  \
  }
TMA_STORE(tma_store_1d, tma_store, c[0])
TMA_STORE(tma_store_2d, tma_store, c[0], c[1])
TMA_STORE(tma_store_3d, tma_store, c[0], c[1], c[2])
TMA_STORE(tma_store_4d, tma_store, c[0], c[1], c[2], c[3])
TMA_STORE(tma_store_5d, tma_store, c[0], c[1], c[2], c[3], c[4])
TMA_STORE(tma_reduce_2d, tma_reduce_add, c[0], c[1])

TW_KERNEL(128, 1) bulk_out(const float* in, float* plain, float* added, int bytes) {
  TW_DYNAMIC_SHARED(smem);
  float* tile = reinterpret_cast<float*>(smem);
  for (int i = threadIdx.x; i < bytes / 4; i += 128) tile[i] = in[i];
  tw::fence_proxy_async_shared();
  tw::sync_threads();
  if (threadIdx.x == 0) {
    tw::bulk_store(plain, tw::shared_address(smem), bytes);
    tw::bulk_commit();
    tw::bulk_reduce_add(added, tw::shared_address(smem), bytes);
    tw::bulk_commit();
    tw::bulk_wait<0>();
  }
}

// ---- clusters of two: each block loads one of two tiles a round into both, frees both producers, and reaches into its peer ----
TW_KERNEL(128, 1) multicast_ring(const TW_GRID_CONSTANT tw::TensorMap map, int rounds, uint8_t* out, float* peers) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t base = tw::shared_address(smem), full = base + 4096, empty = full + 8, signal = full + 16;
  float* box = reinterpret_cast<float*>(smem + 4096 + 64);
  const uint32_t rank = tw::cluster_rank();
  if (threadIdx.x == 0) {
    tw::mbarrier_init(full, 1);
    tw::mbarrier_init(empty, 2);
    tw::mbarrier_init(signal, 1);
    tw::fence_mbarrier_init();
  }
  tw::sync_threads();
  tw::cluster_sync();
  for (int i = 0; i < rounds; ++i) {
    if (threadIdx.x == 0) {
      tw::mbarrier_wait_cluster(empty, i & 1 ^ 1);
      tw::mbarrier_arrive_expect_tx(full, 4096);
      tw::tma_load_multicast(base + rank * 2048, map, full, 3, 0, (2 * i + rank) * 16);
    }
    tw::mbarrier_wait(full, i & 1);
    uint8_t* to = out + (i * 2 + rank) * 4096;
    for (int j = threadIdx.x; j < 4096; j += 128) to[j] = smem[j];
    tw::sync_threads();
    if (threadIdx.x < tw::cluster_size()) tw::mbarrier_arrive_cluster(empty, threadIdx.x);
  }
  if (threadIdx.x == 0) {
    tw::Vector<float, 1> word;
    word[0] = 100.0f + rank;
    tw::store_cluster(tw::mapa(base + 4096 + 64 + 4 * rank, rank ^ 1), word);
    tw::mbarrier_arrive_expect_tx(signal, 4);
    tw::store_cluster_async(tw::mapa(base + 4096 + 64 + 8 + 4 * rank, rank ^ 1), 200.0f + rank, tw::mapa(signal, rank ^ 1));
    tw::mbarrier_wait_cluster(signal, 0);
  }
  tw::cluster_sync();
  if (threadIdx.x == 0) {
    peers[rank * 3] = box[rank ^ 1];
    peers[rank * 3 + 1] = box[2 + (rank ^ 1)];
    peers[rank * 3 + 2] = tw::load_cluster<1, float>(tw::mapa(base + 4096 + 64 + 4 * rank, rank ^ 1))[0];
  }
  tw::cluster_sync();
}

// A block's shared memory copied into its peer's.
TW_KERNEL(128, 1) copy_to_peer(const uint8_t* in, uint8_t* out) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t base = tw::shared_address(smem), bar = base + 2048, rank = tw::cluster_rank();
  for (int i = threadIdx.x; i < 1024; i += 128) smem[i] = in[rank * 1024 + i];
  if (threadIdx.x == 0) { tw::mbarrier_init(bar, 1); tw::fence_mbarrier_init(); }
  tw::fence_proxy_async_shared();
  tw::sync_threads();
  tw::cluster_sync();
  if (threadIdx.x == 0) {
    tw::mbarrier_arrive_expect_tx(bar, 1024);
    tw::bulk_copy_cluster(tw::mapa(base + 1024, rank ^ 1), base, 1024, tw::mapa(bar, rank ^ 1));
  }
  tw::mbarrier_wait_cluster(bar, 0);
  for (int i = threadIdx.x; i < 1024; i += 128) out[rank * 1024 + i] = smem[1024 + i];
  tw::cluster_sync();
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH_FEAT_SM90_ALL || __CUDA_ARCH_FEAT_SM100_ALL || __CUDA_ARCH_FEAT_SM120_ALL
// Producers with few registers hand rows over named barriers to consumers that hold 192 values each.
TW_KERNEL(384, 1) register_budgets(const float* in, int steps, float* out, int* elected) {
  TW_DYNAMIC_SHARED(smem);
  constexpr int N = 192;
  float* rows = reinterpret_cast<float*>(smem);
  const int group = tw::warp_uniform(threadIdx.x / 128), t = threadIdx.x % 128;
  if (group == 0) {
    tw::setmaxnreg_dec<40>();
    for (int s = 0; s < steps; ++s) {
      tw::named_barrier_sync(3 + (s & 1), 384);
      for (int i = t; i < N; i += 128) rows[(s & 1) * N + i] = in[s * N + i];
      tw::fence_block();
      tw::named_barrier_arrive(1 + (s & 1), 384);
    }
    elected[threadIdx.x] = tw::elect_one();
  } else {
    tw::setmaxnreg_inc<232>();
    tw::Fragment<float, N> sums;
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = 0.0f;
    for (int s = 0; s < 2 && s < steps; ++s) tw::named_barrier_arrive(3 + s, 384);
    for (int s = 0; s < steps; ++s) {
      tw::named_barrier_sync(1 + (s & 1), 384);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] = tw::fma(rows[(s & 1) * N + i], float(threadIdx.x & 3), sums[i] * 0.5f);
      if (s + 2 < steps) tw::named_barrier_arrive(3 + (s & 1), 384);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) out[(threadIdx.x - 128) * N + i] = sums[i];
  }
}
#endif

// ---- the whole grid ----------------------------------------------------------------------------------------------------
TW_KERNEL(64, 1) grid_rounds(uint32_t* counter, int* cells, int* out, int rounds) {
  for (int r = 1; r <= rounds; ++r) {
    if (threadIdx.x == 0) tw::atomic_add(cells + r, int(blockIdx.x) + 1);
    tw::grid_sync(counter);
    if (threadIdx.x == 1) out[(r - 1) * gridDim.x + blockIdx.x] = tw::load_global<1, tw::L2_ONLY>(cells + r)[0];
  }
}
