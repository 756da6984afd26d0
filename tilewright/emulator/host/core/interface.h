/* What kernel text and the core know of each other: plain C, no library, so that text compiles in a fraction of a second. */
#ifndef TILEWRIGHT_EMULATOR_INTERFACE_H
#define TILEWRIGHT_EMULATOR_INTERFACE_H

typedef __UINT8_TYPE__ tw_u8;
typedef __UINT16_TYPE__ tw_u16;
typedef __UINT32_TYPE__ tw_u32;
typedef __INT32_TYPE__ tw_i32;
typedef __UINT64_TYPE__ tw_u64;
typedef __INT64_TYPE__ tw_i64;
typedef __SIZE_TYPE__ tw_size;

/* A place in the author's text. */
struct TwSite {
  const char* file;
  tw_u32 line;
#ifdef __cplusplus
  static constexpr TwSite here(const char* file = __builtin_FILE(), tw_u32 line = __builtin_LINE()) { return TwSite{file, line}; }
#endif
};

#ifdef __cplusplus
/* The lesser and the greater of two floats, and the other one where one is no number.  C's own make a NaN of a signalling one. */
template <class T> inline T tw_lesser(T a, T b) { return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? a : b) : a < b ? a : b; }
template <class T> inline T tw_greater(T a, T b) { return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? b : a) : a > b ? a : b; }
#endif

struct TwDim { tw_u32 x, y, z; };
struct TwThread { TwDim thread_index, block_index, block_dim, grid_dim; };

/* What a copy engine needs to know of a tensor, in 128 bytes: up to five dimensions, innermost first. */
struct TwTensorMap {
  tw_u32 magic;
  tw_u8 rank, element_bytes, type, swizzle, interleave, fill_nan, pad[2];
  tw_u64 address;
  tw_u64 dims[5], strides[4];
  tw_u16 box[5], steps[5];
  tw_u8 rest[12];
};

enum TwOperation {
  TW_NONE, TW_SYNC_THREADS, TW_NAMED_SYNC, TW_NAMED_ARRIVE, TW_SYNC_WARP, TW_SHUFFLE, TW_VOTE, TW_ELECT, TW_WARP_REDUCE,
  TW_SIGNAL_INIT, TW_SIGNAL_INVALIDATE, TW_SIGNAL_ARRIVE, TW_SIGNAL_ARRIVE_REMOTE, TW_SIGNAL_EXPECT, TW_SIGNAL_ARRIVE_EXPECT,
  TW_SIGNAL_COMPLETE, TW_SIGNAL_TRY_WAIT, TW_SIGNAL_TEST_WAIT, TW_SIGNAL_WAIT, TW_FENCE_BARRIER_INIT, TW_FENCE_PROXY, TW_FENCE,
  TW_COPY_ASYNC, TW_COPY_COMMIT, TW_COPY_WAIT, TW_COPY_ARRIVE, TW_BULK_LOAD, TW_BULK_STORE, TW_BOX_LOAD, TW_BOX_STORE, TW_BOX_REDUCE,
  TW_STORE_COMMIT, TW_STORE_WAIT, TW_BOX_PREFETCH, TW_LOAD_MATRIX, TW_STORE_MATRIX, TW_MOVE_MATRIX, TW_MMA, TW_GROUP_PRODUCT, TW_GROUP_FENCE,
  TW_GROUP_COMMIT, TW_GROUP_WAIT, TW_SET_REGISTERS, TW_CLUSTER_ARRIVE, TW_CLUSTER_WAIT, TW_ATOMIC, TW_ACQUIRE, TW_RELEASE, TW_GRID_WAIT,
  TW_GRID_LAUNCH, TW_LOAD, TW_STORE, TW_OPERATIONS
};

/* A fault planted at run time: calls of `operation` (0: any) at `file`:`line` number [first, last] are skipped or changed. */
struct TwFault {
  const char* file;
  tw_u32 line, operation;
  tw_u64 first, last;       /* of the executions there, counted over all threads of a run; last is included */
  tw_u32 skip;
  tw_i64 delta;             /* added to the call's number (bytes, count, groups) */
  tw_u64 flip;              /* xored into it (parity) */
};

enum { TW_UNSETTLED = 1, TW_CONSTANT = 2 };
/* promises: a kernel before may still use it until tw_grid_wait; the kernel says that it does not change while it runs */
struct TwAllocation { tw_u64 low, high, promises; };

/* One run of a grid. */
struct TwLaunch {
  tw_u32 grid[3], block[3], cluster[3];
  tw_u32 warp_size, shared_bytes;
  tw_u32 check, schedule, workers, resident, registers, trace;
  tw_u32 promises;                    /* of some allocation */
  tw_u32 fences_memory, talks;        /* the text has fences between blocks; its blocks may talk to each other */
  tw_u32 shared_base;                 /* of the machine from here on: where a block's shared memory begins in its window */
  tw_u32 spaces, flushes;             /* barriers say which memory they order; the device takes subnormal floats for zeros */
  tw_u32 named_barriers, group_warps; /* of a block, that of all its threads among them; warps that share an asynchronous product */
  tw_u32 signal_most;                 /* arrivals, and bytes, that a phase of a signal counts */
  tw_u32 registers_least, registers_most, registers_step;   /* that a thread may ask for; counts are multiples of the last */
  tw_u64 engine_rank, engine_box, engine_unit, engine_place, engine_step, engine_extent, engine_stride;   /* `CopyEngine`; 0: there is none */
  tw_u64 seed, poison, milliseconds;   /* the last: a run may take, 0 for any time */
  void (*entry)(void** arguments);
  void** arguments;
  const struct TwAllocation* allocations;
  tw_u64 allocation_count, arena_low, arena_high;
  tw_u64 text_low, text_high;
  const struct TwFault* faults;
  tw_u64 fault_count;
  tw_u32 (*look)(tw_u64 blocks);      /* called now and then with the blocks that have ended; not 0: stop */
};

enum { TW_LATE = 0, TW_EARLY = 1, TW_RANDOM = 2 };

#ifdef __cplusplus
extern "C" {
#endif

char* tw_run(const struct TwLaunch* launch);
void tw_image(const void* symbol, tw_u64* low, tw_u64* high);
void tw_free(char* text);
void* tw_reserve(tw_u64 bytes);
void tw_release(void* base, tw_u64 bytes);

/* ---- what kernel text calls; a trailing TwSite is the author's place ---- */
__attribute__((const)) struct TwThread* tw_thread(void);
tw_u32 tw_lane(void);
tw_u32 tw_warp(void);
tw_u32 tw_warp_size(void);
tw_u32 tw_cluster_rank(void);
tw_u32 tw_cluster_size(void);
unsigned char* tw_dynamic_shared(void);
tw_u32 tw_shared_address(const void* pointer, struct TwSite site);
void* tw_shared_pointer(tw_u32 address, struct TwSite site);
tw_u32 tw_map_shared(tw_u32 address, tw_u32 rank, struct TwSite site);
void* tw_map_pointer(const void* pointer, tw_u32 rank, struct TwSite site);
void tw_trap(struct TwSite site);
void tw_leave(void);                               /* the thread ends before the text does */
void tw_print(const char* format, ...);
void tw_assertion_failed(const char* message, struct TwSite site);
tw_u64 tw_clock(void);

void tw_registers_enter(void* low, tw_u32 bytes);
void tw_registers_leave(void* low);
void tw_registers_copy(void* to, const void* from, tw_u32 bytes);
void tw_register_index(const void* fragment, tw_i32 index, tw_u32 size);   /* reports an element or a fragment that is not there */
void tw_registers_written(void* low, tw_u32 bytes);

void tw_load(void* to, const void* from, tw_u32 bytes, struct TwSite site);
void tw_load_constant(void* to, const void* from, tw_u32 bytes, struct TwSite site);   /* by a path that takes memory for constant */
void tw_store(void* to, const void* from, tw_u32 bytes, struct TwSite site);

/* The next barrier of this thread orders its accesses of these memories, where barriers say so (`spaces`). */
void tw_order_memory(tw_u32 shared, tw_u32 global);
void tw_sync_threads(struct TwSite site);
tw_u32 tw_sync_threads_count(tw_u32 predicate, tw_u32 how, struct TwSite site);   /* how: 0 count, 1 and, 2 or */
void tw_named_sync(tw_u32 id, tw_u32 threads, struct TwSite site);
void tw_named_arrive(tw_u32 id, tw_u32 threads, struct TwSite site);
void tw_sync_warp(tw_u64 mask, struct TwSite site);
enum { TW_SHUFFLE_INDEX, TW_SHUFFLE_UP, TW_SHUFFLE_DOWN, TW_SHUFFLE_XOR };
tw_u64 tw_shuffle(tw_u32 how, tw_u64 mask, tw_u64 value, tw_u32 lane, tw_u32 width, struct TwSite site);
tw_u64 tw_vote(tw_u64 mask, tw_u32 predicate, struct TwSite site);                /* the ballot */
tw_u32 tw_elect(tw_u64 mask, struct TwSite site);
enum { TW_REDUCE_ADD, TW_REDUCE_MIN, TW_REDUCE_MAX, TW_REDUCE_AND, TW_REDUCE_OR, TW_REDUCE_XOR };
tw_u32 tw_warp_reduce(tw_u32 how, tw_u32 is_signed, tw_u64 mask, tw_u32 value, struct TwSite site);

void tw_signal_init(tw_u32 barrier, tw_u32 count, struct TwSite site);
void tw_signal_invalidate(tw_u32 barrier, struct TwSite site);
tw_u64 tw_signal_arrive(tw_u32 barrier, tw_u32 count, struct TwSite site);
void tw_signal_arrive_remote(tw_u32 barrier, tw_u32 count, tw_u32 publishes, struct TwSite site);   /* publishes: to other blocks too */
void tw_signal_expect_tx(tw_u32 barrier, tw_u32 bytes, struct TwSite site);
tw_u64 tw_signal_arrive_expect_tx(tw_u32 barrier, tw_u32 bytes, struct TwSite site);
void tw_signal_complete_tx(tw_u32 barrier, tw_u32 bytes, struct TwSite site);
/* A wait sees what its own block published (scope 0) or other blocks too (1). */
tw_u32 tw_signal_try_wait(tw_u32 barrier, tw_u32 parity, tw_u32 scope, struct TwSite site);
tw_u32 tw_signal_test_wait(tw_u32 barrier, tw_u32 parity, tw_u32 scope, struct TwSite site);
tw_u32 tw_signal_test_state(tw_u32 barrier, tw_u64 state, struct TwSite site);
tw_u32 tw_signal_pending_count(tw_u64 state);
void tw_signal_wait(tw_u32 barrier, tw_u32 parity, tw_u32 scope, struct TwSite site);
void tw_fence_barrier_init(struct TwSite site);
void tw_fence_proxy(tw_u32 spaces, struct TwSite site);                           /* 1 shared, 2 global, 3 both */
void tw_fence(tw_u32 scope, struct TwSite site);                                  /* 0 block, 1 cluster, 2 device, 3 system */

void tw_copy_async(tw_u32 to, const void* from, tw_u32 bytes, tw_u32 source_bytes, struct TwSite site);
void tw_copy_commit(struct TwSite site);
void tw_copy_wait(tw_u32 pending, struct TwSite site);
void tw_copy_wait_all(struct TwSite site);
void tw_store_async(tw_u32 to, tw_u32 value, tw_u32 barrier, struct TwSite site);
void tw_copy_arrive(tw_u32 barrier, tw_u32 noinc, struct TwSite site);
void tw_bulk_load(tw_u32 to, const void* from, tw_u32 bytes, tw_u32 barrier, tw_u32 mask, struct TwSite site);
void tw_bulk_store(void* to, tw_u32 from, tw_u32 bytes, tw_u32 reduction, struct TwSite site);
void tw_box_load(tw_u32 to, const void* map, tw_u32 barrier, tw_u32 rank, const tw_i32* at, tw_u32 mask, struct TwSite site);
void tw_box_store(const void* map, tw_u32 from, tw_u32 rank, const tw_i32* at, tw_u32 reduction, struct TwSite site);
void tw_store_commit(struct TwSite site);
void tw_store_wait(tw_u32 pending, tw_u32 read_only, struct TwSite site);
void tw_box_prefetch(const void* map, struct TwSite site);

void tw_load_matrix(tw_u32* registers, tw_u32 address, tw_u32 count, tw_u32 transposed, struct TwSite site);
void tw_store_matrix(const tw_u32* registers, tw_u32 address, tw_u32 count, tw_u32 transposed, struct TwSite site);
tw_u32 tw_move_matrix(tw_u32 value, struct TwSite site);

enum TwNumber { TW_F16, TW_BF16, TW_TF32, TW_F32, TW_F64, TW_S8, TW_U8, TW_S4, TW_U4, TW_E4M3, TW_E5M2, TW_S32, TW_B1, TW_E4M3_FNUZ, TW_E5M2_FNUZ };
/* A warp's D = A B + C from registers, n = 8; element types by TwNumber. */
struct TwMatrixForm { tw_u8 m, a, b, d; tw_u32 k; };
void tw_mma(struct TwMatrixForm form, void* d, const void* a, const void* b, const void* c, struct TwSite site);
/* The same with two of every four elements of A kept: `form.k` counts those of B; a lane's metadata word, and which lanes' words count. */
void tw_mma_sparse(struct TwMatrixForm form, void* d, const void* a, const void* b, const void* c, tw_u32 metadata, tw_u32 selector, struct TwSite site);

/* A wave's D = A B + C from registers, up to 32 x 32 x 128: which element each lane has in each of its `.._count` registers, one after the
   other; lanes may hold copies of operands. */
struct TwPlace { tw_u32 row, column; };
struct TwWaveForm {
  tw_u32 lanes, m, n, k, a, b, d, a_count, b_count, d_count;
  struct TwPlace (*left)(tw_u32 lane, tw_u32 index);
  struct TwPlace (*right)(tw_u32 lane, tw_u32 index);
  struct TwPlace (*result)(tw_u32 lane, tw_u32 index);
};
void tw_wave_mma(const struct TwWaveForm* form, void* d, const void* a, const void* b, const void* c, struct TwSite site);

void tw_set_registers(tw_u32 count, tw_u32 increase, struct TwSite site);
void tw_cluster_arrive(struct TwSite site);
void tw_cluster_arrive_relaxed(struct TwSite site);
void tw_cluster_wait(struct TwSite site);

enum { TW_ATOMIC_ADD, TW_ATOMIC_MIN, TW_ATOMIC_MAX, TW_ATOMIC_AND, TW_ATOMIC_OR, TW_ATOMIC_XOR, TW_ATOMIC_EXCHANGE, TW_ATOMIC_COMPARE };
enum TwAtomicType { TW_AT_S32, TW_AT_U32, TW_AT_S64, TW_AT_U64, TW_AT_F32, TW_AT_F64, TW_AT_F16, TW_AT_BF16 };
enum { TW_RELAXED = 0, TW_ACQUIRES = 1, TW_RELEASES = 2 };
/* `count` neighbours are changed one by one; the old values go to `old` unless that is null. */
void tw_atomic(tw_u32 how, tw_u32 type, tw_u32 order, void* address, const void* operand, const void* compare, void* old, tw_u32 count, struct TwSite site);
/* From here on atomic functions are about this part of their word, whatever else is in it; null: about all of it. */
void tw_atomic_part(const void* part, tw_u32 bytes);
/* Of a byte that holds several elements, the bits of one: whoever sets or reads the others meanwhile, and whether or not these have a value. */
void tw_set_bits(unsigned char* byte, tw_u32 mask, tw_u32 bits, struct TwSite site);
tw_u32 tw_get_bits(const unsigned char* byte, tw_u32 mask, struct TwSite site);
void tw_load_acquire(void* to, const void* from, tw_u32 bytes, struct TwSite site);
void tw_store_release(void* to, const void* from, tw_u32 bytes, struct TwSite site);
void tw_grid_wait(struct TwSite site);
void tw_grid_launch(struct TwSite site);
#ifdef __cplusplus
}
/* Parameters that the machine fills in, not the launch: a vocabulary says how for types that no argument has. */
template <class T> struct TwGiven { static constexpr bool value = false; };

/* An element of two bytes whose word atomic functions exchange: what lies beside it they write back as it was. */
struct TwHalfOfWord {
  explicit TwHalfOfWord(const void* half) { tw_atomic_part(half, 2); }
  ~TwHalfOfWord() { tw_atomic_part(nullptr, 0); }
};
#define TW_HALF_OF_WORD(half) const ::TwHalfOfWord half_of_word(half);

/* Behind the declaration of a variable without a first value: follows it as registers, so that a read before the first write is seen. */
struct TwUnset {
  void* low;
  TwUnset(void* variable, tw_u32 bytes) : low(variable) { tw_registers_enter(variable, bytes); }
  ~TwUnset() { tw_registers_leave(low); }
};
#endif
#endif
