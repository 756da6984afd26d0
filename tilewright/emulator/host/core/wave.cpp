// Matrix instructions of threads that multiply together, D = A B + C, whose places the vocabulary says thread by thread.
//
// They are a warp, or several neighbours.  Operands are values that the text has read of its registers and writes back to them: their
// checks are those of any access.
#include <cstring>

#include "convert.h"
#include "engine.h"

using namespace emulator;

namespace {

struct WaveOperands { void* d; const void *a, *b, *c; };

// A matrix whose elements threads put in, some of them several times.
struct WaveMatrix {
  uint32_t columns;
  std::vector<double> values;
  std::vector<bool> known;
  void begin(uint32_t rows, uint32_t columns_) {
    columns = columns_;
    values.assign(size_t(rows) * columns, 0);
    known.assign(values.size(), false);
  }
  double& at(uint32_t row, uint32_t column) { return values.at(size_t(row) * columns + column); }
  // Whether an element is what other threads hold of it, too.
  bool put(TwPlace place, double value) {
    const size_t index = size_t(place.row) * columns + place.column;
    if (known.at(index) && memcmp(&values[index], &value, sizeof(value))) return false;
    known[index] = true;
    values[index] = value;
    return true;
  }
};

void multiply(const TwWaveForm& form, const Meeting* const* meetings, uint32_t warp_lanes) {
  static thread_local WaveMatrix* space = new WaveMatrix[3];   // a pointer: thread-local memory itself is scarce
  static thread_local auto* values = new std::vector<double>;
  WaveMatrix &left = space[0], &right = space[1], &sum = space[2];
  left.begin(form.m, form.k);
  right.begin(form.k, form.n);
  sum.begin(form.m, form.n);
  auto operands = [&](uint32_t lane) { return static_cast<WaveOperands*>(meetings[lane / warp_lanes]->operands[lane % warp_lanes]); };
  auto collect = [&](WaveMatrix& matrix, uint32_t kind, const void* bits, uint32_t count, TwPlace (*place)(tw_u32, tw_u32), uint32_t lane, const char* name) {
    values->resize(count);
    decode_many(TwNumber(kind), bits, count, values->data());
    for (uint32_t i = 0; i < count; ++i)
      if (!matrix.put(place(lane, i), (*values)[i])) {
        report("replicas-differ", self, self->site, {{"operand", std::string("\"") + name + "\""}, {"lane", number(lane)}, {"index", number(i)}});
        abort_cluster();
      }
  };
  for (uint32_t lane = 0; lane < form.lanes; ++lane) {
    const WaveOperands& mine = *operands(lane);
    collect(left, form.a, mine.a, form.a_count, form.left, lane, "left");
    collect(right, form.b, mine.b, form.b_count, form.right, lane, "right");
    collect(sum, form.d, mine.c, form.d_count, form.result, lane, "sum");
  }
  for (uint32_t row = 0; row < form.m; ++row)
    for (uint32_t step = 0; step < form.k; ++step)
      for (uint32_t column = 0; column < form.n; ++column) sum.at(row, column) += left.at(row, step) * right.at(step, column);
  const uint32_t d_size = bytes_of(TwNumber(form.d));
  for (uint32_t lane = 0; lane < form.lanes; ++lane)
    for (uint32_t i = 0; i < form.d_count; ++i) {
      const TwPlace at = form.result(lane, i);
      encode(TwNumber(form.d), sum.at(at.row, at.column), static_cast<char*>(operands(lane)->d) + i * d_size);
    }
}

}  // namespace

extern "C" void tw_wave_mma(const TwWaveForm* form, void* d, const void* a, const void* b, const void* c, TwSite position) {
  if (enter(TW_MMA, position).skip) return;
  WaveOperands mine = {d, a, b, c};
  meet(TW_MMA, ~0ull, uint64_t(uintptr_t(form)), self->site, true, &mine, [form](Meeting& meeting) {
    Warp& warp = *self->warp;
    const uint32_t lanes = engine_of(*self).launch.warp_size, warps = form->lanes / lanes;
    const uint32_t first = warps ? warp.index / warps * warps : 0;
    bool whole = warps && form->lanes % lanes == 0 && first + warps <= warp.block->warps.size();
    for (uint32_t other = first; whole && other < first + warps; ++other) whole = warp.block->warps[other]->lanes == lanes;
    if (!whole) {   // threads that are not there hold nothing that may be multiplied
      report("no-group", self, self->site, {{"threads", number(form->lanes)}, {"block", number(int64_t(warp.block->warps.size()))}, {"lanes", number(lanes)}});
      abort_cluster();
    }
    meet_warps(first, warps, meeting, [=](const Meeting* const* meetings) { multiply(*form, meetings, lanes); });
    event(*self, "mma", 'i');
  });
}
