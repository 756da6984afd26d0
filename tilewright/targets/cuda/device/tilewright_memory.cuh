// Loads and stores of several elements, with cache hints; distributed shared memory; cp.async; bulk copies of bytes.
#pragma once

namespace tw {

// What a global access asks of the caches.
enum Cache { CACHED, STREAMING, L2_ONLY, EVICT_FIRST, EVICT_LAST };
// Policies of L2 for asynchronous copies.
constexpr uint64_t POLICY_NORMAL = 0x1000000000000000ull, POLICY_EVICT_FIRST = 0x12F0000000000000ull, POLICY_EVICT_LAST = 0x14F0000000000000ull;

// What an address of global memory points to, as a table of pointers holds it.  Where the number came from is hidden: where it is known,
// NVVM of CUDA 13.0 never comes to an end when the pointer goes into a text of assembly within a loop.
template <class T> TW_DEVICE T* global_pointer(uint64_t address) {
  asm("" : "+l"(address));
  return static_cast<T*>(__cvta_global_to_generic(address));
}

// ---- any memory, by pointer ----------------------------------------------------------------------------------------
// N consecutive elements as one access of up to 16 bytes (32 of global memory from sm_100, else two); the address is aligned to all of them.
template <int N, class T> TW_DEVICE Vector<T, N> load(const T* pointer, TW_SITE) {
  Vector<T, N> result;
  const auto value = *reinterpret_cast<const typename Carrier<sizeof(T) * N>::type*>(pointer);
  memcpy(&result, &value, sizeof(result));
  return result;
}
template <class T, int N> TW_DEVICE void store(T* pointer, const Vector<T, N>& vector, TW_SITE) {
  typename Carrier<sizeof(T) * N>::type value;
  memcpy(&value, &vector, sizeof(vector));
  *reinterpret_cast<typename Carrier<sizeof(T) * N>::type*>(pointer) = value;
}
// The same between memory and elements [offset, offset + N) of a fragment.
template <int N, class T, int SIZE> TW_DEVICE void load_fragment(Fragment<T, SIZE>& fragment, int offset, const T* pointer) {
  const Vector<T, N> vector = load<N>(pointer);
#pragma unroll
  for (int i = 0; i < N; ++i) fragment[offset + i] = vector[i];
}
}  // namespace tw
#include "tilewright_codes.cuh"
namespace tw {

// ---- global memory with cache hints -----------------------------------------------------------------------------------
// STREAMING reads through the read-only path: only for memory that nobody writes while the kernel runs.
#define TW_GLOBAL_16(QUALIFIER)                                                                                       \
  asm volatile("ld.global" QUALIFIER ".v4.b32 {%0, %1, %2, %3}, [%4];"                                                \
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(pointer) : "memory")
#define TW_GLOBAL_8(QUALIFIER) \
  asm volatile("ld.global" QUALIFIER ".v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(pointer) : "memory")
#define TW_GLOBAL_4(QUALIFIER) asm volatile("ld.global" QUALIFIER ".b32 %0, [%1];" : "=r"(words) : "l"(pointer) : "memory")
#define TW_GLOBAL_2(QUALIFIER) asm volatile("ld.global" QUALIFIER ".b16 %0, [%1];" : "=h"(words) : "l"(pointer) : "memory")
#define TW_LOAD(BYTES)                                                                                                \
  template <Cache CACHE> TW_DEVICE void load_words(const void* pointer, Carrier<BYTES>::type& words) {                \
    if constexpr (CACHE == STREAMING) TW_GLOBAL_##BYTES(".nc.L1::no_allocate");                                       \
    else if constexpr (CACHE == L2_ONLY) TW_GLOBAL_##BYTES(".cg");                                                    \
    else if constexpr (CACHE == EVICT_FIRST) TW_GLOBAL_##BYTES(".L1::evict_first");                                   \
    else if constexpr (CACHE == EVICT_LAST) TW_GLOBAL_##BYTES(".L1::evict_last");                                     \
    else TW_GLOBAL_##BYTES("");                                                                                       \
  }
TW_LOAD(2)
TW_LOAD(4)
TW_LOAD(8)
TW_LOAD(16)
#undef TW_LOAD
#undef TW_GLOBAL_2
#undef TW_GLOBAL_4
#undef TW_GLOBAL_8
#undef TW_GLOBAL_16

// One access of 2 to 16 bytes; 32 bytes are one access from sm_100, else two.
template <int N, Cache CACHE, class T> TW_DEVICE Vector<T, N> load_global(const T* pointer) {
  Vector<T, N> result;
  if constexpr (CACHE == CACHED && sizeof(T) * N != 32) {
    result = load<N>(pointer);
  } else if constexpr (sizeof(T) * N == 32) {
    uint32_t w[8];
#if __CUDA_ARCH__ >= 1000
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7]) : "l"(pointer) : "memory");
#else
    load_words<CACHE>(pointer, reinterpret_cast<uint4*>(w)[0]);
    load_words<CACHE>(reinterpret_cast<const uint4*>(pointer) + 1, reinterpret_cast<uint4*>(w)[1]);
#endif
    memcpy(&result, w, 32);
  } else {
    typename Carrier<sizeof(T) * N>::type words;
    load_words<CACHE>(pointer, words);
    memcpy(&result, &words, sizeof(result));
  }
  return result;
}

#define TW_STORE(QUALIFIER)                                                                                           \
  if constexpr (sizeof(T) * N == 16)                                                                                  \
    asm volatile("st.global" QUALIFIER ".v4.b32 [%0], {%1, %2, %3, %4};" :: "l"(pointer), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory"); \
  else if constexpr (sizeof(T) * N == 8)                                                                              \
    asm volatile("st.global" QUALIFIER ".v2.b32 [%0], {%1, %2};" :: "l"(pointer), "r"(w[0]), "r"(w[1]) : "memory");   \
  else                                                                                                                \
    asm volatile("st.global" QUALIFIER ".b32 [%0], %1;" :: "l"(pointer), "r"(w[0]) : "memory")
// One access of 4 to 16 bytes; STREAMING marks the lines to be evicted first.  32 bytes are one access from sm_100, else two.
template <Cache CACHE, class T, int N> TW_DEVICE void store_global(T* pointer, const Vector<T, N>& vector) {
  if constexpr (sizeof(T) * N == 32) {
    uint32_t w[8];
    memcpy(w, &vector, 32);
#if __CUDA_ARCH__ >= 1000
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
                 :: "l"(pointer), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), "r"(w[7]) : "memory");
#else
    store_global<CACHE>(pointer, slice_vector<N / 2>(vector, 0));
    store_global<CACHE>(pointer + N / 2, slice_vector<N / 2>(vector, N / 2));
#endif
  } else if constexpr (CACHE == CACHED || sizeof(T) * N < 4) {
    store(pointer, vector);
  } else {
    uint32_t w[4];
    memcpy(w, &vector, sizeof(T) * N);
    if constexpr (CACHE == STREAMING) { TW_STORE(".cs"); }
    else if constexpr (CACHE == L2_ONLY) { TW_STORE(".cg"); }
    else if constexpr (CACHE == EVICT_FIRST) { TW_STORE(".L1::evict_first"); }
    else { TW_STORE(".L1::evict_last"); }
  }
}
#undef TW_STORE

// A word of a table of 256 rows of 32 words in shared memory, given the address of its column; a byte of `codes` says the row.  One
// operation makes the address: 128 times the byte, added to the column's.
TW_DEVICE uint32_t table_word(uint32_t column, uint32_t codes, int byte) {
  const uint32_t address = __dp4a(codes, 128u << 8 * byte, column);
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

template <int N, class T> TW_DEVICE Vector<T, N> load_cluster(uint32_t address) {
  static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16, "4, 8 or 16 bytes");
  Vector<T, N> result;
  uint32_t w[4];
  if constexpr (sizeof(T) * N == 16)
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
  else if constexpr (sizeof(T) * N == 8)
    asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address) : "memory");
  else
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(w[0]) : "r"(address) : "memory");
  memcpy(&result, w, sizeof(result));
  return result;
}
template <int N, class T, int SIZE> TW_DEVICE void load_cluster_fragment(Fragment<T, SIZE>& fragment, int offset, uint32_t address) {
  const Vector<T, N> vector = load_cluster<N, T>(address);
#pragma unroll
  for (int i = 0; i < N; ++i) fragment[offset + i] = vector[i];
}
template <class T, int N> TW_DEVICE void store_cluster(uint32_t address, const Vector<T, N>& vector) {
  static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16, "4, 8 or 16 bytes");
  uint32_t w[4];
  memcpy(w, &vector, sizeof(vector));
  if constexpr (sizeof(T) * N == 16)
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(address), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  else if constexpr (sizeof(T) * N == 8)
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" :: "r"(address), "r"(w[0]), "r"(w[1]) : "memory");
  else
    asm volatile("st.shared::cluster.b32 [%0], %1;" :: "r"(address), "r"(w[0]) : "memory");
}
// An asynchronous store of 4 bytes that completes 4 bytes on the mbarrier; both are cluster addresses of the same block.
template <class T> TW_DEVICE void store_cluster_async(uint32_t address, T value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               :: "r"(address), "r"(bit_cast<uint32_t>(value)), "r"(barrier) : "memory");
}

// ---- cp.async: each thread copies 4, 8 or 16 bytes from global to shared memory ------------------------------------------
// PREFETCH is 0, 64, 128 or 256: how many bytes L2 is advised to fetch.  Bytes past `valid` are written as zeros and not read.
#define TW_CP_ASYNC(KIND, HINT)   asm volatile("cp.async." KIND ".shared.global" HINT " [%0], [%1], %2, %3;" :: "r"(destination), "l"(source), "n"(BYTES), "r"(valid) : "memory")
template <int BYTES, int PREFETCH = 0> TW_DEVICE void cp_async_zfill(uint32_t destination, const void* source, uint32_t valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    if constexpr (PREFETCH == 256) TW_CP_ASYNC("cg", ".L2::256B");
    else if constexpr (PREFETCH == 128) TW_CP_ASYNC("cg", ".L2::128B");
    else if constexpr (PREFETCH == 64) TW_CP_ASYNC("cg", ".L2::64B");
    else TW_CP_ASYNC("cg", "");
  } else {
    if constexpr (PREFETCH == 256) TW_CP_ASYNC("ca", ".L2::256B");
    else if constexpr (PREFETCH == 128) TW_CP_ASYNC("ca", ".L2::128B");
    else if constexpr (PREFETCH == 64) TW_CP_ASYNC("ca", ".L2::64B");
    else TW_CP_ASYNC("ca", "");
  }
}
#undef TW_CP_ASYNC
template <int BYTES, int PREFETCH = 0> TW_DEVICE void cp_async(uint32_t destination, const void* source) {
  cp_async_zfill<BYTES, PREFETCH>(destination, source, BYTES);
}
// With a policy of L2 (POLICY_...), which is left out: where ptxas 13.0 takes a part of the shared address from a uniform register, it
// encodes LDGSTS with a policy as ``[R7+UR0], desc[UR1]``, an illegal instruction (seen on an H200, conditional and short copies).
template <int BYTES> TW_DEVICE void cp_async_hint(uint32_t destination, const void* source, uint64_t) { cp_async<BYTES>(destination, source); }
template <int BYTES> TW_DEVICE void cp_async_zfill_hint(uint32_t destination, const void* source, uint32_t valid, uint64_t) {
  cp_async_zfill<BYTES>(destination, source, valid);
}
TW_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> TW_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
TW_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// An arrival on the mbarrier once this thread's copies so far have landed; `noinc`: it is one of the arrivals the barrier counts.
TW_DEVICE void cp_async_mbarrier_arrive(uint32_t barrier) { asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(barrier) : "memory"); }
TW_DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(barrier) : "memory");
}

// ---- bulk copies of bytes: one thread issues; addresses and sizes are multiples of 16 --------------------------------------
TW_DEVICE void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(destination), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
TW_DEVICE void bulk_load_hint(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(destination), "l"(source), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
TW_DEVICE void bulk_load_multicast(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier, uint16_t ranks) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               :: "r"(destination), "l"(source), "r"(bytes), "r"(barrier), "h"(ranks) : "memory");
}
// From this block's shared memory to another block's: destination and barrier are cluster addresses of one block.
TW_DEVICE void bulk_copy_cluster(uint32_t destination, uint32_t source, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(destination), "r"(source), "r"(bytes), "r"(barrier) : "memory");
}
TW_DEVICE void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(destination), "r"(source), "r"(bytes) : "memory");
}
TW_DEVICE void bulk_reduce_add(float* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" :: "l"(destination), "r"(source), "r"(bytes) : "memory");
}
TW_DEVICE void bulk_prefetch(const void* source, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(source), "r"(bytes) : "memory");
}
// Bulk and tensor stores of this thread: close a group; wait until at most PENDING groups still write (wait) or still read shared memory.
TW_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> TW_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory"); }
template <int PENDING> TW_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory"); }

}  // namespace tw
