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

}  // namespace machine
}  // namespace tw

#define __builtin_amdgcn_make_buffer_rsrc(base, stride, records, words) ::tw::machine::buffer_descriptor(base, stride, records, words, site)
#define __builtin_amdgcn_raw_buffer_load_b8(buffer, offset, more, policy) ::tw::machine::buffer_load<uint8_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b16(buffer, offset, more, policy) ::tw::machine::buffer_load<uint16_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, more, policy) ::tw::machine::buffer_load<uint32_t>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, more, policy) ::tw::machine::buffer_load<::tw::machine::Int2>(buffer, offset, more, site)
#define __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, more, policy) ::tw::machine::buffer_load<::tw::machine::Int4>(buffer, offset, more, site)
