// Switching stacks by hand on x86-64 and AArch64, by ucontext elsewhere.
#include "fibre.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#if defined(TW_UCONTEXT) || (!defined(__x86_64__) && !defined(__aarch64__))   // the first to try that way on any machine
#define TW_BY_UCONTEXT
#include <ucontext.h>
#endif

namespace emulator {

namespace {
struct FreeStack { char* base; size_t bytes; };
std::mutex free_stacks_lock;
std::vector<FreeStack> free_stacks;
constexpr size_t kept_stacks = 4096;
}  // namespace

void acquire_stack(Fibre& fibre, size_t bytes) {
  {
    std::lock_guard<std::mutex> hold(free_stacks_lock);
    if (!free_stacks.empty() && free_stacks.back().bytes == bytes) {
      fibre.stack = free_stacks.back().base;
      fibre.stack_bytes = bytes;
      free_stacks.pop_back();
      return;
    }
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    fprintf(stderr, "tilewright emulator: no memory for a thread's stack\n");
    abort();
  }
  mprotect(memory, 4096, PROT_NONE);   // running past the stack stops at once instead of spoiling a neighbour
  fibre.stack = static_cast<char*>(memory);
  fibre.stack_bytes = bytes;
}

void release_stack(Fibre& fibre) {
  if (!fibre.stack) return;
  std::lock_guard<std::mutex> hold(free_stacks_lock);
  if (free_stacks.size() < kept_stacks) free_stacks.push_back({fibre.stack, fibre.stack_bytes});
  else munmap(fibre.stack, fibre.stack_bytes);
  fibre.stack = nullptr;
}

#if defined(__x86_64__) && !defined(TW_BY_UCONTEXT)

extern "C" void tilewright_switch_stack(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl tilewright_switch_stack
.hidden tilewright_switch_stack
.type tilewright_switch_stack, @function
tilewright_switch_stack:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tilewright_switch_stack, .-tilewright_switch_stack
)");

void prepare(Fibre& fibre, void (*entry)()) {
  uintptr_t top = reinterpret_cast<uintptr_t>(fibre.stack + fibre.stack_bytes) & ~uintptr_t(15);
  void** frame = reinterpret_cast<void**>(top);
  *--frame = nullptr;                               // the ABI wants the stack 8 bytes off 16 at a function's first instruction
  *--frame = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--frame = nullptr;
  fibre.stack_pointer = frame;
}

void switch_to(Fibre& from, Fibre& to) { tilewright_switch_stack(&from.stack_pointer, to.stack_pointer); }

#elif defined(__aarch64__) && !defined(TW_BY_UCONTEXT)

extern "C" void tilewright_switch_stack(void** save, void* load);
#if defined(__APPLE__)
#define SYMBOL "_tilewright_switch_stack"
#define HIDDEN ".private_extern "
#else
#define SYMBOL "tilewright_switch_stack"
#define HIDDEN ".hidden "
#endif
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" HIDDEN SYMBOL "\n" SYMBOL R"(:
  stp x19, x20, [sp, #-160]!
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x19, x20, [sp], #160
  ret
)");

void prepare(Fibre& fibre, void (*entry)()) {
  uintptr_t top = reinterpret_cast<uintptr_t>(fibre.stack + fibre.stack_bytes) & ~uintptr_t(15);
  void** frame = reinterpret_cast<void**>(top - 160);
  for (int saved = 0; saved < 20; ++saved) frame[saved] = nullptr;
  frame[11] = reinterpret_cast<void*>(entry);       // x30, where `ret` goes
  fibre.stack_pointer = frame;
}

void switch_to(Fibre& from, Fibre& to) { tilewright_switch_stack(&from.stack_pointer, to.stack_pointer); }

#else

namespace {
ucontext_t* context_of(Fibre& fibre) {
  if (!fibre.stack_pointer) fibre.stack_pointer = new ucontext_t();
  return static_cast<ucontext_t*>(fibre.stack_pointer);
}
}  // namespace

void prepare(Fibre& fibre, void (*entry)()) {
  ucontext_t* context = context_of(fibre);
  getcontext(context);
  context->uc_stack.ss_sp = fibre.stack;
  context->uc_stack.ss_size = fibre.stack_bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

void switch_to(Fibre& from, Fibre& to) { swapcontext(context_of(from), context_of(to)); }

#endif

}  // namespace emulator
