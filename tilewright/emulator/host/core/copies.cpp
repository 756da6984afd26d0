// Asynchronous copies of bytes: by threads in groups, in bulk, and the groups that stores are waited for in.
#include "copies.h"

#include <algorithm>
#include <cstring>

#include "convert.h"

namespace emulator {

namespace {

void land_piece(const CopyPiece& piece) {
  memcpy(piece.to, piece.from, piece.valid);
  memset(piece.to + piece.valid, 0, piece.bytes - piece.valid);
}

// The last moment for copies of a group: its thread waits.
void land_group(Thread& thread, CopyGroup& group) {
  for (const CopyPiece& piece : group.pieces) land_piece(piece);
  group.pieces.clear();
  if (group.operation && thread.cluster->operations[group.operation].entry == ~0u) {
    Operation& operation = thread.cluster->operations[group.operation];
    operation.thread = thread.index;
    operation.clock = thread.clock;
  }
}

void run_all(std::vector<std::function<void()>>& todo) {
  for (auto& step : todo) step();
  todo.clear();
}

void finish_reading(Thread& thread, CopyGroup& group) {
  run_all(group.read);
  Operation& operation = thread.cluster->operations[group.operation];
  if (!operation.clock) {
    operation.thread = thread.index;
    operation.clock = thread.clock;
  }
}

void finish_writing(Thread& thread, CopyGroup& group) {
  run_all(group.write);
  Operation& operation = thread.cluster->operations[group.operation + 1];
  operation.thread = thread.index;
  operation.clock = thread.clock;
}

TwNumber number_of_type(uint8_t type) {
  switch (type) {
    case 3: return TW_S32;
    case 6: return TW_F16;
    case 7: case 10: return TW_F32;
    case 8: return TW_F64;
    case 9: return TW_BF16;
    default: return TW_B1;
  }
}

}  // namespace

bool lands_at_once(Cluster& cluster) {
  const uint32_t schedule = cluster.engine->launch.schedule;
  return schedule == TW_EARLY || (schedule == TW_RANDOM && cluster.draw(2));
}

void open_store_group(Thread& thread) {
  if (thread.open_stores.operation) return;
  thread.open_stores.operation = thread.cluster->new_operation(thread.site);
  thread.cluster->new_operation(thread.site);
  thread.cluster->operations[thread.open_stores.operation].thread = thread.index;
  thread.cluster->operations[thread.open_stores.operation + 1].thread = thread.index;
}

void issue_store(Thread& thread, std::function<void()> read, std::function<void()> write) {
  CopyGroup& group = thread.open_stores;
  const bool now = lands_at_once(*thread.cluster);
  if (now) read();
  else group.read.push_back(std::move(read));
  if (now && lands_at_once(*thread.cluster)) write();
  else group.write.push_back(std::move(write));
}

uint32_t complete_on(Thread& thread, const TransactionBarrier& barrier, uint32_t copy) {
  const uint32_t number = thread.cluster->new_operation(thread.site);
  Operation& operation = thread.cluster->operations[number];
  operation.thread = thread.index;
  operation.entry = barrier.entry;
  operation.entry_clock = copy;
  return number;
}

void operation_reads(Thread& thread, uint32_t operation, const char* from, size_t bytes, uint8_t proxy) {
  Access access{uint8_t(slot_operation | proxy), thread.site};
  access.operation = operation;
  touch(thread, from, bytes, access);
}

void operation_writes(Thread& thread, uint32_t operation, const CopyPiece& piece, uint8_t proxy) {
  Access access{uint8_t(slot_write | slot_operation | proxy), thread.site};
  access.operation = operation;
  if (!(proxy & slot_atomic) && piece.from) access.piece = &piece;
  touch(thread, piece.to, piece.bytes, access);
  if (access.piece) thread.cluster->operations[operation].pieces.push_back(piece);
}

uint32_t give_entry(TransactionBarrier& barrier) {
  if (barrier.entry == ~0u) barrier.entry = barrier.block->cluster->new_entry();
  barrier.in_flight.push_back(++barrier.issued);
  return barrier.issued;
}

void reduce_into(char* to, const char* from, uint32_t bytes, uint32_t element, uint8_t type) {
  const TwNumber kind = number_of_type(type);
  for (uint32_t i = 0; i < bytes; i += element) {
    if (kind == TW_B1) {
      uint64_t a = 0, b = 0;
      memcpy(&a, to + i, element);
      memcpy(&b, from + i, element);
      a += b;
      memcpy(to + i, &a, element);
    } else {
      encode(kind, decode(kind, to + i) + decode(kind, from + i), to + i);
    }
  }
}

std::vector<Block*> destinations(Thread& thread, tw_u32 to, tw_u32 mask) {
  std::vector<Block*> all;
  if (!mask) return {&block_of_address(thread, to)};
  for (uint32_t rank = 0; rank < 32; ++rank)
    if (mask >> rank & 1) {
      if (rank >= thread.cluster->blocks.size()) {
        report("no-such-block", &thread, thread.site, {{"rank", number(rank)}, {"blocks", number(int64_t(thread.cluster->blocks.size()))}});
        abort_cluster();
      }
      all.push_back(&thread.cluster->blocks[rank]);
    }
  return all;
}

uint32_t address_in(const Block& block, tw_u32 address) { return (address & 0xFFFFFF) | (block.rank + 1) << 24; }

void check_live(Thread& thread, const Block& block) {
  if (block.live_threads == 0) report("exited-block", &thread, thread.site, {{"address", "{\"space\":\"shared\",\"block\":" + number(block.number) + ",\"offset\":0}"}});
}

void finish_copies(Thread& thread) {
  if (thread.cluster->engine->check) {
    const CopyGroup* unread = thread.open_stores.operation ? &thread.open_stores : nullptr;
    for (const CopyGroup& group : thread.stores)
      if (!thread.cluster->operations[group.operation].clock) unread = &group;
    if (unread) report("store-not-awaited", &thread, thread.cluster->operations[unread->operation].site, {});
  }
  for (CopyGroup& group : thread.stores) {
    run_all(group.read);
    run_all(group.write);
  }
  run_all(thread.open_stores.read);
  run_all(thread.open_stores.write);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void tw_copy_async(tw_u32 to, const void* from, tw_u32 bytes, tw_u32 valid, TwSite position) {
  const Planted planted = enter(TW_COPY_ASYNC, position);
  if (planted.skip) return;
  Thread& thread = *self;
  if (valid > bytes) valid = bytes;
  if (planted.delta) valid = uint32_t(std::max<int64_t>(0, std::min<int64_t>(bytes, int64_t(valid) + planted.delta)));
  char* target = shared_pointer(thread, to, bytes, bytes, thread.site);
  const CopyPiece piece = {target, static_cast<const char*>(from), bytes, valid};
  if (!thread.open_copies.operation) {
    thread.open_copies.operation = thread.cluster->new_operation(thread.site);
    thread.cluster->operations[thread.open_copies.operation].thread = thread.index;
  }
  if (checking()) {
    if (valid && check_range(thread, from, valid, bytes, false, thread.site))
      operation_reads(thread, thread.open_copies.operation, piece.from, valid, 0);
    operation_writes(thread, thread.open_copies.operation, piece, 0);
  }
  if (lands_at_once(*thread.cluster)) land_piece(piece);
  else thread.open_copies.pieces.push_back(piece);
  event(thread, "async_copy", 'i', "\"bytes\":" + number(bytes));
}

void tw_copy_commit(TwSite position) {
  if (enter(TW_COPY_COMMIT, position).skip) return;
  self->copies.push_back(std::move(self->open_copies));
  self->open_copies = CopyGroup();
}

void tw_copy_wait(tw_u32 pending, TwSite position) {
  const Planted planted = enter(TW_COPY_WAIT, position);
  if (planted.skip) return;
  Thread& thread = *self;
  const size_t may_remain = size_t(std::max<int64_t>(0, int64_t(pending) + planted.delta));
  while (thread.copies.size() > may_remain) {
    land_group(thread, thread.copies.front());
    thread.copies.pop_front();
  }
  event(thread, "async_copy_wait", 'i', "\"pending\":" + number(pending));
}

void tw_copy_wait_all(TwSite position) {
  if (enter(TW_COPY_WAIT, position).skip) return;
  Thread& thread = *self;
  for (CopyGroup& group : thread.copies) land_group(thread, group);
  thread.copies.clear();
  land_group(thread, thread.open_copies);
  thread.open_copies = CopyGroup();
  event(thread, "async_copy_wait", 'i', "\"pending\":0");
}

void tw_copy_arrive(tw_u32 address, tw_u32 noinc, TwSite position) {
  if (enter(TW_COPY_ARRIVE, position).skip) return;
  Thread& thread = *self;
  Cluster& cluster = *thread.cluster;
  TransactionBarrier* barrier = barrier_at(thread, address, thread.site, "arrived at", false);
  if (!noinc) ++barrier->pending;
  // All copies of this thread so far, committed or not.
  std::vector<CopyGroup> groups(thread.copies.begin(), thread.copies.end());
  if (thread.open_copies.operation) groups.push_back(thread.open_copies);
  for (CopyGroup& group : thread.copies) group.pieces.clear();
  thread.open_copies = CopyGroup();
  const uint32_t copy = give_entry(*barrier);
  for (const CopyGroup& group : groups) {
    // A group that was not waited for since stays in the list: it completes on the barrier that it was given to first.
    if (!group.operation || cluster.operations[group.operation].entry != ~0u) continue;
    cluster.operations[group.operation].entry = barrier->entry;
    cluster.operations[group.operation].entry_clock = copy;
    thread.arrivals.push_back(group.operation);
  }
  ClockRef base = thread.base;
  const uint32_t clock = thread.clock++, site = thread.site;
  const Fenced fenced = thread.fenced;
  Thread* issuer = &thread;
  pend(cluster, barrier, [=, &cluster]() {
    for (const CopyGroup& group : groups)
      for (const CopyPiece& piece : group.pieces) land_piece(piece);
    if (cluster.engine->check) barrier->gathering.add(cluster.clock_length, base, issuer->index, clock, fenced);
    auto& in_flight = barrier->in_flight;
    in_flight.erase(std::remove(in_flight.begin(), in_flight.end(), copy), in_flight.end());
    arrive(*barrier, nullptr, 1, site);
  });
}

static void bulk_arguments(Thread& thread, const void* global, tw_u32 shared, tw_u32 bytes) {
  const uint64_t unit = std::max<uint64_t>(engine_of(thread).launch.engine_unit, 1);
  if (uintptr_t(global) % unit || shared % unit || bytes % unit || bytes == 0)
    report("bulk-arguments", &thread, thread.site,
           {{"bytes", number(bytes)}, {"shared_offset", number(int64_t(shared & 0xFFFFFF) - engine_of(thread).launch.shared_base)}, {"global_remainder", number(int64_t(uintptr_t(global) % unit))}, {"unit", number(unit)}});
}

void tw_bulk_load(tw_u32 to, const void* from, tw_u32 bytes, tw_u32 barrier_address, tw_u32 mask, TwSite position) {
  const Planted planted = enter(TW_BULK_LOAD, position);
  if (planted.skip) return;
  bytes += uint32_t(planted.delta);
  Thread& thread = *self;
  bulk_arguments(thread, from, to, bytes);
  const bool readable = checking() && check_range(thread, from, bytes, 1, false, thread.site);
  for (Block* block : destinations(thread, to, mask)) {
    check_live(thread, *block);
    TransactionBarrier* barrier = barrier_at(thread, address_in(*block, barrier_address), thread.site, "given to a copy", true);
    char* target = shared_pointer(thread, address_in(*block, to), bytes, 16, thread.site);
    const uint32_t copy = give_entry(*barrier);
    if (checking()) {
      const uint32_t operation = complete_on(thread, *barrier, copy);
      if (readable) operation_reads(thread, operation, static_cast<const char*>(from), bytes, slot_async);
      operation_writes(thread, operation, {target, static_cast<const char*>(from), bytes, bytes}, slot_async);
    }
    Thread* issuer = &thread;
    pend(*thread.cluster, barrier, [=]() {
      memcpy(target, from, bytes);
      event(*issuer, "bulk copy landed", 'i', "\"bytes\":" + number(bytes));
      complete_bytes(*barrier, bytes, copy);
    });
  }
  event(thread, "bulk_load", 'i', "\"bytes\":" + number(bytes));
}

void tw_store_async(tw_u32 to, tw_u32 value, tw_u32 barrier_address, TwSite position) {
  const Planted planted = enter(TW_BULK_LOAD, position);
  if (planted.skip) return;
  Thread& thread = *self;
  check_live(thread, block_of_address(thread, to));
  TransactionBarrier* barrier = barrier_at(thread, barrier_address, thread.site, "given to a copy", true);
  char* target = shared_pointer(thread, to, 4, 4, thread.site);
  const uint32_t copy = give_entry(*barrier);
  if (checking()) {
    operation_writes(thread, complete_on(thread, *barrier, copy), {target, nullptr, 4, 4}, slot_async);
  }
  pend(*thread.cluster, barrier, [=]() {
    memcpy(target, &value, 4);
    complete_bytes(*barrier, 4, copy);
  });
}

// `reduction`: 0 overwrite, else 1 + the type of the elements that are added.
void tw_bulk_store(void* to, tw_u32 from, tw_u32 bytes, tw_u32 reduction, TwSite position) {
  const Planted planted = enter(TW_BULK_STORE, position);
  if (planted.skip) return;
  bytes += uint32_t(planted.delta);
  Thread& thread = *self;
  bulk_arguments(thread, to, from, bytes);
  char* source = shared_pointer(thread, from, bytes, 16, thread.site);
  char* target = static_cast<char*>(to);
  open_store_group(thread);
  const uint32_t reading = thread.open_stores.operation;
  if (checking()) {
    operation_reads(thread, reading, source, bytes, slot_async);
    if (check_range(thread, to, bytes, 1, true, thread.site))
      operation_writes(thread, reading + 1, {target, source, bytes, bytes}, slot_async | (reduction ? slot_atomic : 0));
  }
  auto buffer = std::make_shared<std::vector<char>>(bytes);
  issue_store(thread, [=]() { memcpy(buffer->data(), source, bytes); },
              [=]() {
                if (reduction) reduce_into(target, buffer->data(), bytes, reduction - 1 == 7 ? 4 : 2, uint8_t(reduction - 1));
                else memcpy(target, buffer->data(), bytes);
              });
  event(thread, "bulk_store", 'i', "\"bytes\":" + number(bytes));
}

void tw_store_commit(TwSite position) {
  if (enter(TW_STORE_COMMIT, position).skip) return;
  open_store_group(*self);
  self->stores.push_back(std::move(self->open_stores));
  self->open_stores = CopyGroup();
}

void tw_store_wait(tw_u32 pending, tw_u32 read_only, TwSite position) {
  const Planted planted = enter(TW_STORE_WAIT, position);
  if (planted.skip) return;
  Thread& thread = *self;
  const size_t may_remain = size_t(std::max<int64_t>(0, int64_t(pending) + planted.delta));
  const size_t complete = thread.stores.size() > may_remain ? thread.stores.size() - may_remain : 0;
  for (size_t i = 0; i < complete; ++i) {
    finish_reading(thread, thread.stores[i]);
    if (!read_only) finish_writing(thread, thread.stores[i]);
  }
  if (!read_only) thread.stores.erase(thread.stores.begin(), thread.stores.begin() + long(complete));
  event(thread, read_only ? "bulk_wait_read" : "bulk_wait", 'i', "\"pending\":" + number(pending));
}

}  // extern "C"
