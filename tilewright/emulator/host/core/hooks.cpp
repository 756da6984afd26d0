// What instrumented text calls before each of its own loads and stores.
//
// A thread's own stack is not memory that others see; only fragments on it are followed, as registers.
#include "engine.h"

using namespace emulator;

namespace {

inline void access(const void* address, size_t size, size_t alignment, uint8_t flags, void* caller) {
  Thread* thread = self;
  if (!thread) return;
  if (!thread->doubted.empty()) settle_doubts(*thread);
  tick(*thread);
  const char* at = static_cast<const char*>(address);
  if (size_t(at - thread->fibre.stack) < thread->fibre.stack_bytes) {
    if (thread->registers.empty()) return;
    Registers* registers = find_registers(*thread, at);
    if (!registers) return;
    const uint32_t site = uint32_t(uintptr_t(caller) - engine_of(*thread).launch.text_low);
    if (flags & slot_write) write_registers(*thread, at, size, site);
    else read_registers(*thread, at, size, site);
    return;
  }
  const TwLaunch& launch = engine_of(*thread).launch;
  if (uintptr_t(at) - launch.text_low < launch.text_high - launch.text_low) return;
  if (at >= reinterpret_cast<const char*>(thread) && at < reinterpret_cast<const char*>(thread) + sizeof(TwThread)) return;
  if (uintptr_t(at) >= uintptr_t(launch.arguments) && uintptr_t(at) < uintptr_t(launch.arguments) + 65536) return;
  const uint32_t site = uint32_t(uintptr_t(caller) - launch.text_low);
  if (check_range(*thread, at, size, alignment, flags & slot_write, site)) touch(*thread, at, size, Access{flags, site});
  // It has been reported, and goes no further: this machine's own access of sixteen bytes would end the process.
  if (alignment == 16 && uintptr_t(at) % alignment) abort_cluster();
}

}  // namespace

#define CALLER __builtin_return_address(0)
#define HOOKS(N)                                                                                                                   \
  void __tsan_read##N(void* a) { access(a, N, N, 0, CALLER); }                                                                     \
  void __tsan_write##N(void* a) { access(a, N, N, slot_write, CALLER); }                                                           \
  void __tsan_unaligned_read##N(void* a) { access(a, N, 1, 0, CALLER); }                                                           \
  void __tsan_unaligned_write##N(void* a) { access(a, N, 1, slot_write, CALLER); }                                                 \
  void __tsan_volatile_read##N(void* a) { access(a, N, N, 0, CALLER); if (self) poll(); }                                          \
  void __tsan_volatile_write##N(void* a) { access(a, N, N, slot_write, CALLER); }                                                  \
  void __tsan_unaligned_volatile_read##N(void* a) { access(a, N, 1, 0, CALLER); }                                                  \
  void __tsan_unaligned_volatile_write##N(void* a) { access(a, N, 1, slot_write, CALLER); }                                        \
  void __tsan_read##N##_pc(void* a, void* pc) { access(a, N, N, 0, pc); }                                                          \
  void __tsan_write##N##_pc(void* a, void* pc) { access(a, N, N, slot_write, pc); }

extern "C" {
// -fsanitize-coverage=trace-pc: called in every stretch of code, so that no loop runs unseen.
void __sanitizer_cov_trace_pc() {
  if (self) tick(*self);
}
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* a, size_t size) { access(a, size, 1, 0, CALLER); }
void __tsan_write_range(void* a, size_t size) { access(a, size, 1, slot_write, CALLER); }
void __tsan_read_write1(void* a) { access(a, 1, 1, slot_write, CALLER); }
void __tsan_read_write2(void* a) { access(a, 2, 2, slot_write, CALLER); }
void __tsan_read_write4(void* a) { access(a, 4, 4, slot_write, CALLER); }
void __tsan_read_write8(void* a) { access(a, 8, 8, slot_write, CALLER); }
void __tsan_read_write16(void* a) { access(a, 16, 16, slot_write, CALLER); }
// -fsanitize=bounds and integer-divide-by-zero: an index outside a register array, a division by zero.
void __ubsan_handle_out_of_bounds(void*, void* index) {
  if (!self) return;
  report("register-index", self, uint32_t(uintptr_t(CALLER) - engine_of(*self).launch.text_low), {{"index", number(int64_t(int32_t(uintptr_t(index))))}});
  abort_cluster();
}
void __ubsan_handle_divrem_overflow(void*, void*, void*) {
  if (!self) return;
  report("division-by-zero", self, uint32_t(uintptr_t(CALLER) - engine_of(*self).launch.text_low), {});
  abort_cluster();
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, 1, 0, CALLER);
  access(to, size, 1, slot_write, CALLER);
  return __builtin_memcpy(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, 1, slot_write, CALLER);
  return __builtin_memset(to, value, size);
}
}
