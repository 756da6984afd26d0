// Who knows what: ordering by vector clocks, and by the completion of asynchronous operations.
#include "engine.h"

namespace emulator {

bool knows(const Thread& thread, uint32_t entry, uint32_t clock) {
  if (entry == thread.index) return clock <= thread.clock;
  return thread.base && thread.base->at[entry] >= clock;
}

bool knows_fenced(const Thread& thread, uint32_t entry, uint32_t clock) {
  if (entry == thread.index) return clock <= thread.fenced;
  return thread.base && thread.base->fenced[entry] >= clock;
}

// Whether what an ordinary access wrote was handed over, where it is known to have happened.
static bool published(const Thread& thread, const Slot& slot) {
  if (!Clock::weak_arrivals || !(slot.flags & slot_write) || (slot.flags & slot_async)) return true;
  for (uint32_t rest = slot.lanes; rest; rest &= rest - 1) {
    const uint32_t entry = slot.group * group_size + uint32_t(__builtin_ctz(rest));
    if (entry == thread.index) continue;
    if (!thread.base || (!thread.base->published.empty() && thread.base->published[entry] < slot.clock)) return false;
  }
  return true;
}

bool ordered(Thread& thread, const Slot& slot) {
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
  if (thread.base && thread.base->low[slot.group] >= slot.clock) return true;
  for (uint32_t rest = slot.lanes; rest; rest &= rest - 1)
    if (!knows(thread, slot.group * group_size + uint32_t(__builtin_ctz(rest)), slot.clock)) return false;
  return true;
}

bool fenced(const Thread& thread, const Slot& slot) {
  if (slot.flags & slot_operation) {                    // cp.async, which its thread fences after its wait
    const Operation& operation = thread.cluster->operations[slot.clock];
    if (operation.clock && knows_fenced(thread, operation.thread, operation.clock)) return true;
    // One that arrives by itself is fenced by its writer, once that has seen it arrive, or by those who use it.
    return operation.entry != ~0u && thread.at_proxy_fence && thread.at_proxy_fence->at[operation.entry] >= operation.entry_clock;
  }
  for (uint32_t rest = slot.lanes; rest; rest &= rest - 1)
    if (!knows_fenced(thread, slot.group * group_size + uint32_t(__builtin_ctz(rest)), slot.clock)) return false;
  return true;
}

void acquire(Thread& thread, const ClockRef& clock) { thread.base = join(thread.base, clock); }

void release(Thread& thread, Gathering& into, bool publishes) {
  const uint32_t length = thread.cluster->clock_length;
  into.add(length, thread.base, thread.index, thread.clock, thread.fenced, publishes);
  if (!publishes && thread.at_fence) into.add(length, thread.at_fence, thread.index, thread.fence_clock, 0);   // a fence before it does
  ++thread.clock;
}

ClockRef snapshot(Thread& thread) {
  Gathering one;
  one.add(thread.cluster->clock_length, thread.base, thread.index, thread.clock, thread.fenced);
  ++thread.clock;
  return one.finish();
}

}  // namespace emulator
