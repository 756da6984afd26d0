// A wave's matrix instruction, D = A B + C, whose places the vocabulary says lane by lane.
//
// Operands are values that the text has read of its registers and writes back to them: their checks are those of any access.
#include <cstring>

#include "convert.h"
#include "engine.h"

using namespace emulator;

namespace {

constexpr uint32_t WAVE_SIDE = 32, WAVE_DEPTH = 128;
struct WaveSpace { double left[WAVE_SIDE][WAVE_DEPTH], right[WAVE_DEPTH][WAVE_SIDE], sum[WAVE_SIDE][WAVE_SIDE]; };
struct WaveOperands { void* d; const void *a, *b, *c; };

}  // namespace

extern "C" void tw_wave_mma(const TwWaveForm* form, void* d, const void* a, const void* b, const void* c, TwSite position) {
  if (enter(TW_MMA, position).skip) return;
  WaveOperands mine = {d, a, b, c};
  const uint64_t key = uint64_t(uintptr_t(form));
  meet(TW_MMA, ~0ull, key, self->site, true, &mine, [=](Meeting& meeting) {
    const TwNumber A = TwNumber(form->a), B = TwNumber(form->b), D = TwNumber(form->d);
    const uint32_t d_size = bytes_of(D);
    static thread_local WaveSpace* space = new WaveSpace;   // a pointer: thread-local memory itself is scarce
    double values[64];
    for (uint32_t lane = 0; lane < form->lanes; ++lane) {
      if (!(meeting.mask >> lane & 1)) {   // lanes that are not there hold nothing that may be multiplied
        report("mask-without-caller", self, self->site, {{"mask", std::to_string(meeting.mask)}});
        abort_cluster();
      }
      const WaveOperands& operands = *static_cast<WaveOperands*>(meeting.operands[lane]);
      decode_many(A, operands.a, form->a_count, values);
      for (uint32_t i = 0; i < form->a_count; ++i) {
        const TwPlace at = form->left(lane, i);
        space->left[at.row][at.column] = values[i];
      }
      decode_many(B, operands.b, form->b_count, values);
      for (uint32_t i = 0; i < form->b_count; ++i) {
        const TwPlace at = form->right(lane, i);
        space->right[at.row][at.column] = values[i];
      }
      decode_many(D, operands.c, form->d_count, values);
      for (uint32_t i = 0; i < form->d_count; ++i) {
        const TwPlace at = form->result(lane, i);
        space->sum[at.row][at.column] = values[i];
      }
    }
    for (uint32_t row = 0; row < form->m; ++row)
      for (uint32_t step = 0; step < form->k; ++step)
        for (uint32_t column = 0; column < form->n; ++column) space->sum[row][column] += space->left[row][step] * space->right[step][column];
    for (uint32_t lane = 0; lane < form->lanes; ++lane) {
      const WaveOperands& operands = *static_cast<WaveOperands*>(meeting.operands[lane]);
      for (uint32_t i = 0; i < form->d_count; ++i) {
        const TwPlace at = form->result(lane, i);
        encode(D, space->sum[at.row][at.column], static_cast<char*>(operands.d) + i * d_size);
      }
    }
    event(*self, "mma", 'i');
  });
}
