// Addresses: whose memory they are, whether an access may touch them, and the registers that fragments stand for.
#include <cstring>

#include "engine.h"

namespace emulator {

namespace {

bool in_shared(const Thread& thread, const char* address) {
  return size_t(address - thread.cluster->shared) < thread.cluster->blocks.size() * window_bytes;
}
bool in_arena(const Engine& engine, const char* address) {
  return uintptr_t(address) >= engine.launch.arena_low && uintptr_t(address) < engine.launch.arena_high;
}
bool on_stack(const Thread& thread, const char* address) { return size_t(address - thread.fibre.stack) < thread.fibre.stack_bytes; }

const TwAllocation* allocation_of(const Engine& engine, uint64_t address) {
  const TwLaunch& launch = engine.launch;
  static thread_local size_t last = 0;
  if (last < launch.allocation_count && launch.allocations[last].low <= address && address < launch.allocations[last].high) return &launch.allocations[last];
  for (size_t i = 0; i < launch.allocation_count; ++i)
    if (launch.allocations[i].low <= address && address < launch.allocations[i].high) {
      last = i;
      return &launch.allocations[i];
    }
  return nullptr;
}

}  // namespace

std::string address_fact(const Thread& thread, const void* pointer) {
  const char* address = static_cast<const char*>(pointer);
  const Engine& engine = engine_of(thread);
  if (in_shared(thread, address)) {
    const size_t offset = size_t(address - thread.cluster->shared);
    return "{\"space\":\"shared\",\"block\":" + number(int64_t(thread.cluster->blocks[offset / window_bytes].number)) +
           ",\"offset\":" + number(int64_t(offset % window_bytes) - int64_t(engine.launch.shared_base)) + "}";
  }
  if (uintptr_t(address) + margin_bytes >= engine.launch.arena_low && uintptr_t(address) < engine.launch.arena_high + margin_bytes) {
    // The allocation that holds it, or the nearest one below, or the first.
    int64_t best = engine.launch.allocation_count ? 0 : -1;
    for (size_t i = 1; i < engine.launch.allocation_count; ++i)
      if (engine.launch.allocations[i].low <= uintptr_t(address) + 2048) best = int64_t(i);
    if (best >= 0)
      return "{\"space\":\"global\",\"argument\":" + number(best) + ",\"offset\":" +
             number(int64_t(uintptr_t(address)) - int64_t(engine.launch.allocations[best].low)) + "}";
  }
  return "{\"space\":\"none\",\"offset\":" + number(int64_t(uintptr_t(address))) + "}";
}

bool check_range(Thread& thread, const void* pointer, size_t size, size_t alignment, bool write, uint32_t site) {
  const char* address = static_cast<const char*>(pointer);
  const Engine& engine = engine_of(thread);
  bool inside = false, harmless = false;
  if (in_shared(thread, address)) {
    const size_t offset = size_t(address - thread.cluster->shared), local = offset % window_bytes;
    inside = local >= engine.launch.shared_base && local + size <= engine.launch.shared_base + engine.launch.shared_bytes;
    harmless = local + size <= window_bytes;
    if (inside && thread.cluster->blocks[offset / window_bytes].live_threads == 0)
      report("exited-block", &thread, site, {{"address", address_fact(thread, address)}});
  } else if (in_arena(engine, address)) {
    const TwAllocation* allocation = allocation_of(engine, uintptr_t(address));
    inside = allocation && uintptr_t(address) + size <= allocation->high;
    harmless = uintptr_t(address) + size <= engine.launch.arena_high;
  } else if (on_stack(thread, address) || (uintptr_t(address) >= engine.launch.text_low && uintptr_t(address) < engine.launch.text_high)) {
    return true;
  }
  if (!inside) {
    report("out-of-bounds", &thread, site,
           {{"address", address_fact(thread, address)}, {"bytes", number(int64_t(size))}, {"write", write ? "true" : "false"}});
    if (!harmless) abort_cluster();
    return false;
  }
  if (alignment > 1 && uintptr_t(address) % alignment) {
    report("misaligned", &thread, site,
           {{"address", address_fact(thread, address)}, {"bytes", number(int64_t(size))}, {"alignment", number(int64_t(alignment))}, {"write", write ? "true" : "false"}});
  }
  return true;
}

void touch(Thread& thread, const void* pointer, size_t size, const Access& access) {
  const char* address = static_cast<const char*>(pointer);
  if (in_shared(thread, address)) {
    thread.cluster->blocks[size_t(address - thread.cluster->shared) / window_bytes].shadow.access(thread, address, size, access);
  } else if (in_arena(engine_of(thread), address)) {
    Engine& engine = engine_of(thread);
    const TwAllocation* allocation = engine.launch.promises ? allocation_of(engine, uintptr_t(address)) : nullptr;
    if (allocation && (allocation->promises & TW_CONSTANT) && (access.flags & slot_write))
      report("constant-written", &thread, access.site, {{"address", address_fact(thread, address)}, {"write", "true"}});
    if (allocation && (allocation->promises & TW_UNSETTLED) && !after_grid_wait(thread))
      report("before-grid-wait", &thread, access.site, {{"address", address_fact(thread, address)}, {"write", access.flags & slot_write ? "true" : "false"}});
    engine.global_shadow.access(thread, address, size, access);
  }
}

void generic_read(const void* address, size_t size, uint32_t site) { touch(*self, address, size, Access{0, site}); }
void generic_write(const void* address, size_t size, uint32_t site) { touch(*self, address, size, Access{slot_write, site}); }

// A cluster address has the block's rank + 1 in its top byte; an address without one is the block's own.
Block& block_of_address(Thread& thread, uint32_t address) {
  const uint32_t top = address >> 24;
  if (top == 0) return *thread.block;
  if (top > thread.cluster->blocks.size()) {
    report("out-of-bounds", &thread, thread.site, {{"address", "{\"space\":\"cluster\",\"offset\":" + number(address) + "}"}, {"bytes", "0"}, {"write", "false"}});
    abort_cluster();
  }
  return thread.cluster->blocks[top - 1];
}

char* shared_pointer(Thread& thread, uint32_t address, size_t size, size_t alignment, uint32_t site) {
  Block& block = block_of_address(thread, address);
  const uint32_t offset = address & 0xFFFFFF;
  if (offset >= window_bytes) {
    report("out-of-bounds", &thread, site,
           {{"address", "{\"space\":\"shared\",\"block\":" + number(block.number) + ",\"offset\":" + number(int64_t(offset) - engine_of(thread).launch.shared_base) + "}"},
            {"bytes", number(int64_t(size))}, {"write", "false"}});
    abort_cluster();
  }
  char* pointer = block.shared + offset;
  if (engine_of(thread).check) check_range(thread, pointer, size, alignment, false, site);
  else if (offset + size > window_bytes) abort_cluster();
  return pointer;
}

// ---- registers
Registers* find_registers(Thread& thread, const void* low) {
  const char* address = static_cast<const char*>(low);
  std::vector<Registers>& all = thread.registers;
  if (thread.last_registers < all.size()) {
    Registers& last = all[thread.last_registers];
    if (size_t(address - last.low) < last.bytes) return &last;
  }
  for (size_t i = all.size(); i-- > 0;)
    if (size_t(address - all[i].low) < all[i].bytes) {
      thread.last_registers = i;
      return &all[i];
    }
  return nullptr;
}

namespace {

template <class F> void each_register(Registers& registers, const void* low, size_t bytes, F visit) {
  size_t offset = size_t(static_cast<const char*>(low) - registers.low);
  const size_t end = offset + bytes < registers.bytes ? offset + bytes : registers.bytes;
  while (offset < end) {
    const size_t in_word = offset % 4, take = end - offset < 4 - in_word ? end - offset : 4 - in_word;
    visit(registers.state[offset / 4], uint8_t(((1u << take) - 1) << in_word));
    offset += take;
  }
}

// The fragment that an instruction's operand lies in, all of it.
Registers* operand_registers(Thread& thread, const void* low, size_t bytes, uint32_t site) {
  Registers* registers = find_registers(thread, low);
  if (registers && size_t(static_cast<const char*>(low) - registers->low) + bytes <= registers->bytes) return registers;
  report("register-index", &thread, site, {{"index", registers ? number(int64_t(static_cast<const char*>(low) - registers->low + int64_t(bytes)) / 4) : "0"}});
  abort_cluster();
}

}  // namespace

void read_registers(Thread& thread, const void* low, size_t bytes, uint32_t site) {
  Registers* registers = operand_registers(thread, low, bytes, site);
  bool unwritten = false, awaited = false;
  each_register(*registers, low, bytes, [&](uint8_t& state, uint8_t mask) {
    if (state & register_awaited) awaited = true;
    else if ((state & mask) != mask) unwritten = true;
  });
  if (awaited) report("accumulator-read", &thread, site, {});
  if (unwritten) report("unwritten-register", &thread, site, {});
}

void write_registers(Thread& thread, const void* low, size_t bytes, uint32_t site) {
  Registers* registers = operand_registers(thread, low, bytes, site);
  bool awaited = false, lent = false;
  each_register(*registers, low, bytes, [&](uint8_t& state, uint8_t mask) {
    if (state & register_awaited) awaited = true;
    if (state & register_lent) lent = true;
    state |= mask;
  });
  registers->fence_epoch = thread.matrix_fences + 1;
  if (awaited) report("accumulator-written", &thread, site, {});
  if (lent) report("operand-written", &thread, site, {});
}

void set_register_state(Thread& thread, const void* low, size_t bytes, uint8_t set, uint8_t clear) {
  Registers* registers = find_registers(thread, low);
  if (registers) each_register(*registers, low, bytes, [&](uint8_t& state, uint8_t) { state = uint8_t((state & ~clear) | set); });
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void tw_registers_enter(void* low, tw_u32 bytes) {
  if (!self) return;
  self->registers.push_back({static_cast<char*>(low), bytes, 0, std::vector<uint8_t>((bytes + 3) / 4)});
}

void tw_registers_leave(void* low) {
  if (!self) return;
  std::vector<Registers>& all = self->registers;
  for (size_t i = all.size(); i-- > 0;)
    if (all[i].low == low) {
      for (uint8_t state : all[i].state)
        if (state & (register_awaited | register_lent)) {
          report(state & register_awaited ? "accumulator-lost" : "operand-written", self, self->site, {});
          break;
        }
      all.erase(all.begin() + long(i));
      return;
    }
}

void tw_register_index(const void* fragment, tw_i32 index, tw_u32 size) {
  if (!self || (tw_u32(index) < size && find_registers(*self, fragment))) return;
  report("register-index", self, tw_u32(uintptr_t(__builtin_return_address(0)) - engine_of(*self).launch.text_low), {{"index", number(index)}});
  abort_cluster();
}

void tw_registers_written(void* low, tw_u32 bytes) {
  if (self) set_register_state(*self, low, bytes, register_written, 0);
}

void tw_registers_copy(void* to, const void* from, tw_u32 bytes) {
  if (!self) return;
  Registers* source = find_registers(*self, from);
  if (source) {
    const size_t first = size_t(static_cast<const char*>(from) - source->low) / 4;
    const std::vector<uint8_t> states(source->state.begin() + long(first), source->state.begin() + long(first + (bytes + 3) / 4));
    for (uint8_t state : states)
      if (state & register_awaited) {
        report("accumulator-read", self, self->site, {});
        break;
      }
    if (Registers* target = find_registers(*self, to))
      for (size_t i = 0; i < states.size(); ++i) target->state[size_t(static_cast<char*>(to) - target->low) / 4 + i] = states[i] & register_written;
  } else {
    set_register_state(*self, to, bytes, register_written, 0);
  }
  memmove(to, from, bytes);
}

static void load(void* to, const void* from, tw_u32 bytes, uint8_t flags, TwSite position) {
  enter(TW_LOAD, position);
  if (checking()) {
    check_range(*self, from, bytes, bytes, false, self->site);
    touch(*self, from, bytes, Access{flags, self->site});
  }
  memcpy(to, from, bytes);
}

void tw_load(void* to, const void* from, tw_u32 bytes, TwSite position) { load(to, from, bytes, 0, position); }
void tw_load_constant(void* to, const void* from, tw_u32 bytes, TwSite position) { load(to, from, bytes, slot_constant, position); }

void tw_store(void* to, const void* from, tw_u32 bytes, TwSite position) {
  if (enter(TW_STORE, position).skip) return;
  if (checking()) {
    check_range(*self, to, bytes, bytes, true, self->site);
    generic_write(to, bytes, self->site);
  }
  memcpy(to, from, bytes);
}

unsigned char* tw_dynamic_shared() { return reinterpret_cast<unsigned char*>(self->block->shared + self->cluster->engine->launch.shared_base); }

tw_u32 tw_shared_address(const void* pointer, TwSite position) {
  const char* address = static_cast<const char*>(pointer);
  if (!in_shared(*self, address)) {
    report("not-shared", self, site_of(position), {{"address", address_fact(*self, pointer)}});
    abort_cluster();
  }
  const size_t offset = size_t(address - self->cluster->shared);
  const uint32_t rank = uint32_t(offset / window_bytes);
  return uint32_t(offset % window_bytes) | (rank == self->block->rank ? 0u : (rank + 1) << 24);
}

void* tw_shared_pointer(tw_u32 address, TwSite position) {
  Block& block = block_of_address(*self, address);
  (void)position;
  return block.shared + (address & 0xFFFFFF);
}

tw_u32 tw_map_shared(tw_u32 address, tw_u32 rank, TwSite position) {
  if (rank >= self->cluster->blocks.size()) {
    report("no-such-block", self, site_of(position), {{"rank", number(rank)}, {"blocks", number(int64_t(self->cluster->blocks.size()))}});
    abort_cluster();
  }
  return (address & 0xFFFFFF) | (rank + 1) << 24;
}

void* tw_map_pointer(const void* pointer, tw_u32 rank, TwSite position) {
  return tw_shared_pointer(tw_map_shared(tw_shared_address(pointer, position), rank, position), position);
}

}  // extern "C"
