// 2:4 sparsity: where the kept elements of a row stand, from the metadata words of a warp's lanes.
#pragma once
#include <cstdint>

#include "interface.h"

namespace emulator {

// Where the kept elements of 16 rows stand along k: two of every four, of 32-bit elements one of every two.  `words` has one word a lane; of
// 16-bit and 32-bit elements those of the lanes whose place in their quad is 2 * selector or 2 * selector + 1 count (of half shapes: that
// is the selector), of bytes all.
struct SparsePlaces {
  uint8_t at[16][32];
  bool valid = true;                   // two different places in ascending order everywhere; of 32-bit elements the first two or the last two
};
SparsePlaces sparse_places(uint32_t element_bytes, uint32_t k, uint32_t selector, const uint32_t* words);

}  // namespace emulator
