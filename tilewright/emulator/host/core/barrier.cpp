// Barriers: of the block, named, of the cluster, and signals: barriers in memory that count arrivals and bytes.
#include <algorithm>
#include <cstring>

#include "engine.h"

namespace emulator {

namespace {

// A barrier of the whole block that some of its threads never come to, or that warps take for different ones.
void check_everybody(Block& block, const NamedBarrier& barrier) {
  const Thread* here = barrier.waiting.front();
  uint32_t skipped = 0, first = 0;
  for (const Warp* warp : block.warps) {
    const uint32_t before = uint32_t(warp->threads - block.warps[0]->threads);
    bool arrived = false;
    for (uint32_t lane = 0; lane < warp->lanes; ++lane) {
      if (barrier.arrivals[before + lane]) arrived = true;
      else if (!warp->threads[lane].left && !skipped++) first = before + lane;
    }
    if (arrived && barrier.sites[warp->index] != barrier.site) {
      report("different-barriers", &warp->threads[0], barrier.sites[warp->index], {{"other_site", number(barrier.site)}});
      return;
    }
  }
  if (skipped) report("skipped-barrier", here, barrier.site, {{"threads", number(skipped)}, {"first", number(first)}});
}

void complete(Block& block, NamedBarrier& barrier) {
  if (checking() && !barrier.expected && !barrier.waiting.empty()) check_everybody(block, barrier);
  const ClockRef known = barrier.gathering.finish();
  std::vector<Thread*> waiting;
  waiting.swap(barrier.waiting);
  barrier.arrived = barrier.expected = 0;
  ++barrier.generation;
  std::fill(barrier.arrivals.begin(), barrier.arrivals.end(), 0);
  for (Thread* thread : waiting) {
    if (known) thread->base = known;
    wake(*thread);
  }
}

// `threads` 0 means all that have not left.
void arrive_named(uint32_t id, uint32_t threads, bool waits, bool strict) {
  Thread& thread = *self;
  Block& block = *thread.block;
  if (id >= block.named.size() || (threads % thread.warp->cluster->engine->launch.warp_size) != 0) {
    report("barrier-arguments", &thread, thread.site, {{"id", number(id)}, {"threads", number(threads)}, {"last", number(int64_t(block.named.size()) - 1)}});
    abort_cluster();
  }
  NamedBarrier& barrier = block.named[id];
  const uint32_t in_block = uint32_t(&thread - block.warps[0]->threads);
  if (barrier.arrivals.empty()) {
    barrier.arrivals.resize(block.warps.size() * engine_of(thread).launch.warp_size);
    barrier.sites.resize(block.warps.size());
  }
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.site = thread.site;
  } else if (barrier.expected != threads) {
    report("barrier-counts", &thread, thread.site,
           {{"id", number(id)}, {"threads", number(threads)}, {"other_threads", number(barrier.expected)}, {"other_site", number(barrier.site)}});
    abort_cluster();
  }
  if (barrier.arrivals[in_block]) {
    report("barrier-twice", &thread, thread.site, {{"id", number(id)}});
    abort_cluster();
  }
  if (strict) {
    const uint32_t first = in_block - thread.lane;
    bool alone = true;
    for (uint32_t lane = 0; lane < thread.warp->lanes; ++lane) alone &= !barrier.arrivals[first + lane];
    if (alone) barrier.sites[thread.warp->index] = thread.site;
    else if (barrier.sites[thread.warp->index] != thread.site) {
      report("divergent-collective", &thread, thread.site,
             {{"operation", number(thread.operation)}, {"other_operation", number(thread.operation)}, {"other_site", number(barrier.sites[thread.warp->index])}, {"lanes", "0"}});
      abort_cluster();
    }
  }
  barrier.arrivals[in_block] = 1;
  ++barrier.arrived;
  if (checking()) release(thread, barrier.gathering);
  const uint32_t wanted = threads ? threads : block.live_threads;
  if (barrier.arrived > wanted) {
    report("barrier-counts", &thread, thread.site,
           {{"id", number(id)}, {"threads", number(threads)}, {"other_threads", number(barrier.arrived)}, {"other_site", number(barrier.site)}});
    abort_cluster();
  }
  if (waits) barrier.waiting.push_back(&thread);
  if (barrier.arrived == wanted) {
    if (waits) barrier.waiting.pop_back();
    const ClockRef before = thread.base;
    if (waits) {
      barrier.waiting.push_back(&thread);             // learns what the others know; its own wake is harmless
      complete(block, barrier);
    } else {
      complete(block, barrier);
    }
    return;
  }
  if (waits) block_thread(thread, Waiting::block_barrier, &barrier, id);
}

bool cluster_complete(Cluster& cluster) {
  NamedBarrier& barrier = cluster.meeting_point;
  if (barrier.arrived == 0 || barrier.arrived < cluster.live) return false;
  cluster.met = barrier.gathering.finish();
  barrier.arrived = 0;
  ++barrier.generation;
  std::vector<Thread*> waiting;
  waiting.swap(barrier.waiting);
  for (Thread* thread : waiting) wake(*thread);
  return true;
}

}  // namespace

void thread_left_barriers(Thread& thread) {
  NamedBarrier& barrier = thread.block->named[0];
  if (barrier.arrived && barrier.expected == 0 && barrier.arrived == thread.block->live_threads) complete(*thread.block, barrier);
  cluster_complete(*thread.cluster);
}

// ---- transaction barriers

TransactionBarrier* barrier_at(Thread& thread, uint32_t address, uint32_t site, const char* what, bool remote_or_copy) {
  Block& block = block_of_address(thread, address);
  const uint32_t offset = address & 0xFFFFFF;
  auto found = block.barriers.find(offset);
  if (found == block.barriers.end() || !found->second->valid) {
    report("no-barrier", &thread, site,
           {{"address", "{\"space\":\"shared\",\"block\":" + number(block.number) + ",\"offset\":" + number(int64_t(offset) - engine_of(thread).launch.shared_base) + "}"},
            {"what", text(what)}});
    abort_cluster();
  }
  TransactionBarrier& barrier = *found->second;
  if (engine_of(thread).check && barrier.initialiser) {
    if (!knows(thread, barrier.initialiser->index, barrier.initialised_at))
      report("barrier-not-visible", &thread, site, {{"other_site", number(barrier.init_site)}, {"what", text(what)}});
    else if ((remote_or_copy || block.cluster != thread.cluster || block.rank != thread.block->rank) && !barrier.fenced)
      report("barrier-not-fenced", &thread, site, {{"other_site", number(barrier.init_site)}, {"what", text(what)}});
  }
  return &barrier;
}

namespace {

// A thread learns of a phase; copies of its own that completed on it have landed for it from now on.
void learn_phase(Thread& thread, TransactionBarrier& barrier, uint32_t scope) {
  if (!scope && !barrier.completed_here) barrier.completed_here = of_block(*thread.block, barrier.completed);
  acquire(thread, scope ? barrier.completed : barrier.completed_here);
  auto landed = [&](uint32_t number) {
    Operation& operation = thread.cluster->operations[number];
    if (!knows(thread, operation.entry, operation.entry_clock)) return false;
    operation.clock = thread.clock;
    return true;
  };
  thread.arrivals.erase(std::remove_if(thread.arrivals.begin(), thread.arrivals.end(), landed), thread.arrivals.end());
}

void try_complete(TransactionBarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  Cluster& cluster = *barrier.block->cluster;
  if (barrier.entry != ~0u) {
    uint32_t landed = barrier.issued;
    for (uint32_t copy : barrier.in_flight) landed = std::min(landed, copy - 1);
    barrier.gathering.add(cluster.clock_length, ClockRef(), barrier.entry, landed, Fenced::both(landed));
  }
  barrier.completed = barrier.gathering.finish();
  barrier.completed_here = ClockRef();
  ++barrier.phase;
  barrier.pending = barrier.expected;
  const uint64_t done = (barrier.phase - 1) & 1;
  std::vector<Thread*> still;
  for (Thread* thread : barrier.waiting) {
    if (thread->awaited_value == done) wake(*thread);
    else still.push_back(thread);
  }
  barrier.waiting.swap(still);
}

void expect(TransactionBarrier& barrier, int64_t bytes, uint32_t site) {
  barrier.bytes += bytes;
  barrier.tx_site = site;
  const int64_t most = engine_of(*self).launch.signal_most;
  if (barrier.bytes > most || barrier.bytes < -most) report("bytes-out-of-range", self, site, {{"bytes", number(barrier.bytes)}, {"most", number(most)}});
}

}  // namespace

void complete_bytes(TransactionBarrier& barrier, int64_t bytes, uint32_t copy_number) {
  barrier.bytes -= bytes;
  auto found = std::find(barrier.in_flight.begin(), barrier.in_flight.end(), copy_number);
  if (found != barrier.in_flight.end()) barrier.in_flight.erase(found);
  try_complete(barrier);
}

void arrive(TransactionBarrier& barrier, Thread* thread, uint32_t count, uint32_t site, bool publishes) {
  if (thread && thread->cluster->engine->check) release(*thread, barrier.gathering, publishes);
  barrier.arrive_site = site;
  if (count > barrier.pending) {
    report("too-many-arrivals", thread ? thread : self, site,
           {{"pending", number(barrier.pending)}, {"expected", number(barrier.expected)}, {"count", number(count)}, {"bytes", number(barrier.bytes)},
            {"offset", number(int64_t(barrier.offset) - barrier.block->cluster->engine->launch.shared_base)}, {"init_site", number(barrier.init_site)}});
    count = barrier.pending;
  }
  barrier.pending -= count;
  try_complete(barrier);
}

void check_barriers_at_exit(Cluster& cluster) {
  if (!cluster.engine->check) return;
  for (Block& block : cluster.blocks)
    for (auto& [offset, barrier] : block.barriers) {
      if (!barrier->valid) continue;
      const Fact where = {"offset", number(int64_t(offset) - cluster.engine->launch.shared_base)};
      if (!barrier->in_flight.empty()) {
        report("copy-in-flight-at-exit", barrier->initialiser, barrier->tx_site ? barrier->tx_site : barrier->init_site,
               {where, {"copies", number(int64_t(barrier->in_flight.size()))}, {"other_site", number(barrier->init_site)}});
      } else if (barrier->bytes) {
        report("bytes-do-not-match", barrier->initialiser, barrier->tx_site ? barrier->tx_site : barrier->init_site,
               {where, {"bytes", number(barrier->bytes)}, {"other_site", number(barrier->init_site)}});
      }
    }
}

// A change of the budget is one of a whole group: all of its warps make it, one after the other the same ones.
void check_budgets(Cluster& cluster) {
  const uint32_t together = cluster.engine->launch.group_warps;
  if (!together) return;
  for (Block& block : cluster.blocks)
    for (uint32_t w = 0; w < block.warps.size(); ++w) {
      const Warp &first = *block.warps[w / together * together], &warp = *block.warps[w];
      if (warp.budgets == first.budgets) continue;
      const Warp& more = warp.budgets.size() > first.budgets.size() ? warp : first;
      report("budget-of-part", &more.threads[0], more.budgets.back().first, {{"warps", number(int64_t(&more == &warp ? w : w / together * together))}, {"together", number(together)}});
      break;
    }
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void tw_order_memory(tw_u32 shared, tw_u32 global) {
  if (shared) self->fenced.of[int(Space::shared)] = self->clock;
  if (global) self->fenced.of[int(Space::global)] = self->clock;
}

void tw_sync_threads(TwSite position) {
  if (enter(TW_SYNC_THREADS, position).skip) return;
  event(*self, "sync_threads", 'B');
  arrive_named(0, 0, true, true);
  event(*self, "sync_threads", 'E');
}

tw_u32 tw_sync_threads_count(tw_u32 predicate, tw_u32 how, TwSite position) {
  if (enter(TW_SYNC_THREADS, position).skip) return how == 0 ? predicate != 0 : predicate;
  Block& block = *self->block;
  block.votes[block.vote_round % 2][0] += predicate != 0;
  block.votes[block.vote_round % 2][1] += 1;
  const uint32_t round = block.vote_round;
  if (block.votes[round % 2][1] == block.live_threads) {
    ++block.vote_round;
    block.votes[block.vote_round % 2][0] = block.votes[block.vote_round % 2][1] = 0;
  }
  arrive_named(0, 0, true, true);
  const uint32_t yes = block.votes[round % 2][0], all = block.votes[round % 2][1];
  return how == 0 ? yes : how == 1 ? yes == all : yes != 0;
}

void tw_named_sync(tw_u32 id, tw_u32 threads, TwSite position) {
  const Planted planted = enter(TW_NAMED_SYNC, position);
  if (planted.skip) return;
  event(*self, "named_barrier_sync", 'B', "\"id\":" + number(id));
  arrive_named(id ^ uint32_t(planted.flip), threads + uint32_t(planted.delta), true, true);
  event(*self, "named_barrier_sync", 'E');
}

void tw_named_arrive(tw_u32 id, tw_u32 threads, TwSite position) {
  const Planted planted = enter(TW_NAMED_ARRIVE, position);
  if (planted.skip) return;
  event(*self, "named_barrier_arrive", 'i', "\"id\":" + number(id));
  arrive_named(id ^ uint32_t(planted.flip), threads + uint32_t(planted.delta), false, true);
}

static void cluster_arrive(TwSite position, bool publishes) {
  if (enter(TW_CLUSTER_ARRIVE, position).skip) return;
  Thread& thread = *self;
  NamedBarrier& barrier = thread.cluster->meeting_point;
  if (thread.cluster_arrival == barrier.generation + 1) {
    report("cluster-arrive-twice", &thread, thread.site, {});
    abort_cluster();
  }
  thread.cluster_arrival = barrier.generation + 1;
  ++barrier.arrived;
  event(thread, "cluster_arrive", 'i');
  if (checking()) release(thread, barrier.gathering, publishes);
  cluster_complete(*thread.cluster);
}

void tw_cluster_arrive(TwSite position) { cluster_arrive(position, true); }

void tw_cluster_arrive_relaxed(TwSite position) { cluster_arrive(position, false); }

void tw_cluster_wait(TwSite position) {
  if (enter(TW_CLUSTER_WAIT, position).skip) return;
  Thread& thread = *self;
  NamedBarrier& barrier = thread.cluster->meeting_point;
  if (!thread.cluster_arrival) {
    report("cluster-wait-alone", &thread, thread.site, {});
    abort_cluster();
  }
  event(thread, "cluster_wait", 'B');
  if (thread.cluster_arrival == barrier.generation + 1) {
    barrier.waiting.push_back(&thread);
    block_thread(thread, Waiting::cluster_barrier, &barrier);
  }
  if (checking()) acquire(thread, thread.cluster->met);
  thread.cluster_arrival = 0;
  event(thread, "cluster_wait", 'E');
}

void tw_signal_init(tw_u32 address, tw_u32 count, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_INIT, position);
  if (planted.skip) return;
  count += uint32_t(planted.delta);
  Thread& thread = *self;
  char* pointer = shared_pointer(thread, address, 8, 8, thread.site);
  Block& block = block_of_address(thread, address);
  const uint32_t offset = address & 0xFFFFFF;
  const uint32_t most = engine_of(thread).launch.signal_most;
  if (count < 1 || count > most) report("barrier-count", &thread, thread.site, {{"count", number(count)}, {"most", number(most)}});
  std::unique_ptr<TransactionBarrier>& slot = block.barriers[offset];
  if (slot && slot->valid) report("barrier-in-use", &thread, thread.site, {{"other_site", number(slot->init_site)}});
  if (slot && (!slot->waiting.empty() || !slot->in_flight.empty())) abort_cluster();  // they would wait for what is no more
  const uint32_t entry = slot ? slot->entry : ~0u, issued = slot ? slot->issued : 0;
  slot = std::make_unique<TransactionBarrier>();
  slot->entry = entry;
  slot->issued = issued;
  slot->block = &block;
  slot->offset = offset;
  slot->expected = slot->pending = count;
  slot->initialiser = &thread;
  slot->initialised_at = thread.clock;
  slot->init_site = thread.site;
  slot->valid = true;
  if (checking()) touch(thread, pointer, 8, Access{slot_write | slot_barrier, thread.site});
  memset(pointer, 0xB7, 8);
}

void tw_signal_invalidate(tw_u32 address, TwSite position) {
  if (enter(TW_SIGNAL_INVALIDATE, position).skip) return;
  TransactionBarrier& barrier = *barrier_at(*self, address, self->site, "invalidated", false);
  if (!barrier.waiting.empty() || !barrier.in_flight.empty())
    report("barrier-in-use", self, self->site, {{"other_site", number(barrier.init_site)}});
  barrier.valid = false;
}

static uint64_t arrive_with(tw_u32 address, uint32_t count, int64_t bytes, bool expects, bool publishes = true) {
  Thread& thread = *self;
  TransactionBarrier& barrier = *barrier_at(thread, address, thread.site, "arrived at", false);
  if (checking()) {
    char* pointer = barrier.block->shared + barrier.offset;
    touch(thread, pointer, 8, Access{slot_write | slot_atomic | slot_barrier, thread.site});
  }
  if (expects) expect(barrier, bytes, thread.site);
  const uint64_t state = barrier.phase << 24 | barrier.pending;
  if (count) arrive(barrier, &thread, count, thread.site, publishes || barrier.block == thread.block);
  else try_complete(barrier);
  return state;
}

tw_u64 tw_signal_arrive(tw_u32 address, tw_u32 count, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_ARRIVE, position);
  if (planted.skip) return 0;
  event(*self, "signal_arrive", 'i', "\"barrier\":" + number(address));
  return arrive_with(address, count + uint32_t(planted.delta), 0, false);
}

void tw_signal_arrive_remote(tw_u32 address, tw_u32 count, tw_u32 publishes, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_ARRIVE_REMOTE, position);
  if (planted.skip) return;
  event(*self, "signal_arrive_cluster", 'i', "\"barrier\":" + number(address));
  if (block_of_address(*self, address).live_threads == 0) report("exited-block", self, self->site, {{"address", "{\"space\":\"cluster\",\"offset\":" + number(address & 0xFFFFFF) + "}"}});
  arrive_with(address, count + uint32_t(planted.delta), 0, false, publishes);
}

void tw_signal_expect_tx(tw_u32 address, tw_u32 bytes, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_EXPECT, position);
  if (!planted.skip) arrive_with(address, 0, int64_t(bytes) + planted.delta, true);
}

tw_u64 tw_signal_arrive_expect_tx(tw_u32 address, tw_u32 bytes, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_ARRIVE_EXPECT, position);
  if (planted.skip) return 0;
  event(*self, "signal_arrive_expect_tx", 'i', "\"barrier\":" + number(address) + ",\"bytes\":" + number(bytes));
  return arrive_with(address, 1, int64_t(bytes) + planted.delta, true);
}

void tw_signal_complete_tx(tw_u32 address, tw_u32 bytes, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_COMPLETE, position);
  if (planted.skip) return;
  TransactionBarrier& barrier = *barrier_at(*self, address, self->site, "completed", false);
  complete_bytes(barrier, int64_t(bytes) + planted.delta, 0);
}

static bool completed(const TransactionBarrier& barrier, uint32_t parity) { return (barrier.phase & 1) != (parity & 1); }

void tw_signal_wait(tw_u32 address, tw_u32 parity, tw_u32 scope, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_WAIT, position);
  if (planted.skip) return;
  Thread& thread = *self;
  parity = (parity ^ uint32_t(planted.flip)) & 1;
  TransactionBarrier& barrier = *barrier_at(thread, address, thread.site, "waited for", false);
  event(thread, "signal_wait", 'B', "\"barrier\":" + number(address) + ",\"parity\":" + number(parity));
  while (!completed(barrier, parity)) {
    barrier.waiting.push_back(&thread);
    block_thread(thread, Waiting::transaction_barrier, &barrier, parity);
  }
  if (checking()) learn_phase(thread, barrier, scope);
  event(thread, "signal_wait", 'E');
}

tw_u32 tw_signal_try_wait(tw_u32 address, tw_u32 parity, tw_u32 scope, TwSite position) {
  tw_signal_wait(address, parity, scope, position);        // may suspend as long as it likes
  return 1;
}

tw_u32 tw_signal_test_wait(tw_u32 address, tw_u32 parity, tw_u32 scope, TwSite position) {
  const Planted planted = enter(TW_SIGNAL_TEST_WAIT, position);
  if (planted.skip) return 1;
  TransactionBarrier& barrier = *barrier_at(*self, address, self->site, "tested", false);
  parity ^= uint32_t(planted.flip);
  if (!completed(barrier, parity)) poll();
  if (!completed(barrier, parity)) return 0;
  if (checking()) learn_phase(*self, barrier, scope);
  return 1;
}

tw_u32 tw_signal_test_state(tw_u32 address, tw_u64 state, TwSite position) {
  enter(TW_SIGNAL_TEST_WAIT, position);
  TransactionBarrier& barrier = *barrier_at(*self, address, self->site, "tested", false);
  if (barrier.phase == state >> 24) poll();
  if (barrier.phase == state >> 24) return 0;
  if (checking()) learn_phase(*self, barrier, 0);
  return 1;
}

tw_u32 tw_signal_pending_count(tw_u64 state) { return tw_u32(state & 0xFFFFFF); }

void tw_fence_barrier_init(TwSite position) {
  if (enter(TW_FENCE_BARRIER_INIT, position).skip) return;
  for (auto& entry : self->block->barriers)
    if (entry.second->initialiser == self) entry.second->fenced = true;
}

void tw_fence_proxy(tw_u32 spaces, TwSite position) {
  if (enter(TW_FENCE_PROXY, position).skip) return;
  for (uint32_t space = 0; space < 2; ++space)
    if (spaces >> space & 1) {
      self->fenced.of[space] = self->clock;
      self->at_proxy_fence[space] = self->base;
    }
  ++self->clock;
  if (!(spaces & 1)) return;
  for (auto& entry : self->block->barriers)
    if (entry.second->initialiser == self) entry.second->fenced = true;
}

void tw_fence(tw_u32 scope, TwSite position) {
  if (enter(TW_FENCE, position).skip) return;
  if (scope && checking()) fence_memory(*self);
}

void tw_set_registers(tw_u32 count, tw_u32 increase, TwSite position) {
  const Planted planted = enter(TW_SET_REGISTERS, position);
  if (planted.skip) return;
  count += uint32_t(planted.delta);
  meet(TW_SET_REGISTERS, ~0ull, count * 2 + increase, self->site, true, nullptr, [=](Meeting&) {
    Thread& thread = *self;
    Warp& warp = *thread.warp;
    Block& block = *thread.block;
    warp.budgets.push_back({thread.site, count});
    const uint32_t now = warp.registers;
    const Fact facts[] = {{"count", number(count)}, {"now", number(now)}, {"increase", increase ? "true" : "false"}};
    const TwLaunch& launch = engine_of(thread).launch;
    if (count < launch.registers_least || count > launch.registers_most || count % launch.registers_step)
      report("register-count", &thread, thread.site, {facts[0], facts[1], facts[2], {"least", number(launch.registers_least)}, {"most", number(launch.registers_most)}, {"step", number(launch.registers_step)}});
    if (!now) return;                                 // the launch does not say how many there are
    if (increase ? count < now : count > now) {
      report("register-direction", &thread, thread.site, {facts[0], facts[1], facts[2]});
      return;
    }
    if (!increase) {
      block.register_pool += now - count;
      warp.registers = count;
      for (Warp* other : block.warps)
        for (uint32_t lane = 0; lane < other->lanes; ++lane)
          if (other->threads[lane].waiting == Waiting::registers && other->threads[lane].awaited_value <= block.register_pool) wake(other->threads[lane]);
      return;
    }
    while (block.register_pool < count - now) block_thread(thread, Waiting::registers, &block, count - now);
    block.register_pool -= count - now;
    warp.registers = count;
  });
}

}  // extern "C"
