// Which warp runs next, and when asynchronous things happen.
//
// `late` lands a copy only when no thread can go on without one; `early` when it is issued; `random` at random.  The seed chooses the
// order of warps: 0 lowest first, 1 highest first, others by random priorities that change now and then (in `random`, odd seeds pick
// afresh every time).  A run is reproduced by its schedule and seed.
#include "engine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace emulator {

__thread Thread* self __attribute__((tls_model("initial-exec"))) = nullptr;

uint64_t Cluster::draw() {
  random += 0x9E3779B97F4A7C15ull;
  uint64_t z = random;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint32_t Cluster::new_operation(uint32_t site) {
  operations.emplace_back();
  operations.back().site = site;
  return uint32_t(operations.size() - 1);
}

uint32_t Cluster::new_entry() {
  if (next_entry >= clock_length) {
    fprintf(stderr, "tilewright emulator: more than %u transaction barriers in one cluster\n", clock_length - thread_count);
    abort();
  }
  return next_entry++;
}

namespace {

void leave() {
  Thread& thread = *self;
  self = nullptr;
  switch_to(thread.fibre, thread.cluster->scheduler);
}

// The last thread of a block knows what all of them knew when they left: others' accesses to its memory come before that.
void leave_block(Thread& thread) {
  Block& block = *thread.block;
  if (!checking() || thread.cluster->blocks.size() == 1) return;
  release(thread, block.leaving);
  if (block.live_threads > 1) return;
  acquire(thread, block.leaving.finish());
  const TwDim& size = thread.visible.block_dim;
  const uint32_t threads = size.x * size.y * size.z;
  block.shadow.leave(thread, block.rank * threads, threads);
}

void thread_main() {
  Thread& thread = *self;
  Engine& engine = engine_of(thread);
  engine.launch.entry(engine.launch.arguments);
  thread.operation = TW_NONE;
  settle_doubts(thread);
  finish_copies(thread);
  leave_block(thread);
  thread.exited = true;
  thread.warp->ready &= ~(1ull << thread.lane);
  thread.warp->live &= ~(1ull << thread.lane);
  --thread.block->live_threads;
  --thread.cluster->live;
  ++thread.cluster->steps;
  thread_left_barriers(thread);
  for (;;) leave();
}

}  // namespace

void Cluster::start() {
  const TwLaunch& launch = engine->launch;
  const uint32_t block_count = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  const uint32_t block_threads = launch.block[0] * launch.block[1] * launch.block[2];
  const uint32_t block_warps = (block_threads + launch.warp_size - 1) / launch.warp_size;
  random = launch.seed * 0xD1342543DE82EF95ull + number * 0x2545F4914F6CDD1Dull + 1;
  thread_count = live = block_count * block_threads;
  warp_count = block_count * block_warps;
  next_entry = (thread_count + group_size - 1) / group_size * group_size;
  clock_length = next_entry + 256 * block_count;
  operations.resize(1);
  if (launch.talks) engine->histories[number] = history;
  shared = static_cast<char*>(tw_reserve(block_count * window_bytes));
  for (uint32_t i = 0; i < block_count; ++i) {
    uint64_t* words = reinterpret_cast<uint64_t*>(shared + i * window_bytes + launch.shared_base / 8 * 8);
    for (uint32_t w = 0; w < (launch.shared_bytes + 7) / 8; ++w) words[w] = launch.poison;
  }
  blocks = std::vector<Block>(block_count);
  threads = std::make_unique<Thread[]>(thread_count);
  warps = std::make_unique<Warp[]>(warp_count);
  const uint32_t clusters_x = launch.grid[0] / launch.cluster[0], clusters_y = launch.grid[1] / launch.cluster[1];
  const uint32_t corner[3] = {number % clusters_x * launch.cluster[0], number / clusters_x % clusters_y * launch.cluster[1],
                              number / clusters_x / clusters_y * launch.cluster[2]};
  for (uint32_t rank = 0; rank < block_count; ++rank) {
    Block& block = blocks[rank];
    const TwDim index = {corner[0] + rank % launch.cluster[0], corner[1] + rank / launch.cluster[0] % launch.cluster[1],
                         corner[2] + rank / launch.cluster[0] / launch.cluster[1]};
    block.cluster = this;
    block.rank = rank;
    block.number = index.x + launch.grid[0] * (index.y + launch.grid[1] * index.z);
    block.shared = shared + rank * window_bytes;
    block.live_threads = block_threads;
    if (engine->check) block.shadow.cover(Space::shared, block.shared, launch.shared_base + launch.shared_bytes, false);
    for (uint32_t w = 0; w < block_warps; ++w) {
      Warp& warp = warps[rank * block_warps + w];
      warp.cluster = this;
      warp.block = &block;
      warp.index = w;
      warp.lanes = block_threads - w * launch.warp_size < launch.warp_size ? block_threads - w * launch.warp_size : launch.warp_size;
      warp.threads = &threads[rank * block_threads + w * launch.warp_size];
      warp.full = warp.live = warp.ready = warp.lanes == 64 ? ~0ull : (1ull << warp.lanes) - 1;
      warp.registers = launch.registers;
      block.warps.push_back(&warp);
      for (uint32_t lane = 0; lane < warp.lanes; ++lane) {
        Thread& thread = warp.threads[lane];
        const uint32_t t = w * launch.warp_size + lane;
        thread.visible.thread_index = {t % launch.block[0], t / launch.block[0] % launch.block[1], t / launch.block[0] / launch.block[1]};
        thread.visible.block_index = index;
        thread.visible.block_dim = {launch.block[0], launch.block[1], launch.block[2]};
        thread.visible.grid_dim = {launch.grid[0], launch.grid[1], launch.grid[2]};
        thread.cluster = this;
        thread.block = &block;
        thread.warp = &warp;
        thread.lane = lane;
        thread.index = rank * block_threads + t;
        acquire_stack(thread.fibre, stack_bytes);
        prepare(thread.fibre, thread_main);
      }
    }
    block.named.resize(engine->launch.named_barriers);
  }
  for (uint32_t w = 0; w < warp_count; ++w)
    warps[w].priority = launch.seed == 0 ? warp_count - w : launch.seed == 1 ? w : draw();
  started = true;
}

void Cluster::finish() {
  hand_over_printed(*this);
  ++engine->ended;
  for (uint32_t t = 0; t < thread_count; ++t) release_stack(threads[t].fibre);
  if (shared) tw_release(shared, blocks.size() * window_bytes);
  shared = nullptr;
  threads.reset();
  warps.reset();
  blocks.clear();
  if (!engine->launch.talks) operations.clear();
  pending.clear();
}

void pend(Cluster& cluster, TransactionBarrier* barrier, std::function<void()> land) {
  const uint32_t schedule = cluster.engine->launch.schedule;
  if (schedule == TW_EARLY || (schedule == TW_RANDOM && cluster.draw(4) == 0)) {
    land();
    return;
  }
  cluster.pending.push_back({std::move(land), barrier, cluster.pending_order++});
}

namespace {

void land_at(Cluster& cluster, size_t which) {
  Pending chosen = std::move(cluster.pending[which]);
  cluster.pending.erase(cluster.pending.begin() + long(which));
  ++cluster.steps;
  chosen.land();
}

// What happens when no thread can go on: one copy lands, one that somebody waits for if there is such.
bool land_one(Cluster& cluster) {
  if (cluster.pending.empty()) return false;
  const bool newest = cluster.engine->launch.seed % 2;
  size_t which = cluster.engine->launch.schedule == TW_RANDOM ? cluster.draw(cluster.pending.size()) : newest ? cluster.pending.size() - 1 : 0;
  if (cluster.engine->launch.schedule != TW_RANDOM)
    for (size_t i = 0; i < cluster.pending.size(); ++i) {
      const size_t candidate = newest ? cluster.pending.size() - 1 - i : i;
      const TransactionBarrier* barrier = cluster.pending[candidate].barrier;
      if (barrier && !barrier->waiting.empty()) {
        which = candidate;
        break;
      }
    }
  land_at(cluster, which);
  return true;
}

Warp* pick(Cluster& cluster) {
  const TwLaunch& launch = cluster.engine->launch;
  const bool uniform = launch.schedule == TW_RANDOM && launch.seed % 2;
  Warp* best = nullptr;
  uint32_t ready = 0;
  for (uint32_t w = 0; w < cluster.warp_count; ++w) {
    Warp& warp = cluster.warps[w];
    if (!warp.ready) continue;
    ++ready;
    if (!best || (uniform ? cluster.draw(ready) == 0 : warp.priority > best->priority)) best = &warp;
  }
  if (best && launch.seed >= 2 && cluster.draw(64) == 0) best->priority = cluster.draw();
  return best;
}

void run_warp(Cluster& cluster, Warp& warp) {
  const TwLaunch& launch = cluster.engine->launch;
  cluster.preempted = false;
  while (warp.ready && !cluster.preempted && !cluster.aborted) {
    uint32_t lane;
    if (launch.seed == 0) lane = uint32_t(__builtin_ctzll(warp.ready));
    else if (launch.seed == 1) lane = 63u - uint32_t(__builtin_clzll(warp.ready));
    else {
      const uint32_t start = uint32_t(cluster.draw(warp.lanes));
      const uint64_t above = warp.ready & (~0ull << start);
      lane = uint32_t(__builtin_ctzll(above ? above : warp.ready));
    }
    Thread& thread = warp.threads[lane];
    self = cluster.running = &thread;
    do {
      cluster.looks = false;
      switch_to(cluster.scheduler, thread.fibre);
      if (cluster.looks) ask_outside(*cluster.engine);
      if (cluster.engine->stop) cluster.preempted = true;
    } while (cluster.looks && !cluster.preempted);
    self = nullptr;
    if (launch.schedule == TW_RANDOM && cluster.draw(16) == 0) break;
  }
}

}  // namespace

bool Cluster::step_until_stuck() {
  uint64_t seen_by_polls = ~0ull;
  for (uint32_t turns = 0;; ++turns) {
    if (turns % 256 == 0) ask_outside(*engine);
    if (aborted || engine->stop) {
      engine->stop = true;
      finish();
      return false;
    }
    if (!live) {
      self = &threads[0];
      check_barriers_at_exit(*this);
      if (engine->check) check_budgets(*this);
      self = nullptr;
      finish();
      return false;
    }
    if (engine->launch.schedule == TW_RANDOM && !pending.empty() && draw(8) == 0) land_one(*this);
    if (Warp* warp = pick(*this)) {
      run_warp(*this, *warp);
      continue;
    }
    self = &threads[0];
    const bool landed = land_one(*this);
    self = nullptr;
    if (landed) continue;
    // Nobody can go on but those who look again and again at a flag: let them look once after every change.
    bool polls = false;
    for (uint32_t t = 0; t < thread_count; ++t) polls |= threads[t].waiting == Waiting::poll;
    if (polls && seen_by_polls != steps + engine->progress) {
      seen_by_polls = steps + engine->progress;
      for (uint32_t t = 0; t < thread_count; ++t)
        if (threads[t].waiting == Waiting::poll) wake(threads[t]);
      continue;
    }
    if (polls) return true;
    self = &threads[0];
    deadlock(*this);                                    // waiting for nothing that another cluster could do
    self = nullptr;
    aborted = true;
  }
}

void block_thread(Thread& thread, Waiting waiting, void* awaited, uint64_t value) {
  thread.waiting = waiting;
  thread.awaited = awaited;
  thread.awaited_value = value;
  thread.warp->ready &= ~(1ull << thread.lane);
  switch_to(thread.fibre, thread.cluster->scheduler);
}

void wake(Thread& thread) {
  thread.waiting = Waiting::nothing;
  thread.warp->ready |= 1ull << thread.lane;
}

uint64_t milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1000000;
}

void look_at_clock(Thread& thread) {
  Cluster& cluster = *thread.cluster;
  cluster.ticks = 0;
  const uint64_t deadline = engine_of(thread).deadline, now = milliseconds();
  if (now - engine_of(thread).looked >= 100 || engine_of(thread).stop) {
    cluster.looks = true;
    switch_to(thread.fibre, cluster.scheduler);
  }
  if (!deadline || now < deadline) return;
  report("too-long", &thread, thread.site, {{"seconds", number(int64_t(engine_of(thread).launch.milliseconds / 1000))}});
  abort_cluster();
}

static __thread bool asks = false;                     // whether this OS thread is the one that called

void may_ask(bool is) { asks = is; }

void ask_outside(Engine& engine) {
  if (!asks || !engine.launch.look || milliseconds() - engine.looked < 100) return;
  engine.looked = milliseconds();
  const uint64_t blocks = engine.launch.cluster[0] * engine.launch.cluster[1] * engine.launch.cluster[2];
  Thread* const running = self;
  self = nullptr;
  if (engine.launch.look(engine.ended * blocks)) engine.stop = true;
  self = running;
}

void give_way() {
  self->cluster->preempted = true;
  switch_to(self->fibre, self->cluster->scheduler);
}

void poll() { block_thread(*self, Waiting::poll, nullptr); }

void abort_cluster() {
  self->cluster->aborted = true;
  for (;;) switch_to(self->fibre, self->cluster->scheduler);
}

}  // namespace emulator
