// 2:4 sparsity: where the kept elements of a row stand, from the metadata words of a warp's lanes.
#pragma once
#include <cstdint>

#include "interface.h"

namespace emulator {

// Positions (0 to 3) of the two kept elements of each group of four, of 16 rows.  `words` has one word a lane; of 16-bit elements those of
// the lanes whose place in their quad is 2 * selector or 2 * selector + 1 count (of half shapes: that is the selector), of bytes all.
struct SparsePlaces {
  uint8_t at[16][16][2];
  bool valid = true;                   // two different places in ascending order everywhere
};
SparsePlaces sparse_places(uint32_t element_bytes, uint32_t k, uint32_t selector, const uint32_t* words);

}  // namespace emulator
