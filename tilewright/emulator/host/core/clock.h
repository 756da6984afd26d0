// Vector clocks: what a thread knows to have happened before.
//
// A clock has one entry for each thread of a cluster and one for each of its transaction barriers (copies that complete on a barrier
// count as that barrier's own thread).  Threads that have met in a barrier know the same, so clocks are shared and never changed once
// shared; a thread's own entry is kept in the thread.  Beside each entry stands how much of it has passed a proxy fence, and in runs
// whose text has arrivals that publish no writes, how much of it was published.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

struct Clock;

// A counted reference to a clock; an empty one knows nothing.
class ClockRef {
 public:
  ClockRef() = default;
  explicit ClockRef(Clock* adopted) : clock_(adopted) {}
  ClockRef(const ClockRef& other);
  ClockRef(ClockRef&& other) noexcept : clock_(std::exchange(other.clock_, nullptr)) {}
  ClockRef& operator=(ClockRef other) noexcept { std::swap(clock_, other.clock_); return *this; }
  ~ClockRef();
  Clock* get() const { return clock_; }
  Clock* operator->() const { return clock_; }
  explicit operator bool() const { return clock_ != nullptr; }
  bool operator==(const ClockRef& other) const { return clock_ == other.clock_; }

 private:
  Clock* clock_ = nullptr;
};

constexpr uint32_t group_size = 32;   // entries that share a minimum; unrelated to the warp size

struct Foreign { uint32_t cluster; ClockRef clock; };

// How much of a thread's past its proxy fences have made visible, in each space of memory.
struct Fenced {
  uint32_t of[2] = {0, 0};            // shared, global
  static Fenced both(uint32_t clock) { return {{clock, clock}}; }
  void take(const Fenced& other) {
    for (int space = 0; space < 2; ++space) of[space] = of[space] > other.of[space] ? of[space] : other.of[space];
  }
};

struct Clock {
  uint32_t references = 1;
  uint32_t length;                    // a multiple of group_size
  std::vector<uint32_t> at;           // [length] entries
  std::vector<Fenced> fenced;         // [length] the part of each entry that a proxy fence has made visible
  std::vector<uint32_t> published;    // [length] the part of each entry whose writes were handed over too; empty: all of it
  std::vector<uint32_t> low;          // [length / group_size] least entry of each group
  std::vector<Foreign> foreign;       // what is known of other clusters, by acquire from global memory
  static bool follow_publishing;      // whether clocks tell what was published: in clusters of several blocks
  static bool follow_spaces;          // whether barriers say which memory they order: what of each space was fenced counts then
  explicit Clock(uint32_t entries) : length(entries), at(entries), fenced(entries), published(follow_publishing ? entries : 0), low(entries / group_size) {}
  void settle();                      // recompute the minima, before the clock is shared
  void take(const Clock& other, bool publishes = true);   // become the maximum of both
};

// Both together; the result may be one of them.
ClockRef join(const ClockRef& a, const ClockRef& b);

// A clock under construction: what the threads that have arrived at a barrier knew.
class Gathering {
 public:
  // `publishes` false: what was written is not handed over.
  void add(uint32_t length, const ClockRef& base, uint32_t entry, uint32_t clock, Fenced fenced, bool publishes = true);
  void add(uint32_t length, const ClockRef& base, bool publishes = true);
  ClockRef finish();                  // freeze and start anew

 private:
  Clock* open(uint32_t length);
  ClockRef building_, last_;
  bool last_published_ = true;
};

}  // namespace emulator
