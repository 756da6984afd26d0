// Metadata words of sparse matrix instructions, nibble by nibble.
#include "sparse.h"

namespace emulator {

SparsePlaces sparse_places(uint32_t element_bytes, uint32_t k, uint32_t selector, const uint32_t* words) {
  SparsePlaces places = {};
  const bool bytes = element_bytes == 1, half = k * element_bytes == 32;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t g = lane / 4, q = lane % 4;
    const bool counts = bytes ? !half || q / 2 == selector : half ? q == selector : q / 2 == selector;
    if (!counts) continue;
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t row = bytes ? g + 8 * (q & 1) : g + 8 * (j >> 2);
      const uint32_t group = bytes ? (half ? j : 8 * (q >> 1) + j) : (half ? j & 3 : 4 * (q & 1) + (j & 3));
      const uint32_t nibble = words[lane] >> (4 * j) & 15, first = nibble & 3, second = nibble >> 2;
      if (element_bytes == 4) {          // places are those of halves of elements
        places.at[row][group] = uint8_t(2 * group + first / 2);
        places.valid &= nibble == 4 || nibble == 14;
      } else {
        places.at[row][2 * group] = uint8_t(4 * group + first);
        places.at[row][2 * group + 1] = uint8_t(4 * group + second);
        places.valid &= first < second;
      }
    }
  }
  return places;
}

}  // namespace emulator
