// Fibres: a device thread is a stack of its own, and changing to another one is a dozen instructions.
#pragma once
#include <cstddef>

namespace emulator {

// The saved state of a fibre that is not running: everything else lies on its stack.
struct Fibre {
  void* stack_pointer = nullptr;
  char* stack = nullptr;      // lowest byte of the mapping
  size_t stack_bytes = 0;
};

// Map a stack, or take one that an earlier fibre has left.
void acquire_stack(Fibre& fibre, size_t bytes);
void release_stack(Fibre& fibre);
// Arrange that the first switch to the fibre calls `entry`, which must never return.
void prepare(Fibre& fibre, void (*entry)());
// Save the running context in `from` and continue `to`.
void switch_to(Fibre& from, Fibre& to);

}  // namespace emulator
