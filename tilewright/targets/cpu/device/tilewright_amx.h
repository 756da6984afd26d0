/* The matrix unit of x86 processors (targets/cpu/tile_registers.py): eight registers of tiles, by number.
 *
 * Written as assembly: the intrinsics of GCC 12 do not say which memory they read and write. */
#ifndef TILEWRIGHT_AMX_H
#define TILEWRIGHT_AMX_H

#if !defined(__AMX_TILE__)
#error "this kernel is for processors with a matrix unit"
#endif

#define TW_TILE_KERNEL uint32_t tw_tile_sizes __attribute__((cleanup(tw_tile_release), unused)) = 0;

/* A thread that leaves tiles in use makes every switch to another thread slower. */
TW_INLINE void tw_tile_release(uint32_t *sizes) {
  if (*sizes) __asm__ volatile("tilerelease" ::: "memory");
}

TW_INLINE void tw_tile_sizes_set(uint32_t *sizes, uint32_t first, uint32_t second, uint32_t words) {
  uint32_t wanted = first | second << 8 | words << 16;
  if (*sizes == wanted) return;
  *sizes = wanted;
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } sizes_of_tiles = {1, 0, {0},
                      {64, 64, 64, 64, 4 * words, 4 * words, 64, 64},
                      {first, first, second, second, first, second, words, words}};
  __asm__ volatile("ldtilecfg %0" ::"m"(sizes_of_tiles) : "memory");
}
#define tw_tile_configure(first, second, words) tw_tile_sizes_set(&tw_tile_sizes, first, second, words)

#define tw_tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define tw_tile_load(t, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define tw_tile_store(t, to, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
#define TW_TILE_PRODUCT(name, c, a, b) __asm__ volatile(name " %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#define tw_tile_ss(c, a, b) TW_TILE_PRODUCT("tdpbssd", c, a, b)
#define tw_tile_su(c, a, b) TW_TILE_PRODUCT("tdpbsud", c, a, b)
#define tw_tile_us(c, a, b) TW_TILE_PRODUCT("tdpbusd", c, a, b)
#define tw_tile_uu(c, a, b) TW_TILE_PRODUCT("tdpbuud", c, a, b)
#define tw_tile_bf16(c, a, b) TW_TILE_PRODUCT("tdpbf16ps", c, a, b)

#endif
