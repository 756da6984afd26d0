// Warpgroup matrix instructions: issued by four warps, executed when waited for, with operands in shared memory behind descriptors.
//
// An instruction is issued by each warp by itself; it can execute once all four have.  Whoever first waits for it executes all of it,
// for only then may its operands change; each warp receives its accumulators at its own wait.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "../core/convert.h"
#include "../core/engine.h"
#include "../core/sparse.h"
#include "wgmma.h"

namespace emulator {

namespace {

constexpr uint32_t LANES = TW_GROUP_LANES, WARPS = TW_GROUP_WARPS, THREADS = LANES * WARPS;
constexpr uint32_t WARP_ROWS = 16, ROWS = WARPS * WARP_ROWS;    // of a product: a warp's, all warps'
constexpr uint32_t EVERY_WARP = (1u << WARPS) - 1;

struct Instruction {
  TwWarpgroupForm form;
  uint64_t a_descriptor, b_descriptor;
  uint32_t site, operation;
  bool from_registers, executed = false;
  uint32_t issued = 0, finished = 0;                  // warps, as bits
  std::array<void*, THREADS> d;
  std::array<const void*, THREADS> a;
  std::array<uint32_t, THREADS> metadata;
  std::array<const uint32_t*, THREADS> words;             // registers that hold it; null where the product is dense
};

// Accumulators of one warp that instructions are still to change.
struct Accumulators {
  std::array<void*, LANES> registers;
  std::vector<std::array<uint32_t, LANES>> words;        // [register][lane], once executed
  uint32_t last = 0, count = 0;
};

uint32_t element_count(const TwWarpgroupForm& form) { return 32 / bytes_of(TwNumber(form.a)); }

}  // namespace

struct GroupState {
  Block* block;
  uint32_t first_warp, first_thread;
  uint32_t base = 0;                                  // number of the oldest instruction kept
  std::deque<Instruction> instructions;
  std::map<void*, Accumulators> accumulators[WARPS];
  std::vector<Thread*> waiting;
  Instruction& at(uint32_t number) { return instructions[number - base]; }
};

static void start_groups(Block& block) {
  for (uint32_t first = 0; first + WARPS <= block.warps.size(); first += WARPS) {
    auto state = std::make_shared<GroupState>();
    state->block = &block;
    state->first_warp = first;
    state->first_thread = block.warps[first]->threads[0].index;
    block.groups.push_back(state);
  }
}

namespace {

GroupState& state_of(Thread& thread) {
  const uint32_t group = thread.warp->index / WARPS;
  if (thread.block->groups.empty()) start_groups(*thread.block);
  if (group >= thread.block->groups.size()) {
    report("no-group-of-warps", &thread, thread.site, {{"warps", number(int64_t(thread.block->warps.size()))}, {"together", number(WARPS)}, {"lanes", number(LANES)}});
    abort_cluster();
  }
  return *thread.block->groups[group];
}

// An operand tile in shared memory: where its 16-byte pieces are.
struct Tile {
  uint32_t start, leading, stride, mode, span, mask;
  bool k_major;
  uint32_t element;
  Tile(uint64_t descriptor, bool k_major_, uint32_t element_) : k_major(k_major_), element(element_) {
    start = uint32_t(descriptor & 0x3FFF) << 4;
    leading = uint32_t(descriptor >> 16 & 0x3FFF) << 4;
    stride = uint32_t(descriptor >> 32 & 0x3FFF) << 4;
    mode = uint32_t(descriptor >> 62);
    span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;
    mask = mode ? span / 16 - 1 : 0;
  }
  // The piece of row `mn` that begins at byte `k_bytes` (K-major), or of column k that begins at element `mn`.
  uint32_t piece(uint32_t mn, uint32_t k) const {
    uint32_t offset;
    if (k_major) {
      const uint32_t bytes = k * element;
      offset = mode ? mn / 8 * stride + mn % 8 * span + bytes : mn / 8 * stride + bytes / 16 * leading + mn % 8 * 16 + bytes % 16;
    } else {
      const uint32_t row = span / element;
      offset = mode ? mn / row * leading + k / 8 * stride + k % 8 * span + mn % row * element
                    : mn / 8 * stride + k / 8 * leading + k % 8 * 16 + mn % 8 * element;
    }
    const uint32_t address = start + offset;
    return (address ^ ((address >> 7 & mask) << 4)) & 0x3FFFF;
  }
  // visit(mn, k, piece): each piece of rows [first, first + count) and k elements.
  template <class F> void each(uint32_t first, uint32_t count, uint32_t k_elements, F visit) const {
    const uint32_t together = 16 / element;
    if (k_major) {
      for (uint32_t mn = first; mn < first + count; ++mn)
        for (uint32_t k = 0; k < k_elements; k += together) visit(mn, k, piece(mn, k));
    } else {
      for (uint32_t k = 0; k < k_elements; ++k)
        for (uint32_t mn = first; mn < first + count; mn += together) visit(mn, k, piece(mn, k));
    }
  }
};

void check_tile(Thread& thread, const Tile& tile, uint32_t first, uint32_t count, uint32_t k, uint32_t operation) {
  Access access{slot_async | slot_operation, thread.site};
  access.operation = operation;
  Block& block = *thread.block;
  const Engine& engine = engine_of(thread);
  tile.each(first, count, k, [&](uint32_t, uint32_t, uint32_t offset) {
    if (offset < engine.launch.shared_base || offset + 16 > engine.launch.shared_base + engine.launch.shared_bytes) {
      check_range(thread, block.shared + offset, 16, 1, false, thread.site);
      return;
    }
    block.shadow.access(thread, block.shared + offset, 16, access);
  });
}

void check_issue(Thread& thread, const Instruction& instruction, uint32_t warp_in_group) {
  const TwWarpgroupForm& form = instruction.form;
  const uint32_t k = element_count(form);
  if (!instruction.from_registers)
    check_tile(thread, Tile(instruction.a_descriptor, !form.a_major, bytes_of(TwNumber(form.a))), WARP_ROWS * warp_in_group, WARP_ROWS, k, instruction.operation);
  check_tile(thread, Tile(instruction.b_descriptor, !form.b_major, bytes_of(TwNumber(form.b))), 0, form.n, form.sparse ? 2 * k : k, instruction.operation);
}

// The sum of products and accumulator as the fp8 units form it: all terms cut to 14 bits below the largest one's leading bit.
double add_14_bits(const double* products, uint32_t count, double accumulator) {
  auto exponent_of = [](double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return int(bits >> 52 & 0x7FF);
  };
  int largest = exponent_of(accumulator);
  for (uint32_t i = 0; i < count; ++i) largest = std::max(largest, exponent_of(products[i]));
  if (largest >= 0x7FF || largest == 0) {
    for (uint32_t i = 0; i < count; ++i) accumulator += products[i];
    return accumulator;
  }
  const double unit = std::ldexp(1.0, largest - 1023 - 13), inverse = std::ldexp(1.0, 13 - (largest - 1023));
  double total = std::trunc(accumulator * inverse);
  for (uint32_t i = 0; i < count; ++i) total += std::trunc(products[i] * inverse);
  return total * unit;
}

struct Workspace { double a[ROWS][64], b[64][256], d[ROWS][256]; };

void load_tile(const Block& block, const Tile& tile, TwNumber kind, uint32_t count, uint32_t k_elements, double* to, uint32_t mn_step, uint32_t k_step) {
  double values[16];
  const uint32_t together = 16 / tile.element;
  tile.each(0, count, k_elements, [&](uint32_t mn, uint32_t k, uint32_t offset) {
    decode_many(kind, block.shared + offset, together, values);
    for (uint32_t i = 0; i < together; ++i) to[tile.k_major ? mn * mn_step + (k + i) * k_step : (mn + i) * mn_step + k * k_step] = values[i];
  });
}

// Row and column of accumulator i of a lane.
uint32_t row_of(uint32_t lane, uint32_t i) { return lane / 4 + 8 * (i >> 1 & 1); }
uint32_t column_of(uint32_t lane, uint32_t i) { return 8 * (i >> 2) + 2 * (lane % 4) + (i & 1); }

// The kept elements of A to where they stand among zeros.
void spread(const Instruction& instruction, uint32_t kept, double (*a)[64]) {
  for (uint32_t warp = 0; warp < WARPS; ++warp) {
    const SparsePlaces places = sparse_places(bytes_of(TwNumber(instruction.form.a)), 2 * kept, instruction.form.selector, &instruction.metadata[LANES * warp]);
    if (!places.valid) report("sparse-metadata", self, instruction.site, {});
    for (uint32_t row = 0; row < WARP_ROWS; ++row) {
      double* to = a[WARP_ROWS * warp + row];
      double values[32];
      memcpy(values, to, kept * sizeof(double));
      for (uint32_t step = 0; step < 2 * kept; ++step) to[step] = 0;
      for (uint32_t i = 0; i < kept; ++i) to[places.at[row][i]] = values[i];
    }
  }
}

void execute(GroupState& state, uint32_t index) {
  Instruction& instruction = state.at(index);
  const TwWarpgroupForm& form = instruction.form;
  const TwNumber A = TwNumber(form.a), B = TwNumber(form.b), D = TwNumber(form.d);
  static thread_local Workspace* space = new Workspace;
  const uint32_t kept = element_count(form), k = form.sparse ? 2 * kept : kept, n = form.n, d_size = bytes_of(D), per_lane = n / 2;
  Block& block = *state.block;
  if (instruction.from_registers) {
    double values[16];
    const uint32_t size = bytes_of(A), elements = size == 4 ? 1 : 4 / size;
    for (uint32_t thread = 0; thread < THREADS; ++thread) {
      const uint32_t lane = thread % LANES, warp = thread / LANES;
      decode_many(A, instruction.a[thread], 16 / size, values);
      for (uint32_t i = 0; i < 16 / size; ++i) {
        const uint32_t r = i / elements, e = i % elements;
        space->a[WARP_ROWS * warp + lane / 4 + 8 * (r % 2)][elements * (lane % 4) + e + 4 * elements * (r / 2)] = values[i];
      }
    }
  } else {
    load_tile(block, Tile(instruction.a_descriptor, !form.a_major, bytes_of(A)), A, ROWS, kept, &space->a[0][0], 64, 1);
  }
  if (form.sparse) spread(instruction, kept, space->a);
  load_tile(block, Tile(instruction.b_descriptor, !form.b_major, bytes_of(B)), B, n, k, &space->b[0][0], 1, 256);

  for (uint32_t warp = 0; warp < WARPS; ++warp) {
    Accumulators& accumulators = state.accumulators[warp].at(instruction.d[warp * LANES]);
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      char* registers = static_cast<char*>(instruction.d[warp * LANES + lane]);
      uint32_t words[128];
      const uint32_t count = per_lane * d_size / 4;
      if (accumulators.words.empty()) memcpy(words, registers, 4 * count);
      else for (uint32_t r = 0; r < count; ++r) words[r] = accumulators.words[r][lane];
      double values[128];
      if (form.accumulate) decode_many(D, words, per_lane, values);
      else memset(values, 0, sizeof values);
      for (uint32_t i = 0; i < per_lane; ++i) space->d[WARP_ROWS * warp + row_of(lane, i)][column_of(lane, i)] = values[i];
    }
  }
  if (A == TW_E4M3 || A == TW_E5M2) {
    for (uint32_t row = 0; row < ROWS; ++row)
      for (uint32_t column = 0; column < n; ++column) {
        double products[64];
        for (uint32_t step = 0; step < k; ++step) products[step] = space->a[row][step] * space->b[step][column];
        space->d[row][column] = add_14_bits(products, k, space->d[row][column]);
      }
  } else {
    for (uint32_t row = 0; row < ROWS; ++row)
      for (uint32_t step = 0; step < k; ++step) {
        const double a = space->a[row][step];
        for (uint32_t column = 0; column < n; ++column) space->d[row][column] += a * space->b[step][column];
      }
  }
  for (uint32_t warp = 0; warp < WARPS; ++warp) {
    Accumulators& accumulators = state.accumulators[warp].at(instruction.d[warp * LANES]);
    const uint32_t count = per_lane * d_size / 4;
    accumulators.words.resize(count);
    accumulators.count = count;
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      uint32_t words[128];
      for (uint32_t i = 0; i < per_lane; ++i)
        encode(D, space->d[WARP_ROWS * warp + row_of(lane, i)][column_of(lane, i)], reinterpret_cast<char*>(words) + i * d_size);
      for (uint32_t r = 0; r < count; ++r) accumulators.words[r][lane] = words[r];
    }
  }
  instruction.executed = true;
}

void deliver(Accumulators& accumulators) {
  for (uint32_t lane = 0; lane < LANES; ++lane)
    for (size_t r = 0; r < accumulators.words.size(); ++r) memcpy(static_cast<char*>(accumulators.registers[lane]) + 4 * r, &accumulators.words[r][lane], 4);
  accumulators.words.clear();
}

bool execute_up_to(GroupState& state, uint32_t target) {
  for (uint32_t index = state.base; index < target; ++index) {
    if (state.at(index).executed) continue;
    if (state.at(index).issued != EVERY_WARP) return false;
    execute(state, index);
  }
  return true;
}

bool same_form(const TwWarpgroupForm& x, const TwWarpgroupForm& y) {
  return x.a == y.a && x.b == y.b && x.d == y.d && x.a_major == y.a_major && x.b_major == y.b_major && x.accumulate == y.accumulate && x.sparse == y.sparse && x.selector == y.selector && x.n == y.n;
}

uint32_t a_bytes(const Instruction&) { return 16; }
uint32_t d_bytes(const Instruction& instruction) { return instruction.form.n / 2 * bytes_of(TwNumber(instruction.form.d)); }

}  // namespace

}  // namespace emulator

using namespace emulator;

namespace {

struct WgmmaOperands { void* d; const void* a; uint64_t a_descriptor, b_descriptor; uint32_t accumulate; const uint32_t* metadata; };

void issue(Meeting& meeting, TwWarpgroupForm form) {
  Thread& thread = *self;
  Warp& warp = *thread.warp;
  GroupState& state = state_of(thread);
  const uint32_t in_group = warp.index - state.first_warp, index = warp.issued++;
  const WgmmaOperands& first = *static_cast<WgmmaOperands*>(meeting.operands[0]);
  while (index - state.base >= state.instructions.size()) {
    Instruction fresh;
    fresh.form = form;
    fresh.a_descriptor = first.a_descriptor;
    fresh.b_descriptor = first.b_descriptor;
    fresh.site = thread.site;
    fresh.from_registers = first.a != nullptr;
    fresh.operation = thread.cluster->new_operation(thread.site);
    Operation& operation = thread.cluster->operations[fresh.operation];
    operation.thread = state.first_thread;
    operation.lanes = THREADS;
    operation.clocks.reset(new uint32_t[THREADS]());
    state.instructions.push_back(std::move(fresh));
  }
  Instruction& instruction = state.at(index);
  if (!same_form(instruction.form, form) || instruction.site != thread.site || instruction.b_descriptor != first.b_descriptor ||
      (!first.a && instruction.a_descriptor != first.a_descriptor)) {
    report("group-disagrees", &thread, thread.site, {{"other_site", number(instruction.site)}});
    abort_cluster();
  }
  instruction.issued |= 1u << in_group;
  Accumulators& accumulators = state.accumulators[in_group][first.d];
  accumulators.last = index;
  bool unfenced = false, never = false;
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const WgmmaOperands& operands = *static_cast<WgmmaOperands*>(meeting.operands[lane]);
    Thread& one = warp.threads[lane];
    instruction.d[in_group * LANES + lane] = operands.d;
    instruction.a[in_group * LANES + lane] = operands.a;
    instruction.metadata[in_group * LANES + lane] = operands.metadata ? *operands.metadata : 0;
    instruction.words[in_group * LANES + lane] = operands.metadata;
    accumulators.registers[lane] = operands.d;
    if (!checking()) continue;
    if (operands.b_descriptor != first.b_descriptor || operands.a_descriptor != first.a_descriptor || operands.accumulate != first.accumulate)
      report("group-disagrees", &one, thread.site, {{"other_site", number(thread.site)}});
    never |= one.matrix_fences == 1;
    if (Registers* d = find_registers(one, operands.d); !d || size_t(static_cast<char*>(operands.d) - d->low) + d_bytes(instruction) > d->bytes) {
      report("register-index", &one, thread.site, {{"index", number(d_bytes(instruction) / 4)}});
      abort_cluster();
    }
    if (Registers* d = find_registers(one, operands.d)) {
      unfenced |= d->fence_epoch == one.matrix_fences + 1;
      if (form.accumulate) {
        bool unwritten = false;
        const size_t at = size_t(static_cast<char*>(operands.d) - d->low) / 4;
        for (uint32_t r = 0; r < d_bytes(instruction) / 4 && at + r < d->state.size(); ++r)
          unwritten |= !(d->state[at + r] & register_awaited) && (d->state[at + r] & register_written) != register_written;
        if (unwritten) report("unwritten-register", &one, thread.site, {});
      }
      set_register_state(one, operands.d, d_bytes(instruction), register_awaited, 0);
    }
    if (operands.metadata) {
      read_registers(one, operands.metadata, 4, thread.site);
      set_register_state(one, operands.metadata, 4, register_lent, 0);
    }
    if (operands.a) {
      if (Registers* a = find_registers(one, operands.a)) unfenced |= a->fence_epoch == one.matrix_fences + 1;
      read_registers(one, operands.a, a_bytes(instruction), thread.site);
      set_register_state(one, operands.a, a_bytes(instruction), register_lent, 0);
    }
  }
  if (checking()) {
    if (never || unfenced) report("missing-matrix-fence", &thread, thread.site, {});
    check_issue(thread, instruction, in_group);
  }
  event(thread, "gmma", 'i');
  for (Thread* waiter : state.waiting) wake(*waiter);
  state.waiting.clear();
  if (instruction.issued == EVERY_WARP) {
    Cluster& cluster = *thread.cluster;
    const uint32_t schedule = cluster.engine->launch.schedule;
    if (schedule == TW_EARLY || (schedule == TW_RANDOM && cluster.draw(2))) {
      execute_up_to(state, index + 1);
      for (auto& per_warp : state.accumulators)
        for (auto& entry : per_warp) deliver(entry.second);
    }
  }
}

void wait(uint32_t pending) {
  Thread& thread = *self;
  Warp& warp = *thread.warp;
  GroupState& state = state_of(thread);
  const uint32_t in_group = warp.index - state.first_warp;
  if (warp.group_ends.size() <= pending) return;
  const uint32_t target = warp.group_ends[warp.group_ends.size() - pending - 1];
  warp.group_ends.erase(warp.group_ends.begin(), warp.group_ends.end() - long(pending));
  while (!execute_up_to(state, target)) {
    state.waiting.push_back(&thread);
    block_thread(thread, Waiting::group, &state);
  }
  Cluster& cluster = *thread.cluster;
  for (uint32_t index = warp.waited; index < target; ++index) {
    Instruction& instruction = state.at(index);
    instruction.finished |= 1u << in_group;
    Operation& operation = cluster.operations[instruction.operation];
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      operation.clocks[in_group * LANES + lane] = warp.threads[lane].clock;
      if (checking() && instruction.from_registers) set_register_state(warp.threads[lane], instruction.a[in_group * LANES + lane], a_bytes(instruction), 0, register_lent);
      if (checking() && instruction.form.sparse) set_register_state(warp.threads[lane], instruction.words[in_group * LANES + lane], 4, 0, register_lent);
    }
  }
  warp.waited = target;
  // Operands and accumulators of instructions that are still under way stay theirs.
  auto& all = state.accumulators[in_group];
  for (auto entry = all.begin(); entry != all.end();) {
    if (entry->second.last >= target) { ++entry; continue; }
    const size_t count = entry->second.count;
    deliver(entry->second);
    if (checking())
      for (uint32_t lane = 0; lane < LANES; ++lane)
        set_register_state(warp.threads[lane], entry->second.registers[lane], 4 * count, register_written, register_awaited);
    entry = all.erase(entry);
  }
  if (checking())
    for (uint32_t index = target; index < warp.issued; ++index) {
      Instruction& instruction = state.at(index);
      if (instruction.from_registers)
        for (uint32_t lane = 0; lane < LANES; ++lane)
          set_register_state(warp.threads[lane], instruction.a[in_group * LANES + lane], a_bytes(instruction), register_lent, 0);
      if (instruction.form.sparse)
        for (uint32_t lane = 0; lane < LANES; ++lane)
          set_register_state(warp.threads[lane], instruction.words[in_group * LANES + lane], 4, register_lent, 0);
    }
  while (!state.instructions.empty() && state.instructions.front().finished == EVERY_WARP) {
    state.instructions.pop_front();
    ++state.base;
  }
}

}  // namespace

extern "C" {

void tw_wgmma(TwWarpgroupForm form, void* d, const void* a, tw_u64 a_descriptor, tw_u64 b_descriptor, const tw_u32* metadata, TwSite position) {
  const Planted planted = enter(TW_GROUP_PRODUCT, position);
  if (planted.skip) return;
  a_descriptor += uint64_t(planted.delta);
  b_descriptor ^= planted.flip;
  WgmmaOperands mine = {d, a, a_descriptor, b_descriptor, form.accumulate, metadata};
  const uint64_t key = uint64_t(form.n) << 48 | uint64_t(form.a) << 40 | uint64_t(form.b) << 32 | uint64_t(form.d) << 24 | uint64_t(form.a_major) << 2 |
                       uint64_t(form.b_major) << 1 |
                       uint64_t(form.sparse) << 3 | uint64_t(form.selector) << 4;
  meet(TW_GROUP_PRODUCT, ~0ull, key, self->site, true, &mine, [form](Meeting& meeting) { issue(meeting, form); });
}

void tw_wgmma_fence(TwSite position) {
  if (enter(TW_GROUP_FENCE, position).skip) return;
  meet(TW_GROUP_FENCE, ~0ull, 0, self->site, true, nullptr, [](Meeting&) {
    for (uint32_t lane = 0; lane < self->warp->lanes; ++lane) ++self->warp->threads[lane].matrix_fences;
  });
}

void tw_wgmma_commit(TwSite position) {
  if (enter(TW_GROUP_COMMIT, position).skip) return;
  meet(TW_GROUP_COMMIT, ~0ull, 0, self->site, true, nullptr, [](Meeting&) {
    Warp& warp = *self->warp;
    warp.group_ends.push_back(warp.issued);
  });
}

void tw_wgmma_wait(tw_u32 pending, TwSite position) {
  const Planted planted = enter(TW_GROUP_WAIT, position);
  if (planted.skip) return;
  pending = uint32_t(std::max<int64_t>(0, int64_t(pending) + planted.delta));
  event(*self, "gmma_wait", 'B');
  meet(TW_GROUP_WAIT, ~0ull, pending, self->site, true, nullptr, [pending](Meeting&) { wait(pending); });
  event(*self, "gmma_wait", 'E');
}

}  // extern "C"
