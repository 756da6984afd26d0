// Shadow memory: for every four bytes of shared or global memory, who wrote them last and who has read them since.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace emulator {

struct Thread;

enum SlotFlag : uint8_t {
  slot_write = 1,
  slot_atomic = 2,
  slot_async = 4,       // by the asynchronous proxy (copy engine, matrix unit of a group of warps)
  slot_operation = 8,   // `clock` is the number of an asynchronous operation, which knows when it was waited for
  slot_barrier = 16,    // of a barrier's own words, which are made visible in a way of their own
  slot_constant = 32,   // by a path that takes memory for constant while the kernel runs
};

// One access that later ones must be ordered after: by some threads of a group of 32, at one time of theirs.
struct Slot {
  uint32_t lanes, clock, site;
  uint16_t group : 12;
  uint16_t bytes : 4;   // which of the cell's four bytes
  uint8_t flags;
  uint8_t bits;         // which bits of each of these bytes: elements of less than a byte leave the others alone
};

struct Cell {
  static constexpr int inline_slots = 3;
  Slot slots[inline_slots];
  uint32_t spill;       // first overflow block + 1
  uint32_t cluster;     // whose accesses the slots are, + 1 (global memory)
  uint32_t reader;      // another cluster that has read the cell, + 1; where blocks talk, whether other clusters' slots are kept
  uint8_t count;        // inline slots in use
  uint8_t written;      // bytes that hold a value, or in global memory that this kernel has written; above, those taken for constant
};

struct Spill { Slot slots[4]; uint32_t count, next; };

enum class Space : uint8_t { shared, global };

// Bytes that an operation brings from one place to another, `valid` of them, and zeros behind these.
struct CopyPiece {
  char* to;
  const char* from;
  uint32_t bytes, valid;
  const char* at(const char* address) const {
    static const char zero = 0;
    return size_t(address - to) < valid ? from + (address - to) : &zero;
  }
};

// An access as the checks see it.
struct Access {
  uint8_t flags;              // SlotFlag
  uint32_t site;
  uint32_t operation = 0;     // for slot_operation
  const CopyPiece* piece = nullptr;   // of an operation that writes: what it brings here
  uint8_t bits = 0xFF;        // of each byte
};

// The cells of one range of memory.
class Shadow {
 public:
  Shadow() = default;
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  void cover(Space space, char* base, size_t bytes, bool locked);
  // Check bytes [address, address + size), which lie in the range, against what others did, and remember the access.
  void access(Thread& thread, const char* address, size_t size, const Access& access);
  // Their block leaves: whatever other blocks did here must have been done by then, as far as its threads know.
  void leave(Thread& last, uint32_t first_thread, uint32_t threads);
  void forget(const char* address, size_t size);   // as if never touched (and holding values)

 private:
  void access_cell(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access);
  template <class F> void each(Cell& cell, F visit);   // visit(slot) -> keep?
  void add(Cell& cell, const Slot& slot);
  void meet_cluster(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access);
  void meet_foreign(Thread& thread, Cell& cell, const char* address, uint8_t bytes, const Access& access);
  Space space_ = Space::shared;
  char* base_ = nullptr;
  size_t bytes_ = 0;
  Cell* cells_ = nullptr;
  std::vector<Spill> spills_;
  std::vector<uint32_t> free_spills_;
  struct ForeignSlot { uint32_t cluster; Slot slot; };
  std::unordered_map<uint32_t, std::vector<ForeignSlot>> foreign_;   // by cell: of other clusters, where blocks talk
  struct Locks;
  std::shared_ptr<Locks> locks_;
};

}  // namespace emulator
