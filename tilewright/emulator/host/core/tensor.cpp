// Copies of tensor boxes by a copy engine: descriptors and their limits, boxes, swizzles, what lies out of bounds.
#include <algorithm>
#include <cstring>

#include "copies.h"

namespace emulator {

namespace {

struct Box {
  TwTensorMap map;
  uint32_t rank, element;
  int64_t at[5];
  uint32_t count[5];                  // elements of the box along each dimension
  uint32_t pitch;                     // bytes from row to row in shared memory
  uint32_t rows, row_bytes, swizzle_mask;
};

uint32_t map_fault(const TwTensorMap& map, const TwLaunch& machine, std::string& what) {
  const uint32_t unit = machine.engine_unit;
  const std::string units = "not a multiple of " + number(unit) + " bytes";
  const uint32_t row = map.box[0] * map.element_bytes, span = map.swizzle ? 16u << map.swizzle : 0;
  if (!unit) what = "the machine has no copy engine";
  else if (map.rank < 1 || map.rank > machine.engine_rank || map.rank > 5) what = "its rank is not 1 to " + number(machine.engine_rank);
  else if (map.address % unit) what = "its global address is " + units;
  else if (map.interleave) what = "interleaved layouts are not emulated";
  else if (map.swizzle > 3) what = "its swizzle mode is none that is known";
  else if (row % unit) what = "its innermost box row of " + number(row) + " bytes is " + units;
  else if (span && row > span) what = "its innermost box row of " + number(row) + " bytes is longer than the swizzle's " + number(span);
  for (uint32_t d = 0; d < map.rank && d < 5 && what.empty(); ++d) {
    const std::string dimension = "dimension " + number(d);
    if (map.box[d] < 1 || map.box[d] > machine.engine_box) what = dimension + " of its box is " + number(map.box[d]) + ", not 1 to " + number(machine.engine_box);
    else if (map.dims[d] < 1 || map.dims[d] > machine.engine_extent) what = dimension + " has " + number(int64_t(map.dims[d])) + " elements, not 1 to " + number(int64_t(machine.engine_extent));
    else if (map.steps[d] < 1 || map.steps[d] > machine.engine_step) what = "the element stride of " + dimension + " is not 1 to " + number(machine.engine_step);
    else if (d && (map.strides[d - 1] % unit || map.strides[d - 1] >= machine.engine_stride))
      what = "the stride of " + dimension + ", " + number(int64_t(map.strides[d - 1])) + " bytes, is " + units + " below " + number(int64_t(machine.engine_stride));
  }
  return what.empty() ? 0 : 1;
}

Box make_box(Thread& thread, const void* pointer, uint32_t rank, const int32_t* at) {
  Box box;
  memcpy(&box.map, pointer, sizeof box.map);
  std::string what;
  if (box.map.magic != 0x54774D61) what = "it is not a tensor map";
  else if (box.map.rank != rank) what = "it has rank " + number(box.map.rank) + ", the copy rank " + number(rank);
  else if (const uint32_t unit = engine_of(thread).launch.engine_unit; !map_fault(box.map, engine_of(thread).launch, what) && int64_t(at[0]) * box.map.element_bytes % unit)
    what = "the box begins at coordinate " + number(at[0]) + " of the innermost dimension, which is not a multiple of " + number(unit) + " bytes: an illegal instruction";
  if (!what.empty()) {
    report("tensor-map", &thread, thread.site, {{"what", text(what)}});
    abort_cluster();
  }
  box.rank = rank;
  box.element = box.map.element_bytes;
  box.rows = 1;
  for (uint32_t d = 0; d < 5; ++d) {
    box.at[d] = d < rank ? at[d] : 0;
    box.count[d] = d < rank ? (box.map.box[d] + (d ? box.map.steps[d] : 1) - 1) / (d ? box.map.steps[d] : 1) : 1;
    if (d) box.rows *= box.count[d];
  }
  box.row_bytes = box.count[0] * box.element;
  const uint32_t span = box.map.swizzle ? 16u << box.map.swizzle : 0;
  box.pitch = box.row_bytes < span ? span : box.row_bytes;      // a row shorter than the swizzle's span is padded to it
  box.swizzle_mask = span ? span / 16 - 1 : 0;
  return box;
}

uint32_t swizzled(const Box& box, uint32_t offset) { return offset ^ ((offset >> 7 & box.swizzle_mask) << 4); }

// Visit each row of the box: its number, where it begins in global memory, and which bytes of it lie inside the tensor.
template <class F> void each_row(const Box& box, F visit) {
  int64_t first = box.at[0] < 0 ? -box.at[0] : 0, last = int64_t(box.map.dims[0]) - box.at[0];
  if (last > int64_t(box.count[0])) last = box.count[0];
  for (uint32_t row = 0; row < box.rows; ++row) {
    uint32_t rest = row;
    uint64_t address = box.map.address;
    bool inside = last > first;
    for (uint32_t d = 1; d < box.rank; ++d) {
      const int64_t c = box.at[d] + int64_t(rest % box.count[d]) * box.map.steps[d];
      rest /= box.count[d];
      inside &= c >= 0 && c < int64_t(box.map.dims[d]);
      address += uint64_t(c) * box.map.strides[d - 1];
    }
    address += uint64_t(box.at[0] * int64_t(box.element));
    visit(row, reinterpret_cast<char*>(address), inside ? uint32_t(first * box.element) : 0, inside ? uint32_t(last * box.element) : 0);
  }
}

// Visit the pieces of 16 bytes of the box: where in shared memory, the row it belongs to in global memory, which bytes of that row
// lie inside the tensor, and the bytes of the row before the piece.
template <class F> void each_piece(const Box& box, char* shared, uint32_t offset, F visit) {
  each_row(box, [&](uint32_t row, char* line, uint32_t first, uint32_t last) {
    for (uint32_t chunk = 0; chunk < box.row_bytes; chunk += 16) visit(shared + swizzled(box, offset + row * box.pitch + chunk), line, first, last, chunk);
  });
}

// The box in shared memory as an operation reads it or writes it.
void touch_box(Thread& thread, const Box& box, Block& block, uint32_t offset, uint32_t operation, bool write) {
  auto one = [&](char* at, size_t bytes) {
    if (write) operation_writes(thread, operation, {at, nullptr, uint32_t(bytes), 0}, slot_async);
    else operation_reads(thread, operation, at, bytes, slot_async);
  };
  if (box.pitch == box.row_bytes) one(block.shared + offset, size_t(box.pitch) * box.rows);
  else each_piece(box, block.shared, offset, [&](char* at, char*, uint32_t, uint32_t, uint32_t) { one(at, 16); });
}

// Where the byte at an address comes from: for those who bring something else to the same place.
std::function<const char*(const char*)> loaded_from(const Box& box, char* shared, uint32_t offset) {
  return [=](const char* address) {
    static const char zero = 0;
    const char* from = nullptr;
    each_piece(box, shared, offset, [&](char* at, char* line, uint32_t first, uint32_t last, uint32_t chunk) {
      const size_t byte = chunk + size_t(address - at);
      if (size_t(address - at) < 16) from = byte >= first && byte < last ? line + byte : &zero;
    });
    return from;
  };
}

std::function<const char*(const char*)> stored_from(const Box& box, char* shared, uint32_t offset) {
  return [=](const char* address) {
    const char* from = nullptr;
    each_piece(box, shared, offset, [&](char* at, char* line, uint32_t first, uint32_t last, uint32_t chunk) {
      const size_t byte = size_t(address - line);
      if (last > first && byte < box.row_bytes && byte / 16 * 16 == chunk) from = at + byte % 16;
    });
    return from;
  };
}

void fill_element(const Box& box, char* to, uint32_t bytes) {
  memset(to, 0, bytes);
  if (!box.map.fill_nan) return;
  for (uint32_t i = 0; i < bytes; i += box.element) {
    if (box.element == 2) { const uint16_t nan = box.map.type == 9 ? 0x7FFF : 0x7FF7; memcpy(to + i, &nan, 2); }
    else if (box.element == 4) { const uint32_t nan = 0x7FF7FFFF; memcpy(to + i, &nan, 4); }
    else { const uint64_t nan = 0x7FF7FFFFFFFFFFFFull; memcpy(to + i, &nan, 8); }
  }
}

void land_box(const Box& box, Block& block, uint32_t offset) {
  each_piece(box, block.shared, offset, [&](char* at, char* line, uint32_t first, uint32_t last, uint32_t chunk) {
    const uint32_t low = std::max(first, chunk), high = std::min(last, chunk + 16);
    if (low > chunk || high < chunk + 16) fill_element(box, at, 16);
    if (high > low) memcpy(at + (low - chunk), line + low, high - low);
  });
}

bool check_box_shared(Thread& thread, const Box& box, Block& block, uint32_t offset) {
  if (!checking()) return true;
  return check_range(thread, block.shared + offset, size_t(box.pitch) * box.rows, engine_of(thread).launch.engine_place, true, thread.site);
}

}  // namespace

}  // namespace emulator

using namespace emulator;

extern "C" {

void tw_box_load(tw_u32 to, const void* map, tw_u32 barrier_address, tw_u32 rank, const tw_i32* at, tw_u32 mask, TwSite position) {
  const Planted planted = enter(TW_BOX_LOAD, position);
  if (planted.skip) return;
  Thread& thread = *self;
  Box box = make_box(thread, map, rank, at);
  box.at[0] += planted.delta;
  box.map.swizzle ^= uint8_t(planted.flip);
  if (planted.flip) {
    const uint32_t span = box.map.swizzle ? 16u << box.map.swizzle : 0;
    box.swizzle_mask = span ? span / 16 - 1 : 0;
  }
  for (Block* block : destinations(thread, to, mask)) {
    check_live(thread, *block);
    TransactionBarrier* barrier = barrier_at(thread, address_in(*block, barrier_address), thread.site, "given to a copy", true);
    shared_pointer(thread, address_in(*block, to), 16, 1, thread.site);
    const uint32_t offset = to & 0xFFFFFF, copy = give_entry(*barrier);
    if (!check_box_shared(thread, box, *block, offset)) abort_cluster();
    if (checking()) {
      const uint32_t operation = complete_on(thread, *barrier, copy);
      thread.cluster->operations[operation].sources.push_back(loaded_from(box, block->shared, offset));
      each_row(box, [&](uint32_t, const char* from, uint32_t first, uint32_t last) {
        if (last > first && check_range(thread, from + first, last - first, 1, false, thread.site))
          operation_reads(thread, operation, from + first, last - first, slot_async);
      });
      touch_box(thread, box, *block, offset, operation, true);
    }
    Thread* issuer = &thread;
    pend(*thread.cluster, barrier, [=]() {
      land_box(box, *block, offset);
      event(*issuer, "tensor copy landed", 'i', "\"bytes\":" + number(box.row_bytes * box.rows));
      complete_bytes(*barrier, int64_t(box.row_bytes) * box.rows, copy);
    });
  }
  event(thread, "box_load", 'i', "\"bytes\":" + number(box.row_bytes * box.rows));
}

void tw_box_store(const void* map, tw_u32 from, tw_u32 rank, const tw_i32* at, tw_u32 reduction, TwSite position) {
  const Planted planted = enter(TW_BOX_STORE, position);
  if (planted.skip) return;
  Thread& thread = *self;
  Box box = make_box(thread, map, rank, at);
  box.at[0] += planted.delta;
  box.map.swizzle ^= uint8_t(planted.flip);
  if (planted.flip) {
    const uint32_t span = box.map.swizzle ? 16u << box.map.swizzle : 0;
    box.swizzle_mask = span ? span / 16 - 1 : 0;
  }
  for (uint32_t d = 0; d < rank; ++d)
    if (box.at[d] < 0) {
      report("tensor-map", &thread, thread.site, {{"what", text("a store begins at coordinate " + number(box.at[d]) + " of dimension " + number(d))}});
      abort_cluster();
    }
  shared_pointer(thread, from, 16, 1, thread.site);
  Block& block = *thread.block;
  const uint32_t offset = from & 0xFFFFFF;
  if (!check_box_shared(thread, box, block, offset)) abort_cluster();
  open_store_group(thread);
  const uint32_t reading = thread.open_stores.operation;
  // The innermost extent is honoured in whole units only.
  const uint32_t unit = engine_of(thread).launch.engine_unit;
  auto end_of = [unit](uint32_t last, uint32_t row_bytes) { return std::min((last + unit - 1) / unit * unit, row_bytes); };
  if (checking()) {
    touch_box(thread, box, block, offset, reading, false);
    each_row(box, [&](uint32_t, char* to, uint32_t first, uint32_t last) {
      const uint32_t end = end_of(last, box.row_bytes);
      if (last > first && check_range(thread, to, end, 1, true, thread.site))
        operation_writes(thread, reading + 1, {to, nullptr, end, 0}, slot_async | (reduction ? slot_atomic : 0));
    });
    if (!reduction) thread.cluster->operations[reading + 1].sources.push_back(stored_from(box, block.shared, offset));
  }
  auto buffer = std::make_shared<std::vector<char>>(size_t(box.row_bytes) * box.rows);
  Block* source = &block;
  issue_store(thread,
              [=]() {
                for (uint32_t row = 0; row < box.rows; ++row)
                  for (uint32_t chunk = 0; chunk < box.row_bytes; chunk += 16)
                    memcpy(buffer->data() + size_t(row) * box.row_bytes + chunk, source->shared + swizzled(box, offset + row * box.pitch + chunk), 16);
              },
              [=]() {
                each_row(box, [&](uint32_t row, char* to, uint32_t first, uint32_t last) {
                  if (last <= first) return;
                  const char* line = buffer->data() + size_t(row) * box.row_bytes;
                  if (reduction) reduce_into(to, line, last, box.element, box.map.type);
                  else memcpy(to, line, end_of(last, box.row_bytes));
                });
              });
  event(thread, "box_store", 'i', "\"bytes\":" + number(box.row_bytes * box.rows));
}

void tw_box_prefetch(const void* map, TwSite position) {
  enter(TW_BOX_PREFETCH, position);
  (void)map;
}

}  // extern "C"
