// What the lanes of a warp do together.
#include <cstring>

#include "engine.h"

namespace emulator {

uint64_t warp_mask(uint64_t mask) { return mask & self->warp->full; }

void meet(TwOperation operation, uint64_t mask, uint64_t key, uint32_t site, bool aligned, void* operands,
          const std::function<void(Meeting&)>& execute) {
  Thread& thread = *self;
  Warp& warp = *thread.warp;
  const uint64_t mine = 1ull << thread.lane;
  mask &= warp.full;
  if (!(mask & mine)) {
    report("mask-without-caller", &thread, site, {{"mask", std::to_string(mask)}});
    abort_cluster();
  }
  Meeting* meeting = nullptr;
  if (mask == warp.full) {
    meeting = &warp.meeting;
  } else {
    for (auto& candidate : warp.partial)
      if (candidate->mask == mask || !candidate->arrived) {
        if (candidate->mask != mask && meeting) continue;
        meeting = candidate.get();
        if (candidate->mask == mask) break;
      }
    if (!meeting) {
      warp.partial.push_back(std::make_unique<Meeting>());
      meeting = warp.partial.back().get();
    }
  }
  if (!meeting->arrived) {
    meeting->mask = mask;
    meeting->key = key;
    meeting->operation = operation;
    meeting->site = site;
  } else if (meeting->operation != uint32_t(operation) || meeting->key != key || (aligned && meeting->site != site)) {
    report("divergent-collective", &thread, site,
           {{"operation", number(operation)}, {"other_operation", number(meeting->operation)}, {"other_site", number(meeting->site)},
            {"lanes", std::to_string(meeting->arrived)}});
    abort_cluster();
  }
  meeting->arrived |= mine;
  meeting->operands[thread.lane] = operands;
  if (meeting->arrived != mask) {
    block_thread(thread, Waiting::collective, meeting);
    return;
  }
  meeting->executing = true;
  execute(*meeting);
  meeting->executing = false;
  meeting->arrived = 0;
  for (uint64_t rest = mask & ~mine; rest; rest &= rest - 1) wake(warp.threads[__builtin_ctzll(rest)]);
}

void meet_warps(uint32_t first, uint32_t warps, Meeting& meeting, const std::function<void(const Meeting* const*)>& execute) {
  Thread& thread = *self;
  Block& block = *thread.block;
  const Meeting* alone = &meeting;
  if (warps == 1) return execute(&alone);
  WideMeeting& wide = block.wide[first];
  const Meeting* other = nullptr;
  for (const Meeting* one : wide.warps) other = one ? one : other;
  if (!other) wide.warps.assign(warps, nullptr);
  else if (wide.warps.size() != warps || other->operation != meeting.operation || other->key != meeting.key || other->site != meeting.site) {
    report("divergent-collective", &thread, thread.site,
           {{"operation", number(meeting.operation)}, {"other_operation", number(other->operation)}, {"other_site", number(other->site)},
            {"lanes", std::to_string(meeting.arrived)}});
    abort_cluster();
  }
  wide.warps[thread.warp->index - first] = &meeting;
  for (const Meeting* one : wide.warps)
    if (!one) {   // a lane waits for the others of its warp, too
      wide.waiting.push_back(&thread);
      block_thread(thread, Waiting::warps, &wide);
      return;
    }
  execute(wide.warps.data());
  wide.warps.clear();
  for (Thread* one : wide.waiting) wake(*one);
  wide.waiting.clear();
}

}  // namespace emulator

using namespace emulator;

namespace {

template <class F> void each_lane(const Meeting& meeting, F visit) {
  for (uint64_t rest = meeting.mask; rest; rest &= rest - 1) visit(uint32_t(__builtin_ctzll(rest)));
}

template <class T> T& operand(const Meeting& meeting, uint32_t lane) { return *static_cast<T*>(meeting.operands[lane]); }

}  // namespace

extern "C" {

void tw_sync_warp(tw_u64 mask, TwSite position) {
  if (enter(TW_SYNC_WARP, position).skip) return;
  meet(TW_SYNC_WARP, mask, 0, self->site, false, nullptr, [](Meeting& meeting) {
    if (!checking()) return;
    Warp& warp = *self->warp;
    Gathering gathering;
    each_lane(meeting, [&](uint32_t lane) { release(warp.threads[lane], gathering); });
    const ClockRef known = gathering.finish();
    each_lane(meeting, [&](uint32_t lane) { warp.threads[lane].base = known; });
  });
}

struct ShuffleOperands { uint64_t value, result; uint32_t lane, width; };

tw_u64 tw_shuffle(tw_u32 how, tw_u64 mask, tw_u64 value, tw_u32 lane, tw_u32 width, TwSite position) {
  const Planted planted = enter(TW_SHUFFLE, position);
  if (planted.skip) return value;
  ShuffleOperands mine = {value, value, lane + uint32_t(planted.delta), width};
  meet(TW_SHUFFLE, mask, how, self->site, false, &mine, [how](Meeting& meeting) {
    each_lane(meeting, [&](uint32_t lane) {
      ShuffleOperands& to = operand<ShuffleOperands>(meeting, lane);
      const uint32_t segment = lane / to.width * to.width, inside = lane % to.width;
      int64_t source = 0;
      switch (how) {
        case TW_SHUFFLE_INDEX: source = segment + to.lane % to.width; break;
        case TW_SHUFFLE_UP: source = inside >= to.lane ? int64_t(lane - to.lane) : int64_t(lane); break;
        case TW_SHUFFLE_DOWN: source = inside + to.lane < to.width ? int64_t(lane + to.lane) : int64_t(lane); break;
        default: source = int64_t(lane ^ to.lane); if (uint64_t(source) >= segment + to.width) source = lane; break;
      }
      if (uint64_t(source) < 64 && (meeting.mask >> source & 1)) to.result = operand<ShuffleOperands>(meeting, uint32_t(source)).value;
      else report("shuffle-from-nobody", &self->warp->threads[lane], self->site, {{"source", number(source)}});
    });
  });
  return mine.result;
}

struct VoteOperands { uint64_t value, result; };

tw_u64 tw_vote(tw_u64 mask, tw_u32 predicate, TwSite position) {
  enter(TW_VOTE, position);
  VoteOperands mine = {predicate, 0};
  meet(TW_VOTE, mask, 0, self->site, false, &mine, [](Meeting& meeting) {
    uint64_t ballot = 0;
    each_lane(meeting, [&](uint32_t lane) { ballot |= uint64_t(operand<VoteOperands>(meeting, lane).value != 0) << lane; });
    each_lane(meeting, [&](uint32_t lane) { operand<VoteOperands>(meeting, lane).result = ballot; });
  });
  return mine.result;
}

tw_u32 tw_elect(tw_u64 mask, TwSite position) {
  enter(TW_ELECT, position);
  meet(TW_ELECT, mask, 0, self->site, true, nullptr, [](Meeting&) {});
  return self->lane == uint32_t(__builtin_ctzll(warp_mask(mask)));
}

tw_u32 tw_warp_reduce(tw_u32 how, tw_u32 is_signed, tw_u64 mask, tw_u32 value, TwSite position) {
  enter(TW_WARP_REDUCE, position);
  VoteOperands mine = {value, 0};
  meet(TW_WARP_REDUCE, mask, how * 2 + is_signed, self->site, false, &mine, [how, is_signed](Meeting& meeting) {
    bool first = true;
    uint32_t total = 0;
    each_lane(meeting, [&](uint32_t lane) {
      const uint32_t x = uint32_t(operand<VoteOperands>(meeting, lane).value);
      const bool less = is_signed ? int32_t(x) < int32_t(total) : x < total;
      if (first) total = x;
      else if (how == TW_REDUCE_ADD) total += x;
      else if (how == TW_REDUCE_MIN) total = less ? x : total;
      else if (how == TW_REDUCE_MAX) total = less ? total : x;
      else if (how == TW_REDUCE_AND) total &= x;
      else if (how == TW_REDUCE_OR) total |= x;
      else total ^= x;
      first = false;
    });
    each_lane(meeting, [&](uint32_t lane) { operand<VoteOperands>(meeting, lane).result = total; });
  });
  return tw_u32(mine.result);
}

struct MatrixOperands { uint32_t* registers; uint32_t address; };

// Lane l gives the address of row l % 8 of matrix l / 8; register j of lane 4r + c holds elements 2c, 2c + 1 of row r of matrix j.
static void matrix_rows(Meeting& meeting, uint32_t count, bool transposed, bool store) {
  Warp& warp = *self->warp;
  const uint32_t site = self->site;
  char* rows[32];
  for (uint32_t row = 0; row < 8 * count; ++row) {
    Thread& thread = warp.threads[row];
    rows[row] = shared_pointer(thread, operand<MatrixOperands>(meeting, row).address, 16, 16, site);
    if (checking()) touch(thread, rows[row], 16, Access{uint8_t(store ? slot_write : 0), site});
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    MatrixOperands& mine = operand<MatrixOperands>(meeting, lane);
    if (checking()) {
      if (store) read_registers(warp.threads[lane], mine.registers, 4 * count, site);
      else write_registers(warp.threads[lane], mine.registers, 4 * count, site);
    }
    for (uint32_t matrix = 0; matrix < count; ++matrix)
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = transposed ? lane % 4 * 2 + half : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + half;
        char* element = rows[8 * matrix + row] + 2 * column;
        char* part = reinterpret_cast<char*>(mine.registers + matrix) + 2 * half;
        memcpy(store ? element : part, store ? part : element, 2);
      }
  }
}

void tw_load_matrix(tw_u32* registers, tw_u32 address, tw_u32 count, tw_u32 transposed, TwSite position) {
  const Planted planted = enter(TW_LOAD_MATRIX, position);
  if (planted.skip) return;
  MatrixOperands mine = {registers, address + uint32_t(planted.delta) * 16};
  meet(TW_LOAD_MATRIX, ~0ull, count * 2 + transposed, self->site, true, &mine,
       [=](Meeting& meeting) { matrix_rows(meeting, count, transposed, false); });
}

void tw_store_matrix(const tw_u32* registers, tw_u32 address, tw_u32 count, tw_u32 transposed, TwSite position) {
  const Planted planted = enter(TW_STORE_MATRIX, position);
  if (planted.skip) return;
  MatrixOperands mine = {const_cast<tw_u32*>(registers), address + uint32_t(planted.delta) * 16};
  meet(TW_STORE_MATRIX, ~0ull, count * 2 + transposed, self->site, true, &mine,
       [=](Meeting& meeting) { matrix_rows(meeting, count, transposed, true); });
}

tw_u32 tw_move_matrix(tw_u32 value, TwSite position) {
  enter(TW_MOVE_MATRIX, position);
  VoteOperands mine = {value, 0};
  meet(TW_MOVE_MATRIX, ~0ull, 0, self->site, true, &mine, [](Meeting& meeting) {
    each_lane(meeting, [&](uint32_t lane) {
      uint32_t result = 0;
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = lane % 4 * 2 + half, column = lane / 4;      // of the source
        const uint32_t word = uint32_t(operand<VoteOperands>(meeting, row * 4 + column / 2).value);
        result |= (word >> (16 * (column % 2)) & 0xFFFF) << (16 * half);
      }
      operand<VoteOperands>(meeting, lane).result = result;
    });
  });
  return tw_u32(mine.result);
}

}  // extern "C"
