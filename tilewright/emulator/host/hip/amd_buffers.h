// Loads by a descriptor of a buffer ("MUBUF" of the CDNA 3, RDNA 3 and RDNA 4 instruction sets): raw ones, without strides or swizzles.
#pragma once

namespace tw {
namespace machine {

// The fourth word says what lies there and when an access is out of range; this is what raw accesses of words need.
#if TW_WARP_SIZE == 64
constexpr int32_t RAW_WORDS = 0x00027000;   // DATA_FORMAT 32 at bit 15, NUM_FORMAT float at bit 12
#else
constexpr int32_t RAW_WORDS = 0x31027000;   // OOB_SELECT raw at bit 28, the bit 24 that is always set, FORMAT at bit 12
#endif

struct BufferDescriptor {
  const uint8_t* base;
  uint32_t records;
};
TW_DEVICE BufferDescriptor buffer_descriptor(const void* base, int16_t stride, uint32_t records, int32_t words, ::TwSite site) {
  if (stride != 0 || words != RAW_WORDS) ::tw_assertion_failed("a buffer descriptor of another kind than raw words", site);
  return {static_cast<const uint8_t*>(base), records};
}
// Out of range are accesses that begin at or behind the last byte: zeros.
template <class T> TW_DEVICE T buffer_load(const BufferDescriptor& buffer, uint32_t offset, uint32_t more, ::TwSite site) {
  T value = {};
  if (offset < buffer.records) ::tw_load(&value, buffer.base + offset + more, sizeof(T), site);
  return value;
}

// Loads to shared memory: the first lane's place, and behind it one lane after the other.  A wave's loads end in their order, and each is a
// group of its own for the wait that counts them.
typedef uint32_t SharedPointer;
TW_DEVICE SharedPointer shared_pointer(uint32_t address) { return address; }
TW_DEVICE const void* global_pointer(const void* pointer) { return pointer; }
TW_DEVICE void load_to_shared(SharedPointer first, const void* from, bool inside, uint32_t bytes, ::TwSite site) {
  ::tw_copy_async(first + threadIdx.x % TW_WARP_SIZE * bytes, from, bytes, inside ? bytes : 0, site);
  ::tw_copy_commit(site);
}
TW_DEVICE void buffer_to_shared(const BufferDescriptor& buffer, SharedPointer first, uint32_t bytes, uint32_t offset, ::TwSite site) {
  load_to_shared(first, buffer.base + offset, offset < buffer.records, bytes, site);
}
// `s_waitcnt` of gfx9: six bits count loads, in two places; the other counters are not asked for where all their bits are set, and that of
// accesses to shared memory may be asked to be zero.
TW_DEVICE void wait_for_counts(uint32_t counts, ::TwSite site) {
  const uint32_t others = counts & 0x3ff0;
  if (others != 0x0f70 && others != 0x0070) ::tw_assertion_failed("a wait for part of what no load is", site);
  const uint32_t loads = (counts & 15) | (counts >> 14 & 3) << 4;
  if (others == 0x0070 && loads != 63) ::tw_assertion_failed("a wait for loads and for shared memory at once", site);
  if (loads != 63) ::tw_copy_wait(loads, site);
}

}  // namespace machine
}  // namespace tw

#define __builtin_amdgcn_raw_ptr_buffer_load_lds(buffer, first, bytes, offset, more, constant, policy) \
  ::tw::machine::buffer_to_shared(buffer, first, bytes, offset, site)
#define __builtin_amdgcn_global_load_lds(pointer, first, bytes, constant, policy) ::tw::machine::load_to_shared(first, pointer, true, bytes, site)
#define __builtin_amdgcn_s_waitcnt(counts) ::tw::machine::wait_for_counts(counts, site)

#define __builtin_amdgcn_make_buffer_rsrc(base, stride, records, words) ::tw::machine::buffer_descriptor(base, stride, records, words, site)
#define __builtin_amdgcn_raw_buffer_load_b8(buffer, offset, more, policy) ::tw::machine::buffer_load<uint8_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b16(buffer, offset, more, policy) ::tw::machine::buffer_load<uint16_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, more, policy) ::tw::machine::buffer_load<uint32_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, more, policy) ::tw::machine::buffer_load<::tw::machine::Int2>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, more, policy) ::tw::machine::buffer_load<::tw::machine::Int4>(buffer, offset, more, site)
