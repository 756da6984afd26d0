// Atomic updates, and accesses to global memory that order others: by release and acquire, blocks learn what others have done.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert.h"
#include "engine.h"

using namespace emulator;

namespace {

uint32_t size_of(uint32_t type) {
  switch (type) {
    case TW_AT_S64: case TW_AT_U64: case TW_AT_F64: return 8;
    case TW_AT_F16: case TW_AT_BF16: return 2;
    default: return 4;
  }
}

template <class T> T combine(uint32_t how, T old, T x, T compare) {
  switch (how) {
    case TW_ATOMIC_ADD: return T(old + x);
    case TW_ATOMIC_MIN: return x < old ? x : old;
    case TW_ATOMIC_MAX: return old < x ? x : old;
    case TW_ATOMIC_EXCHANGE: return x;
    case TW_ATOMIC_COMPARE: return old == compare ? x : old;
    default: return old;
  }
}

template <class T> T combine_bits(uint32_t how, T old, T x, T compare) {
  if (how == TW_ATOMIC_AND) return old & x;
  if (how == TW_ATOMIC_OR) return old | x;
  if (how == TW_ATOMIC_XOR) return old ^ x;
  return combine(how, old, x, compare);
}

template <class T, class F> void apply(void* address, const void* operand, const void* compare, F function) {
  T old, x, c = T();
  memcpy(&old, address, sizeof(T));
  memcpy(&x, operand, sizeof(T));
  if (compare) memcpy(&c, compare, sizeof(T));
  const T fresh = function(old, x, c);
  memcpy(address, &fresh, sizeof(T));
}

void update(uint32_t how, uint32_t type, void* address, const void* operand, const void* compare) {
  switch (type) {
    case TW_AT_S32: apply<int32_t>(address, operand, compare, [=](int32_t a, int32_t b, int32_t c) { return how == TW_ATOMIC_ADD ? int32_t(uint32_t(a) + uint32_t(b)) : combine_bits(how, a, b, c); }); return;
    case TW_AT_U32: apply<uint32_t>(address, operand, compare, [=](uint32_t a, uint32_t b, uint32_t c) { return combine_bits(how, a, b, c); }); return;
    case TW_AT_S64: apply<int64_t>(address, operand, compare, [=](int64_t a, int64_t b, int64_t c) { return how == TW_ATOMIC_ADD ? int64_t(uint64_t(a) + uint64_t(b)) : combine_bits(how, a, b, c); }); return;
    case TW_AT_U64: apply<uint64_t>(address, operand, compare, [=](uint64_t a, uint64_t b, uint64_t c) { return combine_bits(how, a, b, c); }); return;
    case TW_AT_F32: apply<float>(address, operand, compare, [=](float a, float b, float c) { return combine(how, a, b, c); }); return;
    case TW_AT_F64: apply<double>(address, operand, compare, [=](double a, double b, double c) { return combine(how, a, b, c); }); return;
    case TW_AT_F16: encode(TW_F16, combine(how, decode(TW_F16, address), decode(TW_F16, operand), 0.0), address); return;
    default: encode(TW_BF16, combine(how, decode(TW_BF16, address), decode(TW_BF16, operand), 0.0), address); return;
  }
}

// A clock of one cluster alone: foreign knowledge is kept beside it, never inside, or it would nest.
ClockRef alone(const ClockRef& clock) {
  if (clock->foreign.empty()) return clock;
  Clock* copy = new Clock(*clock.get());
  copy->references = 1;
  copy->foreign.clear();
  return ClockRef(copy);
}

void merge(std::vector<Foreign>& all, uint32_t cluster, const ClockRef& clock) {
  for (Foreign& known : all)
    if (known.cluster == cluster) {
      known.clock = join(known.clock, clock);
      return;
    }
  all.push_back({cluster, clock});
}

// What one address has been released with, by any cluster.
void publish(Thread& thread, const void* address, const ClockRef& now) {
  Engine& engine = engine_of(thread);
  std::lock_guard<std::mutex> hold(engine.atomics);
  std::vector<Foreign>& all = engine.released[uintptr_t(address)];
  merge(all, thread.cluster->number, alone(now));
  for (const Foreign& known : now->foreign) merge(all, known.cluster, known.clock);
  ++engine.progress;
}

void learn(Thread& thread, uintptr_t address) {
  Engine& engine = engine_of(thread);
  std::lock_guard<std::mutex> hold(engine.atomics);
  auto found = engine.released.find(address);
  if (found == engine.released.end()) return;
  Clock* others = new Clock(thread.cluster->clock_length);
  const ClockRef holder(others);
  for (const Foreign& known : found->second) {
    if (known.cluster == thread.cluster->number) acquire(thread, known.clock);
    else others->foreign.push_back(known);
  }
  others->settle();
  if (!others->foreign.empty()) acquire(thread, holder);
}

// What an atomic without an order of its own publishes: what its thread knew at its last fence, and of the other threads what they had
// fenced themselves before its thread learnt of it (writes, a fence each, a barrier, one thread's atomic).
ClockRef fenced_knowledge(Thread& thread) {
  Cluster& cluster = *thread.cluster;
  Clock* known = new Clock(cluster.clock_length);
  for (uint32_t t = 0; t < cluster.thread_count; ++t) {
    const uint32_t heard = t == thread.index ? thread.clock : thread.base ? thread.base->at[t] : 0;
    known->at[t] = std::min(heard, cluster.threads[t].fence_clock);
    if (!known->published.empty()) known->published[t] = known->at[t];
  }
  known->settle();
  return join(thread.at_fence, ClockRef(known));
}

void remember(Thread& thread, uintptr_t address) {
  std::vector<AtomicDone>& all = thread.cluster->atomics;
  for (AtomicDone& done : all)
    if (done.address == address && done.thread == thread.index) {
      done.clock = thread.clock;
      return;
    }
  if (all.size() < 4096) all.push_back({address, thread.index, thread.clock});
}

}  // namespace

namespace emulator {

// Whether the kernels before have ended for a thread: it waited for them, or comes after one that did.
bool after_grid_wait(Thread& thread) {
  if (thread.grid_waited) return true;
  for (const Thread* waiter : thread.cluster->grid_waiters)
    if (knows(thread, waiter->index, waiter->grid_waited)) {
      thread.grid_waited = thread.clock;
      return true;
    }
  return false;
}

void fence_memory(Thread& thread) {
  for (const AtomicDone& done : thread.cluster->atomics)
    if (knows(thread, done.thread, done.clock)) learn(thread, done.address);
  thread.fence_clock = thread.clock;
  thread.at_fence = snapshot(thread);
  thread.cluster->fences = true;
}

}  // namespace emulator

extern "C" {

void tw_atomic(tw_u32 how, tw_u32 type, tw_u32 order, void* address, const void* operand, const void* compare, void* old, tw_u32 count, TwSite position) {
  if (enter(TW_ATOMIC, position).skip) return;
  Thread& thread = *self;
  const uint32_t size = size_of(type), bytes = size * count;
  if (checking()) {
    if (order & TW_RELEASES) publish(thread, address, snapshot(thread));
    else if (thread.cluster->fences) publish(thread, address, fenced_knowledge(thread));
    if (check_range(thread, address, bytes, bytes <= 16 ? bytes : 16, true, thread.site)) touch(thread, thread.part ? thread.part : address, thread.part ? thread.part_bytes : bytes, Access{slot_write | slot_atomic, thread.site});
  }
  {
    std::lock_guard<std::mutex> hold(engine_of(thread).atomics);
    if (old) memcpy(old, address, bytes);
    for (uint32_t i = 0; i < count; ++i)
      update(how, type, static_cast<char*>(address) + i * size, static_cast<const char*>(operand) + i * size, compare);
  }
  ++engine_of(thread).progress;
  if (!checking()) return;
  if (order & TW_ACQUIRES) learn(thread, uintptr_t(address));
  else if (engine_of(thread).launch.fences_memory) remember(thread, uintptr_t(address));
}

void tw_atomic_part(const void* part, tw_u32 bytes) {
  self->part = part;
  self->part_bytes = bytes;
}

void tw_set_bits(unsigned char* byte, tw_u32 mask, tw_u32 bits, TwSite position) {
  if (enter(TW_ATOMIC, position).skip) return;
  if (checking() && check_range(*self, byte, 1, 1, true, self->site))
    touch(*self, byte, 1, Access{slot_write | slot_atomic, self->site, 0, nullptr, uint8_t(mask)});
  std::lock_guard<std::mutex> hold(engine_of(*self).atomics);
  *byte = uint8_t((*byte & ~mask) | bits);
  ++engine_of(*self).progress;
}

tw_u32 tw_get_bits(const unsigned char* byte, tw_u32 mask, TwSite position) {
  enter(TW_LOAD, position);
  if (checking() && check_range(*self, byte, 1, 1, false, self->site))
    touch(*self, byte, 1, Access{0, self->site, 0, nullptr, uint8_t(mask)});
  return *byte & mask;
}

void tw_load_acquire(void* to, const void* from, tw_u32 bytes, TwSite position) {
  if (enter(TW_ACQUIRE, position).skip) return;
  Thread& thread = *self;
  if (checking() && check_range(thread, from, bytes, bytes, false, thread.site)) touch(thread, from, bytes, Access{slot_atomic, thread.site});
  poll();                                             // another block may change it first
  {
    std::lock_guard<std::mutex> hold(engine_of(thread).atomics);
    memcpy(to, from, bytes);
  }
  if (checking()) learn(thread, uintptr_t(from));
}

void tw_store_release(void* to, const void* from, tw_u32 bytes, TwSite position) {
  if (enter(TW_RELEASE, position).skip) return;
  Thread& thread = *self;
  if (checking()) {
    publish(thread, to, snapshot(thread));
    if (check_range(thread, to, bytes, bytes, true, thread.site)) touch(thread, to, bytes, Access{slot_write | slot_atomic, thread.site});
  }
  std::lock_guard<std::mutex> hold(engine_of(thread).atomics);
  memcpy(to, from, bytes);
  ++engine_of(thread).progress;
}

void tw_grid_wait(TwSite position) {
  if (enter(TW_GRID_WAIT, position).skip || self->grid_waited) return;
  self->grid_waited = self->clock;
  self->cluster->grid_waiters.push_back(self);
}
void tw_grid_launch(TwSite position) { enter(TW_GRID_LAUNCH, position); }

}  // extern "C"
