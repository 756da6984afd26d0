constexpr int BK = 64, CLUSTER = CM * CN, CONSUMERS = 2, BLOCKS_M = BM / (64 * CONSUMERS);
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES, OUT_BYTES = 64 * 128;
constexpr int OUT = STAGES * STAGE_BYTES, FULL = OUT + CONSUMERS * 2 * OUT_BYTES, EMPTY = FULL + 8 * STAGES;

// Bands of `band` tile rows, walked column by column, every second band backwards.
TW_DEVICE void raster_tile(int tiles_m, int tiles_n, int band, int tile, int& m, int& n) {
  const int per_band = band * tiles_n, index = tile / per_band, first = index * band;
  const int rows = min(tiles_m - first, band), i = tile - index * per_band;
  m = first + i % rows;
  n = index & 1 ? tiles_n - 1 - i / rows : i / rows;
}

TW_KERNEL(128 * (CONSUMERS + 1), 1)
hopper_gemm(const TW_GRID_CONSTANT tw::TensorMap map_a, const TW_GRID_CONSTANT tw::TensorMap map_b, const TW_GRID_CONSTANT tw::TensorMap map_c,
            int k_tiles, int tiles_m, int tiles_n, int band, int tiles) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t ring = tw::shared_address(smem), out = ring + OUT, full = ring + FULL, empty = ring + EMPTY;
  const int warpgroup = tw::warp_uniform(threadIdx.x / 128);
  const int rank = CLUSTER > 1 ? tw::cluster_rank() : 0, cm = rank % CM, cn = rank / CM;

  if (threadIdx.x == 0) {
    tw::tma_prefetch_descriptor(map_a);
    tw::tma_prefetch_descriptor(map_b);
    for (int s = 0; s < STAGES; ++s) {
      tw::mbarrier_init(full + 8 * s, 1);
      tw::mbarrier_init(empty + 8 * s, (CM + CN - 1) * CONSUMERS);
    }
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();

  const int first_tile = blockIdx.x / CLUSTER, tile_step = gridDim.x / CLUSTER;

  if (warpgroup == CONSUMERS) {
    // role: producer
    tw::setmaxnreg_dec<40>();
    if (threadIdx.x == 128 * CONSUMERS) {
      uint16_t share_a = 0, share_b = 0;
      for (int j = 0; j < CN; ++j) share_a |= 1 << (cm + CM * j);
      for (int i = 0; i < CM; ++i) share_b |= 1 << (i + CM * cn);
      int stage = 0;
      uint32_t phase = 0;
      for (int tile = first_tile; tile < tiles; tile += tile_step) {
        int tm, tn;
        raster_tile(tiles_m, tiles_n, band, tile, tm, tn);
        const int row_a = (tm * CM + cm) * BM + cn * (BM / CN), row_b = (tn * CN + cn) * BN + cm * (BN / CM);
        for (int k = 0; k < k_tiles; ++k) {
          const uint32_t a = ring + stage * STAGE_BYTES + cn * (A_BYTES / CN);
          const uint32_t b = ring + stage * STAGE_BYTES + A_BYTES + cm * (B_BYTES / CM);
          tw::mbarrier_wait(empty + 8 * stage, phase ^ 1);
          tw::mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES);
          if (CN > 1) tw::tma_load_multicast(a, map_a, full + 8 * stage, share_a, k * BK, row_a);
          else        tw::tma_load(a, map_a, full + 8 * stage, k * BK, row_a);
          if (CM > 1) tw::tma_load_multicast(b, map_b, full + 8 * stage, share_b, k * BK, row_b);
          else        tw::tma_load(b, map_b, full + 8 * stage, k * BK, row_b);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
    tw::sync_warp();
  } else {
    // role: consumers, rows [warpgroup * BM / 2, + BM / 2) of the tile
    tw::setmaxnreg_inc<232>();
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const bool releases = thread < CLUSTER && (thread % CM == cm || thread / CM == cn);
    const int out_row = 16 * warp + lane % 16;
    const uint32_t out_chunk = lane / 16;
    tw::Fragment<float, BN / 2> acc[BLOCKS_M];
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = first_tile; tile < tiles; tile += tile_step) {
      int previous = 0;
      for (int k = 0; k < k_tiles; ++k) {
        tw::mbarrier_wait(full + 8 * stage, phase);
        const uint32_t a = ring + stage * STAGE_BYTES + warpgroup * BLOCKS_M * 64 * 128, b = ring + stage * STAGE_BYTES + A_BYTES;
        tw::wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
          const uint64_t desc_a = tw::wgmma_descriptor(a + i * 64 * 128, tw::SWIZZLE_128B, 16, 1024);
          const uint64_t desc_b = tw::wgmma_descriptor(b, tw::SWIZZLE_128B, 16, 1024);
#pragma unroll
          for (int kk = 0; kk < 4; ++kk)
            tw::wgmma_ss<BN, tw::bfloat16, tw::bfloat16>(acc[i], tw::wgmma_advance(desc_a, 32 * kk), tw::wgmma_advance(desc_b, 32 * kk), (k | kk) != 0);
        }
        tw::wgmma_commit();
        tw::wgmma_wait<1>();
        if (releases && k > 0) tw::mbarrier_arrive_cluster(empty + 8 * previous, thread);
        previous = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      tw::wgmma_wait<0>();
      if (releases) tw::mbarrier_arrive_cluster(empty + 8 * previous, thread);
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i) tw::hold_registers(acc[i]);

      int tm, tn;
      raster_tile(tiles_m, tiles_n, band, tile, tm, tn);
      const int row = (tm * CM + cm) * BM + warpgroup * BLOCKS_M * 64, col = (tn * CN + cn) * BN;
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int c = 0; c < BN / 64; ++c) {
          const uint32_t box = out + (warpgroup * 2 + (i * (BN / 64) + c) % 2) * OUT_BYTES;
          if (thread == 0) tw::bulk_wait_read<1>();
          tw::named_barrier_sync(1 + warpgroup, 128);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            tw::Fragment<tw::bfloat16, 8> packed;
#pragma unroll
            for (int e = 0; e < 4; ++e) tw::set_word(packed, e, tw::pack_bf16x2(acc[i][32 * c + 8 * j + 2 * e], acc[i][32 * c + 8 * j + 2 * e + 1]));
            tw::stmatrix_x4(box + out_row * 128 + (((2 * j + out_chunk) ^ (out_row & 7)) << 4), packed);
          }
          tw::fence_proxy_async_shared();
          tw::named_barrier_sync(1 + warpgroup, 128);
          if (thread == 0) {
            tw::tma_store(map_c, box, col + 64 * c, row + 64 * i);
            tw::bulk_commit();
          }
        }
    }
    if (thread == 0) tw::bulk_wait_read<0>();
    tw::sync_warp();
  }
  tw::cluster_sync();
}
