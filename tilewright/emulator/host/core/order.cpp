// Who knows what: ordering by vector clocks, and by the completion of asynchronous operations.
#include "engine.h"

namespace emulator {

bool knows(const Thread& thread, uint32_t entry, uint32_t clock) {
  if (entry == thread.index) return clock <= thread.clock;
  return thread.base && thread.base->at[entry] >= clock;
}

static bool knows_fenced(const Thread& thread, uint32_t entry, uint32_t clock, Space space) {
  if (entry == thread.index) return clock <= thread.fenced.of[int(space)];
  return thread.base && thread.base->fenced[entry].of[int(space)] >= clock;
}

template <class F> static bool every_lane(const Slot& slot, F holds) {
  for (uint32_t rest = slot.lanes; rest; rest &= rest - 1)
    if (!holds(slot.group * group_size + uint32_t(__builtin_ctz(rest)))) return false;
  return true;
}

// Whether what an ordinary access wrote was handed over, where it is known to have happened.
static bool published(const Thread& thread, const Slot& slot) {
  if (!Clock::follow_publishing || !(slot.flags & slot_write) || (slot.flags & (slot_async | slot_barrier))) return true;
  return every_lane(slot, [&](uint32_t entry) { return entry == thread.index || (thread.base && thread.base->published[entry] >= slot.clock); });
}

bool ordered(Thread& thread, const Slot& slot, Space space) {
  if (slot.flags & slot_operation) {
    Operation& operation = thread.cluster->operations[slot.clock];
    if (operation.entry != ~0u) return knows(thread, operation.entry, operation.entry_clock);
    if (!operation.clocks) return operation.clock && knows(thread, operation.thread, operation.clock);
    if (operation.known && operation.known == thread.base.get()) return true;
    for (uint32_t lane = 0; lane < operation.lanes; ++lane)
      if (operation.clocks[lane] && knows(thread, operation.thread + lane, operation.clocks[lane])) {
        if (operation.thread + lane != thread.index) {
          operation.known_reference = thread.base;
          operation.known = thread.base.get();
        }
        return true;
      }
    return false;
  }
  if (!published(thread, slot)) return false;
  if (Clock::follow_spaces) return every_lane(slot, [&](uint32_t entry) { return entry == thread.index || knows_fenced(thread, entry, slot.clock, space); });
  if (thread.base && thread.base->low[slot.group] >= slot.clock) return true;
  return every_lane(slot, [&](uint32_t entry) { return knows(thread, entry, slot.clock); });
}

bool fenced(const Thread& thread, const Slot& slot, Space space) {
  if (slot.flags & slot_operation) {                    // a thread's own copy, which it fences after its wait
    const Operation& operation = thread.cluster->operations[slot.clock];
    if (operation.clock && knows_fenced(thread, operation.thread, operation.clock, space)) return true;
    // One that arrives by itself is fenced by its writer, once that has seen it arrive, or by those who use it.
    const ClockRef& known = thread.at_proxy_fence[int(space)];
    return operation.entry != ~0u && known && known->at[operation.entry] >= operation.entry_clock;
  }
  return every_lane(slot, [&](uint32_t entry) { return knows_fenced(thread, entry, slot.clock, space); });
}

static const Clock* known_of(const ClockRef& base, uint32_t cluster) {
  if (base)
    for (const Foreign& foreign : base->foreign)
      if (foreign.cluster == cluster) return foreign.clock.get();
  return nullptr;
}

bool ordered_foreign(Thread& thread, uint32_t cluster, const Slot& slot) {
  const Clock* theirs = known_of(thread.base, cluster);
  if (!theirs) return false;
  if (slot.flags & slot_operation) {
    const Operation& operation = (*engine_of(thread).histories.at(cluster))[slot.clock];
    if (operation.entry != ~0u) return theirs->at[operation.entry] >= operation.entry_clock;
    if (!operation.clocks) return operation.clock && theirs->at[operation.thread] >= operation.clock;
    for (uint32_t lane = 0; lane < operation.lanes; ++lane)
      if (operation.clocks[lane] && theirs->at[operation.thread + lane] >= operation.clocks[lane]) return true;
    return false;
  }
  return every_lane(slot, [&](uint32_t entry) { return theirs->at[entry] >= slot.clock; });
}

// An ordinary write to global memory reaches the asynchronous proxy of another cluster by a fence of its writer before the release, or
// by one of the reader after the acquire.
bool fenced_foreign(Thread& thread, uint32_t cluster, const Slot& slot) {
  const Clock* theirs = known_of(thread.base, cluster);
  const Clock* at_fence = known_of(thread.at_proxy_fence[int(Space::global)], cluster);
  return every_lane(slot, [&](uint32_t entry) {
    return (theirs && theirs->fenced[entry].of[int(Space::global)] >= slot.clock) || (at_fence && at_fence->at[entry] >= slot.clock);
  });
}

// Where a copy's byte for an address comes from; null where that is not known.
static const char* brought(const Operation& operation, const char* address) {
  for (auto piece = operation.pieces.rbegin(); piece != operation.pieces.rend(); ++piece)
    if (size_t(address - piece->to) < piece->bytes) return piece->at(address);
  for (auto source = operation.sources.rbegin(); source != operation.sources.rend(); ++source)
    if (const char* from = (*source)(address)) return from;
  return nullptr;
}

// Whether two copies bring the same bytes to one place, so that their order does not matter.
bool bring_the_same(const Operation& before, const Operation& now, const CopyPiece* piece, const char* address, uint8_t bytes) {
  for (int left = __builtin_popcount(bytes); left; --left, ++address) {
    const char *theirs = brought(before, address), *mine = piece ? piece->at(address) : brought(now, address);
    if (theirs != mine && (!theirs || !mine || *theirs != *mine)) return false;
  }
  return true;
}

void acquire(Thread& thread, const ClockRef& clock) { thread.base = join(thread.base, clock); }

void release(Thread& thread, Gathering& into, bool publishes) {
  const uint32_t length = thread.cluster->clock_length;
  into.add(length, thread.base, thread.index, thread.clock, thread.fenced, publishes);
  if (!publishes && thread.at_fence) into.add(length, thread.at_fence, thread.index, thread.fence_clock, Fenced());   // a fence before it does
  ++thread.clock;
}

ClockRef of_block(const Block& block, const ClockRef& clock) {
  if (!clock || clock->published.empty()) return clock;
  Clock* here = new Clock(*clock.get());
  here->references = 1;
  const Thread* first = block.warps.front()->threads;
  const uint32_t low = first->index, high = low + first->visible.block_dim.x * first->visible.block_dim.y * first->visible.block_dim.z;
  for (uint32_t entry = 0; entry < block.cluster->thread_count; ++entry)
    if (entry < low || entry >= high) here->published[entry] = 0;
  return ClockRef(here);
}

ClockRef snapshot(Thread& thread) {
  Gathering one;
  one.add(thread.cluster->clock_length, thread.base, thread.index, thread.clock, thread.fenced);
  ++thread.clock;
  return one.finish();
}

}  // namespace emulator
