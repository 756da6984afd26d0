// Loads and stores with a policy of the cache; distributed shared memory; cp.async; bulk copies of bytes.
#pragma once

namespace tw {

enum Cache { CACHED, STREAMING, L2_ONLY, EVICT_FIRST, EVICT_LAST };
constexpr uint64_t POLICY_NORMAL = 0x1000000000000000ull, POLICY_EVICT_FIRST = 0x12F0000000000000ull, POLICY_EVICT_LAST = 0x14F0000000000000ull;

template <int N, Cache CACHE, class T> TW_DEVICE Vector<T, N> load_global(const T* pointer, TW_SITE) {
  Vector<T, N> result;
  if (CACHE == STREAMING) ::tw_load_constant(&result, pointer, sizeof(result), site);   // the read-only path
  else ::tw_load(&result, pointer, sizeof(result), site);
  return result;
}
template <Cache CACHE, class T, int N> TW_DEVICE void store_global(T* pointer, const Vector<T, N>& vector, TW_SITE) { store(pointer, vector, site); }

TW_DEVICE uint32_t table_word(uint32_t column, uint32_t codes, int byte, TW_SITE) {
  uint32_t word;
  ::tw_load(&word, ::tw_shared_pointer(column + (codes >> 8 * byte & 0xFFu) * 128, site), sizeof(word), site);
  return word;
}
template <int N, class T> TW_DEVICE Vector<T, N> load_cluster(uint32_t address, TW_SITE) {
  Vector<T, N> result;
  ::tw_load(&result, ::tw_shared_pointer(address, site), sizeof(result), site);
  return result;
}
template <int N, class T, int SIZE> TW_DEVICE void load_cluster_fragment(Fragment<T, SIZE>& fragment, int offset, uint32_t address, TW_SITE) {
  const Vector<T, N> vector = load_cluster<N, T>(address, site);
  for (int i = 0; i < N; ++i) fragment[offset + i] = vector[i];
}
template <class T, int N> TW_DEVICE void store_cluster(uint32_t address, const Vector<T, N>& vector, TW_SITE) {
  ::tw_store(::tw_shared_pointer(address, site), &vector, sizeof(vector), site);
}
template <class T> TW_DEVICE void store_cluster_async(uint32_t address, T value, uint32_t barrier, TW_SITE) {
  ::tw_store_async(address, bit_cast<uint32_t>(value), barrier, site);
}

template <int BYTES, int PREFETCH = 0> TW_DEVICE void cp_async_zfill(uint32_t destination, const void* source, uint32_t valid, TW_SITE) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  ::tw_copy_async(destination, source, BYTES, valid, site);
}
template <int BYTES, int PREFETCH = 0> TW_DEVICE void cp_async(uint32_t destination, const void* source, TW_SITE) { cp_async_zfill<BYTES, PREFETCH>(destination, source, BYTES, site); }
template <int BYTES> TW_DEVICE void cp_async_hint(uint32_t destination, const void* source, uint64_t, TW_SITE) { cp_async_zfill<BYTES>(destination, source, BYTES, site); }
template <int BYTES> TW_DEVICE void cp_async_zfill_hint(uint32_t destination, const void* source, uint32_t valid, uint64_t, TW_SITE) {
  cp_async_zfill<BYTES>(destination, source, valid, site);
}
TW_DEVICE void cp_async_commit(TW_SITE) { ::tw_copy_commit(site); }
template <int PENDING> TW_DEVICE void cp_async_wait(TW_SITE) { ::tw_copy_wait(PENDING, site); }
TW_DEVICE void cp_async_wait_all(TW_SITE) { ::tw_copy_wait_all(site); }
TW_DEVICE void cp_async_mbarrier_arrive(uint32_t barrier, TW_SITE) { ::tw_copy_arrive(barrier, 0, site); }
TW_DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier, TW_SITE) { ::tw_copy_arrive(barrier, 1, site); }

TW_DEVICE void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier, TW_SITE) { ::tw_bulk_load(destination, source, bytes, barrier, 0, site); }
TW_DEVICE void bulk_load_hint(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier, uint64_t, TW_SITE) { ::tw_bulk_load(destination, source, bytes, barrier, 0, site); }
TW_DEVICE void bulk_load_multicast(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier, uint16_t ranks, TW_SITE) {
  ::tw_bulk_load(destination, source, bytes, barrier, ranks, site);
}
TW_DEVICE void bulk_copy_cluster(uint32_t destination, uint32_t source, uint32_t bytes, uint32_t barrier, TW_SITE) {
  ::tw_bulk_load(destination, ::tw_shared_pointer(source, site), bytes, barrier, 0, site);
}
TW_DEVICE void bulk_store(void* destination, uint32_t source, uint32_t bytes, TW_SITE) { ::tw_bulk_store(destination, source, bytes, 0, site); }
TW_DEVICE void bulk_reduce_add(float* destination, uint32_t source, uint32_t bytes, TW_SITE) { ::tw_bulk_store(destination, source, bytes, 8, site); }
TW_DEVICE void bulk_prefetch(const void*, uint32_t) {}
TW_DEVICE void bulk_commit(TW_SITE) { ::tw_store_commit(site); }
template <int PENDING> TW_DEVICE void bulk_wait(TW_SITE) { ::tw_store_wait(PENDING, 0, site); }
template <int PENDING> TW_DEVICE void bulk_wait_read(TW_SITE) { ::tw_store_wait(PENDING, 1, site); }

}  // namespace tw
