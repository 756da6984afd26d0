// The emulator's core: threads, warps, blocks, clusters, and the engine that runs a grid of them.
//
// Nothing here knows a vendor's vocabulary beyond what every one of them has; the warp size is a parameter.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "fibre.h"
#include "interface.h"
#include "shadow.h"

namespace emulator {

struct Engine;
struct Cluster;
struct Block;
struct Warp;
struct Thread;
struct TransactionBarrier;

enum class Waiting : uint8_t { nothing, collective, block_barrier, transaction_barrier, cluster_barrier, group, warps, registers, poll };

// Memory of a thread that stands for registers: a fragment.  One state byte for each four bytes.
struct Registers {
  char* low;
  uint32_t bytes;
  uint32_t fence_epoch;               // the thread's count of matrix fences when it last wrote here, + 1
  std::vector<uint8_t> state;
};
enum RegisterState : uint8_t { register_written = 0x0F, register_awaited = 0x10, register_lent = 0x20 };

// Copies of one thread that are waited for together.
struct CopyGroup {
  uint32_t operation = 0;             // 0: none issued yet; of a store its reading, and the next number its writing
  std::vector<CopyPiece> pieces;      // of loads that have not landed
  std::vector<std::function<void()>> read, write;   // what is still to be done of stores
};

// A write over another thread's unordered write: no mistake if it leaves the very value that is there.
struct Doubted {
  const char* address;
  std::string before;
  uint32_t site;
  std::vector<std::pair<const char*, std::string>> facts;
  const char* kind;
};

struct Thread {
  TwThread visible;                   // first: kernel text holds a pointer to it
  Cluster* cluster;
  Block* block;
  Warp* warp;
  uint32_t index, lane;               // in the cluster; in the warp
  Fibre fibre;
  ClockRef base;
  uint32_t clock = 1;
  Fenced fenced;
  ClockRef at_proxy_fence[2];         // what it knew of others at its last proxy fence, by space
  uint32_t site = 0;
  bool exited = false, left = false;  // left: by a statement that says so
  Waiting waiting = Waiting::nothing;
  uint32_t operation = 0;             // what it waits in (TwOperation)
  void* awaited = nullptr;
  uint64_t awaited_value = 0;
  std::vector<Doubted> doubted;
  std::vector<Registers> registers;
  size_t last_registers = 0;
  uint32_t matrix_fences = 1;
  const void* part = nullptr;         // of a word, which is what its atomic functions are about, and its size
  uint32_t part_bytes = 0;
  ClockRef at_fence;                  // what it knew at its last fence: an atomic after a fence releases
  uint32_t fence_clock = 0;           // its own clock then
  uint32_t grid_waited = 0;           // its clock when it knew that the kernels before had ended
  uint64_t cluster_arrival = 0;       // generation of the cluster barrier it has arrived at, + 1
  std::vector<uint32_t> arrivals;     // copies of its own that complete on a barrier and that it has not yet seen land
  CopyGroup open_copies, open_stores;
  std::deque<CopyGroup> copies, stores;
};

// Lanes of a warp that execute one instruction together.
struct Meeting {
  uint64_t mask = 0, arrived = 0, key = 0;
  uint32_t operation = 0, site = 0;
  bool executing = false;
  void* operands[64];
};

// Warps that do something together: the meetings of those that have come, each of which one lane waits for the others.
struct WideMeeting {
  std::vector<const Meeting*> warps;
  std::vector<Thread*> waiting;
};

struct Warp {
  Cluster* cluster;
  Block* block;
  uint32_t index, lanes;              // in the block; number of lanes
  Thread* threads;                    // [lanes]
  uint64_t ready = 0, live = 0, full = 0;
  Meeting meeting;                    // of all lanes
  std::vector<std::unique_ptr<Meeting>> partial;
  uint32_t registers = 0;
  std::vector<std::pair<uint32_t, uint32_t>> budgets;   // what it set: where, how many
  uint64_t priority = 0;
  // Asynchronous products of a group of warps: how many were issued, where each committed group ends, and up to where was waited.
  uint32_t issued = 0, waited = 0, committed = 0;
  std::deque<uint32_t> group_ends;
};

struct NamedBarrier {
  uint32_t expected = 0, arrived = 0, site = 0;
  uint64_t generation = 0;
  std::vector<uint8_t> arrivals;      // of each thread of the block
  std::vector<uint32_t> sites;        // where each warp met it
  std::vector<Thread*> waiting;
  Gathering gathering;
};

struct TransactionBarrier {
  Block* block;
  uint32_t offset;
  uint32_t expected = 0, pending = 0;
  int64_t bytes = 0;                  // expected and not yet arrived, of this phase
  uint64_t phase = 0;
  uint32_t entry = ~0u;               // its clock entry, once copies complete on it
  uint32_t issued = 0;                // copies issued
  std::vector<uint32_t> in_flight;    // numbers of those that have not landed
  Gathering gathering;
  ClockRef completed, completed_here; // with everything, and with what this block alone may rely on
  Thread* initialiser = nullptr;
  uint32_t initialised_at = 0, init_site = 0, tx_site = 0, arrive_site = 0;
  bool valid = false, fenced = false;
  std::vector<Thread*> waiting;
};

// Something asynchronous: a copy, a store's reading, its writing, a matrix product.  Its accesses are slots with its number: memory is
// read and written until it is complete for those who look, by whichever of these events it completes.
struct Operation {
  uint32_t site;
  uint32_t thread = 0, clock = 0;     // its thread's wait; 0: not yet waited for
  uint32_t entry = ~0u, entry_clock = 0;   // a phase of a barrier, by the barrier's clock entry; `clock` is when its own thread saw it
  std::unique_ptr<uint32_t[]> clocks; // waits of a group of threads, of which each counts
  uint32_t lanes = 0;
  const Clock* known = nullptr;       // a clock that is known to be after it
  ClockRef known_reference;
  std::vector<CopyPiece> pieces;      // what it brings, as far as it is bytes as they are
  std::vector<std::function<const char*(const char*)>> sources;   // or where the byte at an address comes from, null where not from here
};

// Something that will happen by itself, sooner or later.
struct Pending {
  std::function<void()> land;
  TransactionBarrier* barrier;
  uint64_t order;
};

struct GroupState;                    // of a vocabulary's own: products of several warps that are still under way

struct Block {
  Cluster* cluster;
  uint32_t rank, number;              // in the cluster, in the grid
  char* shared;                       // base of its window
  std::vector<Warp*> warps;
  uint32_t live_threads = 0;
  Gathering leaving;                  // what its threads knew that have left
  Shadow shadow;
  std::unordered_map<uint32_t, std::unique_ptr<TransactionBarrier>> barriers;
  std::vector<NamedBarrier> named;    // the first is that of the whole block
  uint32_t register_pool = 0;
  uint32_t votes[2][2] = {}, vote_round = 0;   // of sync_threads with a predicate: yes, all
  std::vector<std::shared_ptr<GroupState>> groups;
  std::unordered_map<uint32_t, WideMeeting> wide;   // by their first warp
};

// An atomic update of global memory by a thread, at a time of its own.
struct AtomicDone { uintptr_t address; uint32_t thread, clock; };

// A line that a thread printed, and by which statement: its format.
struct Printed {
  const Warp* warp;
  uint32_t lane;
  const char* statement;
  std::string text;
};

struct Cluster {
  Engine* engine;
  uint32_t number;
  std::vector<Block> blocks;
  std::unique_ptr<Thread[]> threads;
  std::unique_ptr<Warp[]> warps;
  uint32_t thread_count, warp_count, live;
  uint32_t clock_length, next_entry;
  char* shared = nullptr;             // windows of all its blocks
  std::shared_ptr<std::deque<Operation>> history = std::make_shared<std::deque<Operation>>();
  std::deque<Operation>& operations = *history;
  std::deque<Pending> pending;
  uint64_t pending_order = 0;
  NamedBarrier meeting_point;         // the cluster barrier
  ClockRef met;                       // what was known when it last completed
  Fibre scheduler;
  Thread* running = nullptr;
  bool aborted = false, started = false, preempted = false, looks = false;   // looks: let the outside be asked, then go on with the same thread
  uint64_t random = 0, progress = 0, polled_at = ~0ull, steps = 0;
  uint32_t ticks = 0;                 // accesses and calls since the clock was looked at
  std::vector<Thread*> grid_waiters;  // threads that waited for the kernels before
  bool fences = false;                // some thread has fenced
  std::vector<AtomicDone> atomics;    // by its threads: a fence after an atomic acquires
  std::vector<Printed> printed;       // as its threads ran

  void start();
  bool step_until_stuck();            // false: finished
  void finish();
  uint64_t draw();
  uint64_t draw(uint64_t below) { return draw() % below; }
  uint32_t new_operation(uint32_t site);
  uint32_t new_entry();
};

constexpr size_t window_bytes = 512 << 10;   // of addresses for one block's shared memory
constexpr size_t margin_bytes = 1 << 30;      // of untouchable addresses around shared and global memory
constexpr size_t stack_bytes = 256 << 10;

struct Engine {
  TwLaunch launch;
  bool check;
  Shadow global_shadow;
  std::mutex lock;
  std::string reports, events;
  std::map<uint64_t, std::string> printed;   // by block: lines in JSON
  uint32_t report_count = 0, event_count = 0;
  std::map<std::string, uint32_t> seen;
  std::map<uint64_t, uint64_t> fault_counts;
  std::vector<std::pair<const char*, uint32_t>> positions;
  std::map<std::pair<const char*, uint32_t>, uint32_t> position_ids;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> census;   // (operation, site) -> executions
  std::mutex atomics;
  std::unordered_map<uintptr_t, std::vector<Foreign>> released;            // by release to a global address
  std::unordered_map<uint32_t, std::shared_ptr<std::deque<Operation>>> histories;   // by cluster, where blocks talk
  std::atomic<uint64_t> progress{0};
  std::atomic<uint32_t> reported{0};
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> ended{0};     // clusters
  std::atomic<uint64_t> looked{0};    // when somebody outside was last asked whether to go on
  uint64_t deadline = 0;              // in milliseconds of the monotonic clock; 0: none
};

extern __thread Thread* self __attribute__((tls_model("initial-exec")));   // read at every access

inline Engine& engine_of(const Thread& thread) { return *thread.cluster->engine; }
inline bool checking() { return self->cluster->engine->check; }

// ---- scheduler.cpp: giving way
void block_thread(Thread& thread, Waiting waiting, void* awaited, uint64_t value = 0);   // until wake()
void wake(Thread& thread);
void give_way();                                   // let others run, stay ready
void poll();                                       // let others run until something has happened
[[noreturn]] void abort_cluster();

// ---- printed.cpp
void hand_over_printed(Cluster& cluster);
uint64_t milliseconds();
void look_at_clock(Thread& thread);                // report a run that takes too long; let the outside say whether to go on
void may_ask(bool is);                             // this OS thread is the one that called
void ask_outside(Engine& engine);                  // on the OS thread that called, and its own stack
inline void tick(Thread& thread) {
  if (++thread.cluster->ticks >= 1u << 17) look_at_clock(thread);
}
void pend(Cluster& cluster, TransactionBarrier* barrier, std::function<void()> land);   // happens now, later or at random

// ---- report.cpp
struct Fact { const char* name; std::string value; };
uint32_t site_of(TwSite position);
void report(const char* kind, const Thread* thread, uint32_t site, std::vector<Fact> facts);
void settle_doubts(Thread& thread);                // after the thread's store has happened
std::string number(int64_t value);
std::string text(const std::string& value);
std::string place(const Cluster& cluster, uint32_t thread_index);      // {"block":..,"warp":..,"lane":..}
std::string address_fact(const Thread& thread, const void* address);   // where an address lies, for a reader
void event(const Thread& thread, const char* name, char phase, std::string arguments = "");
void deadlock(Cluster& cluster);

// ---- vocabulary calls: note the place, apply a planted fault, count, trace.
struct Planted { bool skip = false; int64_t delta = 0; uint64_t flip = 0; };
Planted enter(TwOperation operation, TwSite position);

// ---- order.cpp: what is known to have happened before what
bool knows(const Thread& thread, uint32_t entry, uint32_t clock);
bool ordered(Thread& thread, const Slot& slot, Space space);
bool fenced(const Thread& thread, const Slot& slot, Space space);
bool ordered_foreign(Thread& thread, uint32_t cluster, const Slot& slot);               // of another cluster
bool fenced_foreign(Thread& thread, uint32_t cluster, const Slot& slot);
bool bring_the_same(const Operation& before, const Operation& now, const CopyPiece* piece, const char* address, uint8_t bytes);
void acquire(Thread& thread, const ClockRef& clock);
ClockRef of_block(const Block& block, const ClockRef& clock);   // with what other blocks wrote held back
void release(Thread& thread, Gathering& into, bool publishes = true);
ClockRef snapshot(Thread& thread);

// ---- memory.cpp: addresses of kernel text
bool check_range(Thread& thread, const void* address, size_t size, size_t alignment, bool write, uint32_t site);
void touch(Thread& thread, const void* address, size_t size, const Access& access);      // check and remember
void generic_read(const void* address, size_t size, uint32_t site);
void generic_write(const void* address, size_t size, uint32_t site);
char* shared_pointer(Thread& thread, uint32_t address, size_t size, size_t alignment, uint32_t site);
Block& block_of_address(Thread& thread, uint32_t address);
void read_registers(Thread& thread, const void* low, size_t bytes, uint32_t site);
void write_registers(Thread& thread, const void* low, size_t bytes, uint32_t site);
void set_register_state(Thread& thread, const void* low, size_t bytes, uint8_t set, uint8_t clear);
Registers* find_registers(Thread& thread, const void* low);

// ---- collective.cpp
// All lanes of the mask meet here; the last one executes, the others wait until it is done.
void meet(TwOperation operation, uint64_t mask, uint64_t key, uint32_t site, bool aligned, void* operands,
          const std::function<void(Meeting&)>& execute);
// Of a meeting's warp and its neighbours from `first` on, the last one executes, for all of them.
void meet_warps(uint32_t first, uint32_t warps, Meeting& meeting, const std::function<void(const Meeting* const*)>& execute);
uint64_t warp_mask(uint64_t mask);
void lane_left(Thread& thread);                    // an exit may complete barriers

// ---- barrier.cpp
void thread_left_barriers(Thread& thread);
TransactionBarrier* barrier_at(Thread& thread, uint32_t address, uint32_t site, const char* what, bool remote_or_copy);
void complete_bytes(TransactionBarrier& barrier, int64_t bytes, uint32_t copy_number);
void arrive(TransactionBarrier& barrier, Thread* thread, uint32_t count, uint32_t site, bool publishes = true);
void check_barriers_at_exit(Cluster& cluster);
void check_budgets(Cluster& cluster);

// ---- atomics.cpp
bool after_grid_wait(Thread& thread);
void fence_memory(Thread& thread);

// ---- copies.cpp
void finish_copies(Thread& thread);

}  // namespace emulator
