// Joining vector clocks, with the joins that were just made remembered.
#include "clock.h"

#include <algorithm>

namespace emulator {

bool Clock::follow_publishing = false;
bool Clock::follow_spaces = false;

ClockRef::ClockRef(const ClockRef& other) : clock_(other.clock_) {
  if (clock_) __atomic_fetch_add(&clock_->references, 1, __ATOMIC_RELAXED);
}

ClockRef::~ClockRef() {
  if (clock_ && __atomic_sub_fetch(&clock_->references, 1, __ATOMIC_ACQ_REL) == 0) delete clock_;
}

void Clock::settle() {
  for (uint32_t group = 0; group < length / group_size; ++group)
    low[group] = *std::min_element(&at[group * group_size], &at[group * group_size] + group_size);
}

void Clock::take(const Clock& other, bool publishes) {
  uint32_t* a = at.data();
  const uint32_t* b = other.at.data();
  for (uint32_t i = 0; i < length; ++i) {
    a[i] = a[i] > b[i] ? a[i] : b[i];
    fenced[i].take(other.fenced[i]);
  }
  if (publishes)
    for (uint32_t i = 0; i < published.size(); ++i) published[i] = std::max(published[i], other.published[i]);
  for (const Foreign& theirs : other.foreign) {
    auto mine = std::find_if(foreign.begin(), foreign.end(), [&](const Foreign& f) { return f.cluster == theirs.cluster; });
    if (mine == foreign.end()) foreign.push_back(theirs);
    else mine->clock = join(mine->clock, theirs.clock);
  }
}

ClockRef join(const ClockRef& a, const ClockRef& b) {
  if (!b || a == b) return a;
  if (!a) return b;
  struct Remembered { ClockRef a, b, both; };
  static thread_local Remembered* memory = new Remembered[16];
  const size_t slot = (reinterpret_cast<uintptr_t>(a.get()) / 64 * 7 + reinterpret_cast<uintptr_t>(b.get()) / 64) % 16;
  Remembered& known = memory[slot];
  if (known.a == a && known.b == b) return known.both;
  Clock* both = new Clock(*a.get());
  both->references = 1;
  both->take(*b.get());
  both->settle();
  known = {a, b, ClockRef(both)};
  return known.both;
}

Clock* Gathering::open(uint32_t length) {
  if (!building_) building_ = ClockRef(new Clock(length));
  return building_.get();
}

void Gathering::add(uint32_t length, const ClockRef& base, uint32_t entry, uint32_t clock, Fenced fenced, bool publishes) {
  add(length, base, publishes);
  Clock* building = open(length);
  building->at[entry] = std::max(building->at[entry], clock);
  building->fenced[entry].take(fenced);
  if (publishes && !building->published.empty()) building->published[entry] = std::max(building->published[entry], clock);
}

void Gathering::add(uint32_t length, const ClockRef& base, bool publishes) {
  Clock* building = open(length);
  if (base && !(base == last_ && publishes <= last_published_)) {
    building->take(*base.get(), publishes);
    last_ = base;
    last_published_ = publishes;
  }
}

ClockRef Gathering::finish() {
  if (building_) building_->settle();
  last_ = ClockRef();
  return std::move(building_);
}

}  // namespace emulator
