// A warp's matrix instruction, D = A B + C of fragments, from the raw bits of the registers.
#include <cstring>

#include "convert.h"
#include "engine.h"
#include "sparse.h"

using namespace emulator;

namespace {

struct Workspace { double left[16][64], right[64][8], sum[16][8]; };
struct MmaOperands { void* d; const void *a, *b, *c; uint32_t metadata; };

}  // namespace

namespace {

// `sparse`: A has half the elements along k, and the lanes' metadata say where they stand.
void multiply(TwMatrixForm form, bool sparse, uint32_t selector, MmaOperands& mine) {
  const uint64_t key = uint64_t(sparse) << 62 | uint64_t(selector) << 60 | uint64_t(form.m) << 48 | uint64_t(form.a) << 40 | uint64_t(form.b) << 32 | uint64_t(form.d) << 24 | form.k;
  meet(TW_MMA, ~0ull, key, self->site, true, &mine, [=](Meeting& meeting) {
    const TwNumber A = TwNumber(form.a), B = TwNumber(form.b), D = TwNumber(form.d);
    const uint32_t size = bytes_of(A), elements = size >= 4 ? 1 : 4 / size, k = form.k, m = form.m;
    const uint32_t a_count = m * k / 32 / (sparse ? 2 : 1), b_count = 8 * k / 32, d_count = m * 8 / 32, d_size = bytes_of(D);
    static thread_local Workspace* space = new Workspace;   // a pointer: thread-local memory itself is scarce
    auto& left = space->left;
    auto& right = space->right;
    auto& sum = space->sum;
    double values[32];
    Warp& warp = *self->warp;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const MmaOperands& operands = *static_cast<MmaOperands*>(meeting.operands[lane]);
      if (checking()) {
        read_registers(warp.threads[lane], operands.a, a_count * size, self->site);
        read_registers(warp.threads[lane], operands.b, b_count * bytes_of(B), self->site);
        read_registers(warp.threads[lane], operands.c, d_count * d_size, self->site);
      }
      const uint32_t g = lane / 4, t = lane % 4;
      const uint32_t rows = m == 8 ? 1 : 2;               // the second register of A is eight rows further down
      decode_many(A, operands.a, a_count, values);
      for (uint32_t i = 0; i < a_count; ++i) {
        const uint32_t r = i / elements, e = i % elements;
        left[g + 8 * (r % rows)][elements * t + e + 4 * elements * (r / rows)] = values[i];
      }
      decode_many(B, operands.b, b_count, values);
      for (uint32_t i = 0; i < b_count; ++i) {
        const uint32_t r = i / elements, e = i % elements;
        right[elements * t + e + 4 * elements * r][g] = values[i];
      }
      decode_many(D, operands.c, d_count, values);
      for (uint32_t i = 0; i < d_count; ++i) sum[g + 8 * (i / 2)][2 * t + i % 2] = values[i];
    }
    if (sparse) {
      uint32_t words[32];
      for (uint32_t lane = 0; lane < 32; ++lane) words[lane] = static_cast<MmaOperands*>(meeting.operands[lane])->metadata;
      const SparsePlaces places = sparse_places(size, k, selector, words);
      if (!places.valid) report("sparse-metadata", self, self->site, {});
      for (uint32_t row = 0; row < 16; ++row) {
        double kept[32];
        memcpy(kept, left[row], k / 2 * sizeof(double));
        for (uint32_t step = 0; step < k; ++step) left[row][step] = 0;
        for (uint32_t i = 0; i < k / 2; ++i) left[row][places.at[row][i]] = kept[i];
      }
    }
    for (uint32_t row = 0; row < m; ++row)
      for (uint32_t step = 0; step < k; ++step)
        for (uint32_t column = 0; column < 8; ++column) sum[row][column] += left[row][step] * right[step][column];
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const MmaOperands& operands = *static_cast<MmaOperands*>(meeting.operands[lane]);
      const uint32_t g = lane / 4, t = lane % 4;
      if (checking()) write_registers(warp.threads[lane], operands.d, d_count * d_size, self->site);
      for (uint32_t i = 0; i < d_count; ++i) encode(D, sum[g + 8 * (i / 2)][2 * t + i % 2], static_cast<char*>(operands.d) + i * d_size);
    }
    event(*self, "mma", 'i');
  });
}

}  // namespace

extern "C" void tw_mma(TwMatrixForm form, void* d, const void* a, const void* b, const void* c, TwSite position) {
  if (enter(TW_MMA, position).skip) return;
  MmaOperands mine = {d, a, b, c, 0};
  multiply(form, false, 0, mine);
}

extern "C" void tw_mma_sparse(TwMatrixForm form, void* d, const void* a, const void* b, const void* c, tw_u32 metadata, tw_u32 selector, TwSite position) {
  if (enter(TW_MMA, position).skip) return;
  MmaOperands mine = {d, a, b, c, metadata};
  multiply(form, true, selector, mine);
}
