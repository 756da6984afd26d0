// Checking one access against those before it, cell by cell.
#include "shadow.h"

#include <sys/mman.h>

#include <atomic>
#include <mutex>

#include "engine.h"

namespace emulator {

struct Shadow::Locks {
  std::atomic_flag cells[256] = {};
  std::mutex spills;
};

namespace {

struct CellLock {
  std::atomic_flag* flag;
  explicit CellLock(std::atomic_flag* f) : flag(f) {
    if (flag) while (flag->test_and_set(std::memory_order_acquire)) {}
  }
  ~CellLock() { if (flag) flag->clear(std::memory_order_release); }
};

bool same_source(const Slot& a, const Slot& b) { return a.group == b.group && a.clock == b.clock && a.flags == b.flags; }

// Which mistake an unordered pair of accesses is.
const char* conflict_kind(const Slot& before, uint8_t now, Space space) {
  const bool copy_before = before.flags & (slot_operation | slot_async), written_before = before.flags & slot_write;
  const bool copy_now = now & (slot_operation | slot_async), writes_now = now & slot_write;
  if (written_before && copy_before && !writes_now) return "early-read";
  if (written_before && copy_before) return "overwritten-copy";
  if (!written_before && writes_now && (copy_before || copy_now)) return "overwritten";
  return space == Space::shared ? "race-shared" : "race-global";
}

std::string slot_place(const Cluster& cluster, const Slot& slot) {
  if (slot.flags & slot_operation) return place(cluster, cluster.operations[slot.clock].thread);
  const uint32_t thread = slot.group * group_size + uint32_t(__builtin_ctz(slot.lanes ? slot.lanes : 1));
  return thread < cluster.thread_count ? place(cluster, thread) : "null";
}

// Two ordinary stores of one value do no harm, and what will be stored is known only when it has been.
void doubt_or_report(Thread& thread, const Slot& slot, const Access& access, const char* address, uint8_t bytes, const char* kind, const std::vector<Fact>& facts) {
  if (access.flags != slot_write || slot.flags != slot_write) {
    report(kind, &thread, access.site, facts);
    return;
  }
  Doubted doubt{address, std::string(address, size_t(__builtin_popcount(bytes))), access.site, {}, kind};
  for (const Fact& fact : facts) doubt.facts.push_back({fact.name, fact.value});
  thread.doubted.push_back(std::move(doubt));
}

void report_conflict(Thread& thread, const Slot& slot, const Access& access, const char* address, uint8_t bytes, const char* kind) {
  const std::vector<Fact> facts = {{"address", address_fact(thread, address)},
                                   {"write", access.flags & slot_write ? "true" : "false"},
                                   {"asynchronous", access.flags & (slot_async | slot_operation) ? "true" : "false"},
                                   {"other_site", number(slot.site)},
                                   {"other_write", slot.flags & slot_write ? "true" : "false"},
                                   {"other_asynchronous", slot.flags & (slot_async | slot_operation) ? "true" : "false"},
                                   {"other", slot_place(*thread.cluster, slot)}};
  doubt_or_report(thread, slot, access, address, bytes, kind, facts);
}

}  // namespace

Shadow::~Shadow() {
  if (cells_) munmap(cells_, bytes_ / 4 * sizeof(Cell));
}

void Shadow::cover(Space space, char* base, size_t bytes, bool locked) {
  space_ = space;
  base_ = base;
  bytes_ = (bytes + 3) & ~size_t(3);
  if (!bytes_) return;
  void* memory = mmap(nullptr, bytes_ / 4 * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cells_ = memory == MAP_FAILED ? nullptr : static_cast<Cell*>(memory);
  if (locked) locks_ = std::make_shared<Locks>();
}

template <class F> void Shadow::each(Cell& cell, F visit) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < cell.count; ++i)
    if (visit(cell.slots[i])) {
      if (kept != i) cell.slots[kept] = cell.slots[i];
      ++kept;
    }
  cell.count = uint8_t(kept);
  if (!cell.spill) return;
  std::unique_lock<std::mutex> hold;
  if (locks_) hold = std::unique_lock<std::mutex>(locks_->spills);
  uint32_t* link = &cell.spill;
  while (*link) {
    Spill& spill = spills_[*link - 1];
    uint32_t left = 0;
    for (uint32_t i = 0; i < spill.count; ++i)
      if (visit(spill.slots[i])) spill.slots[left++] = spill.slots[i];
    spill.count = left;
    if (left) {
      link = &spill.next;
    } else {
      free_spills_.push_back(*link);
      *link = spill.next;
    }
  }
}

void Shadow::add(Cell& cell, const Slot& slot) {
  if (cell.count < Cell::inline_slots) {
    cell.slots[cell.count++] = slot;
    return;
  }
  std::unique_lock<std::mutex> hold;
  if (locks_) hold = std::unique_lock<std::mutex>(locks_->spills);
  if (!cell.spill || spills_[cell.spill - 1].count == 4) {
    uint32_t fresh;
    if (free_spills_.empty()) {
      spills_.emplace_back();
      fresh = uint32_t(spills_.size());
    } else {
      fresh = free_spills_.back();
      free_spills_.pop_back();
    }
    spills_[fresh - 1].count = 0;
    spills_[fresh - 1].next = cell.spill;
    cell.spill = fresh;
  }
  Spill& spill = spills_[cell.spill - 1];
  spill.slots[spill.count++] = slot;
}

void Shadow::access(Thread& thread, const char* address, size_t size, const Access& access) {
  if (!cells_) return;
  size_t offset = size_t(address - base_);
  const size_t end = offset + size < bytes_ ? offset + size : bytes_;   // what lies beyond was reported as out of bounds
  while (offset < end) {
    const size_t index = offset / 4, in_cell = offset % 4, take = end - offset < 4 - in_cell ? end - offset : 4 - in_cell;
    const uint8_t bytes = uint8_t(((1u << take) - 1) << in_cell);
    CellLock hold(locks_ ? &locks_->cells[index % 256] : nullptr);
    access_cell(thread, cells_[index], base_ + offset, bytes, access);
    offset += take;
  }
}

void Shadow::forget(const char* address, size_t size) {
  if (!cells_) return;
  const size_t first = size_t(address - base_) / 4, last = (size_t(address - base_) + size + 3) / 4;
  for (size_t index = first; index < last; ++index) {
    each(cells_[index], [](Slot&) { return false; });
    cells_[index].written = 0x0F;
  }
}

void Shadow::leave(Thread& last, uint32_t first_thread, uint32_t threads) {
  if (!cells_) return;
  Cluster& cluster = *last.cluster;
  const auto foreign = [&](uint32_t thread) { return thread < first_thread || thread >= first_thread + threads; };
  for (size_t index = 0; index < bytes_ / 4; ++index)
    each(cells_[index], [&](Slot& slot) {
      uint32_t late = ~0u;
      if (slot.flags & slot_operation) {
        const uint32_t thread = cluster.operations[slot.clock].thread;
        if (foreign(thread) && !ordered(last, slot, space_)) late = thread;
      } else {
        for (uint32_t rest = slot.lanes; rest; rest &= rest - 1) {
          const uint32_t thread = slot.group * group_size + uint32_t(__builtin_ctz(rest));
          if (foreign(thread) && !knows(last, thread, slot.clock)) late = thread;
        }
      }
      if (late < cluster.thread_count)
        report("exited-block", &cluster.threads[late], slot.site, {{"address", address_fact(last, base_ + index * 4)}});
      return true;
    });
}

namespace {

bool collide(const Slot& slot, uint8_t bytes, const Access& access) {
  return (slot.bytes & bytes) && (slot.bits & access.bits) && ((access.flags | slot.flags) & slot_write) && !(slot.flags & access.flags & slot_atomic);
}

// What an access stands for from now on: bytes of which it has all bits that the earlier one had.
bool covers(const Access& access, const Slot& slot) { return !(slot.bits & ~access.bits); }

void report_foreign(Thread& thread, uint32_t cluster, const Slot& slot, const Access& access, const char* address, uint8_t bytes, const char* kind) {
  doubt_or_report(thread, slot, access, address, bytes, kind,
                  {{"address", address_fact(thread, address)}, {"write", access.flags & slot_write ? "true" : "false"}, {"other_site", number(slot.site)},
                   {"other_write", slot.flags & slot_write ? "true" : "false"}, {"other_cluster", number(cluster)}});
}

}  // namespace

// The cell's slots are another cluster's.  Where blocks talk they are kept beside it; elsewhere nothing orders the two.
void Shadow::meet_cluster(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access) {
  const uint32_t mine = thread.cluster->number;
  if (engine_of(thread).launch.talks) {
    if (cell.cluster || cell.reader) {
      std::vector<ForeignSlot>& kept = foreign_[uint32_t(size_t(address - base_) / 4)];
      std::vector<Slot> own;
      for (size_t i = kept.size(); i-- > 0;)
        if (kept[i].cluster == mine) {
          own.push_back(kept[i].slot);
          kept.erase(kept.begin() + long(i));
        }
      each(cell, [&](Slot& slot) {
        kept.push_back({cell.cluster - 1, slot});
        return false;
      });
      for (const Slot& slot : own) add(cell, slot);
      cell.reader = 1;
    }
  } else if (cell.cluster) {
    bool read_by_them = false;
    each(cell, [&](Slot& slot) {
      if (!(slot.flags & slot_write)) read_by_them = true;
      if (collide(slot, bytes, access)) report_foreign(thread, cell.cluster - 1, slot, access, address, bytes, "race-global");
      return false;
    });
    if (access.flags & slot_write) {
      if (cell.reader && cell.reader != mine + 1 && !(access.flags & slot_atomic))
        report("race-global", &thread, access.site,
               {{"address", address_fact(thread, address)}, {"write", "true"}, {"other_site", "0"}, {"other_write", "false"},
                {"other_cluster", number(cell.reader - 1)}});
      cell.reader = 0;
    } else if (read_by_them) {
      cell.reader = cell.cluster;
    }
  }
  cell.cluster = mine + 1;
}

// Against every other cluster's accesses: ordered by what was acquired from it by way of global memory.
void Shadow::meet_foreign(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access) {
  const auto found = foreign_.find(uint32_t(size_t(address - base_) / 4));
  if (found == foreign_.end()) return;
  std::vector<ForeignSlot>& kept = found->second;
  size_t left = 0;
  for (ForeignSlot& other : kept) {
    if (collide(other.slot, bytes, access)) {
      if (!ordered_foreign(thread, other.cluster, other.slot))
        report_foreign(thread, other.cluster, other.slot, access, address, bytes, conflict_kind(other.slot, access.flags, space_));
      else if ((access.flags & slot_async) && (other.slot.flags & slot_write) && !(other.slot.flags & (slot_async | slot_operation)) &&
               !fenced_foreign(thread, other.cluster, other.slot))
        report_foreign(thread, other.cluster, other.slot, access, address, bytes, "missing-proxy-fence");
      if ((access.flags & slot_write) && covers(access, other.slot)) other.slot.bytes &= uint8_t(~bytes);
    } else if (access.flags & other.slot.flags & slot_atomic && access.flags & other.slot.flags & slot_write && covers(access, other.slot)) {
      other.slot.bytes &= uint8_t(~bytes);              // atomics at one place have an order: whoever is after mine is after theirs
    }
    if (other.slot.bytes) kept[left++] = other;
  }
  kept.resize(left);
  if (kept.empty()) {
    foreign_.erase(found);
    cell.reader = 0;
  }
}

void Shadow::access_cell(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access) {
  const bool write = access.flags & slot_write;
  Slot mine;
  mine.site = access.site;
  mine.bytes = bytes;
  mine.flags = access.flags;
  mine.bits = access.bits;
  if (access.flags & slot_operation) {
    mine.group = 0xFFF;
    mine.lanes = 0;
    mine.clock = access.operation;
  } else {
    mine.group = uint16_t(thread.index / group_size);
    mine.lanes = 1u << (thread.index % group_size);
    mine.clock = thread.clock;
  }

  // The same access again, with nothing in between: it has been checked.
  for (uint32_t i = 0; i < cell.count && !(mine.flags & slot_operation); ++i) {
    const Slot& slot = cell.slots[i];
    if (same_source(slot, mine) && slot.bits == mine.bits && (slot.lanes & mine.lanes) == mine.lanes && (slot.bytes & bytes) == bytes && (!write || cell.count == 1) &&
        (space_ == Space::shared || cell.cluster == thread.cluster->number + 1))
      return;
  }

  if (space_ == Space::shared) {
    if (!write || ((access.flags & slot_atomic) && access.bits == 0xFF)) {
      if ((cell.written & bytes) != bytes)
        report("unwritten-shared", &thread, access.site, {{"address", address_fact(thread, address)}});
    }
    if (write) cell.written |= bytes;
  } else {
    const uint8_t before = access.flags & slot_constant ? cell.written : cell.written >> 4;
    if ((write || (access.flags & slot_constant)) && (before & bytes & 0xF))
      report("constant-written", &thread, access.site, {{"address", address_fact(thread, address)}, {"write", write ? "true" : "false"}});
    if (write) cell.written |= bytes;
    if (access.flags & slot_constant) cell.written |= uint8_t(bytes << 4);
    if (cell.cluster != thread.cluster->number + 1) meet_cluster(thread, cell, address, bytes, access);
    if (engine_of(thread).launch.talks && cell.reader) meet_foreign(thread, cell, address, bytes, access);
  }

  bool merged = false;
  each(cell, [&](Slot& slot) {
    const uint8_t common = slot.bytes & bytes;
    if (collide(slot, bytes, access)) {
      if (!ordered(thread, slot, space_)) {
        const bool itself = same_source(slot, mine) && slot.lanes == mine.lanes;
        const bool copies = (slot.flags & mine.flags & slot_operation) && (slot.flags & mine.flags & slot_write) && (access.piece || !itself);
        const std::deque<Operation>& operations = thread.cluster->operations;
        if (copies ? !bring_the_same(operations[slot.clock], operations[mine.clock], access.piece, address, bytes) : !itself)
          report_conflict(thread, slot, access, address, bytes, conflict_kind(slot, access.flags, space_));
      } else if ((access.flags & slot_async) && !(slot.flags & slot_async) && ((slot.flags & slot_write) || space_ == Space::shared) && !fenced(thread, slot, space_)) {
        report_conflict(thread, slot, access, address, bytes, "missing-proxy-fence");
      }
    }
    if (write && common && covers(access, slot) && !(slot.flags & access.flags & slot_atomic)) {
      slot.bytes &= uint8_t(~bytes);
      return slot.bytes != 0;
    }
    if (slot.flags == mine.flags && slot.group == mine.group && slot.bits == mine.bits) {
      if (slot.clock == mine.clock && (slot.bytes == bytes || slot.lanes == mine.lanes)) {
        slot.lanes |= mine.lanes;
        slot.bytes |= bytes;
        merged = true;
      } else if (slot.bytes == bytes && !(slot.flags & slot_operation)) {
        slot.lanes &= ~mine.lanes;                      // an older access of mine: the new one stands for it
        return slot.lanes != 0;
      }
    }
    return true;
  });
  if (merged) return;
  if (cell.count == Cell::inline_slots && !write)       // reads that everybody ordered after me is ordered after too
    each(cell, [&](Slot& slot) { return (slot.flags & slot_write) || (slot.bytes & ~bytes) || !covers(access, slot) || !ordered(thread, slot, space_); });
  add(cell, mine);
}

}  // namespace emulator
