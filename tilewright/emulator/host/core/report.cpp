// What is found is written as JSON; Python turns it into sentences, with the author's lines.
#include "engine.h"

#include <cstdio>
#include <cstring>

namespace emulator {

std::string number(int64_t value) { return std::to_string(value); }

std::string text(const std::string& value) {
  std::string quoted = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (uint8_t(c) >= ' ') {
      quoted += c;
    } else {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", unsigned(c));
      quoted += code;
    }
  }
  return quoted + "\"";
}

std::string place(const Cluster& cluster, uint32_t index) {
  const Thread& thread = cluster.threads[index];
  const TwDim& t = thread.visible.thread_index;
  return "{\"block\":" + number(thread.block->number) + ",\"warp\":" + number(thread.warp->index) + ",\"lane\":" + number(thread.lane) +
         ",\"thread\":[" + number(t.x) + "," + number(t.y) + "," + number(t.z) + "]}";
}

uint32_t site_of(TwSite position) {
  struct Known { const char* file; uint32_t line, id; Engine* engine; };
  static thread_local Known* known = new Known[128]();
  Engine* engine = self->cluster->engine;
  Known& slot = known[(position.line * 7 + uintptr_t(position.file)) % 128];
  if (slot.file == position.file && slot.line == position.line && slot.engine == engine && slot.id < engine->positions.size() &&
      engine->positions[slot.id].first == position.file && engine->positions[slot.id].second == position.line)
    return slot.id | 0x80000000u;
  std::lock_guard<std::mutex> hold(engine->lock);
  auto [entry, fresh] = engine->position_ids.try_emplace({position.file, position.line}, uint32_t(engine->positions.size()));
  if (fresh) engine->positions.push_back({position.file, position.line});
  slot = {position.file, position.line, entry->second, engine};
  return entry->second | 0x80000000u;
}

void report(const char* kind, const Thread* thread, uint32_t site, std::vector<Fact> facts) {
  Engine& engine = thread ? engine_of(*thread) : engine_of(*self);
  std::string identity = std::string(kind) + ":" + number(site);
  for (const Fact& fact : facts)
    if (!strcmp(fact.name, "other_site")) identity += ":" + fact.value;
  std::lock_guard<std::mutex> hold(engine.lock);
  ++engine.reported;
  if (engine.seen[identity]++ || engine.report_count >= 100) return;
  ++engine.report_count;
  if (!engine.reports.empty()) engine.reports += ",\n";
  engine.reports += "{\"kind\":" + text(kind) + ",\"site\":" + number(site) + ",\"at\":" +
                    (thread ? place(*thread->cluster, thread->index) : std::string("null"));
  for (const Fact& fact : facts) engine.reports += std::string(",") + text(fact.name) + ":" + fact.value;
  engine.reports += "}";
}

void settle_doubts(Thread& thread) {
  std::vector<Doubted> all;
  all.swap(thread.doubted);
  for (Doubted& doubt : all) {
    if (!memcmp(doubt.address, doubt.before.data(), doubt.before.size())) continue;
    std::vector<Fact> facts;
    for (auto& [name, value] : doubt.facts) facts.push_back({name, value});
    report(doubt.kind, &thread, doubt.site, facts);
  }
}

void event(const Thread& thread, const char* name, char phase, std::string arguments) {
  Engine& engine = engine_of(thread);
  if (!(engine.launch.trace & 1)) return;
  std::lock_guard<std::mutex> hold(engine.lock);
  if (engine.event_count++ > 2000000) return;
  if (!engine.events.empty()) engine.events += ",\n";
  engine.events += "{\"name\":" + text(name) + ",\"ph\":\"" + phase + "\",\"ts\":" + number(int64_t(thread.cluster->steps)) +
                   ",\"pid\":" + number(thread.block->number) + ",\"tid\":" + number(thread.warp->index) + (phase == 'i' ? ",\"s\":\"t\"" : "") +
                   ",\"args\":{\"lane\":" + number(thread.lane) + (arguments.empty() ? "" : "," + arguments) + ",\"site\":" + number(thread.site) + "}}";
}

namespace {

std::string waiting_fact(const Thread& thread) {
  std::string fact = "{\"at\":" + place(*thread.cluster, thread.index) + ",\"site\":" + number(thread.site) + ",\"operation\":" + number(thread.operation);
  switch (thread.waiting) {
    case Waiting::collective: {
      const Meeting& meeting = *static_cast<const Meeting*>(thread.awaited);
      fact += ",\"for\":\"collective\",\"mask\":" + std::to_string(meeting.mask) + ",\"arrived\":" + std::to_string(meeting.arrived);
      break;
    }
    case Waiting::transaction_barrier: {
      const TransactionBarrier& barrier = *static_cast<const TransactionBarrier*>(thread.awaited);
      fact += ",\"for\":\"signal\",\"offset\":" + number(int64_t(barrier.offset) - engine_of(thread).launch.shared_base) + ",\"block\":" + number(barrier.block->number) +
              ",\"parity\":" + number(int64_t(thread.awaited_value)) + ",\"phase\":" + number(int64_t(barrier.phase)) + ",\"pending\":" + number(barrier.pending) +
              ",\"expected\":" + number(barrier.expected) + ",\"bytes\":" + number(barrier.bytes) + ",\"init_site\":" + number(barrier.init_site) +
              ",\"tx_site\":" + number(barrier.tx_site) + ",\"arrive_site\":" + number(barrier.arrive_site);
      break;
    }
    case Waiting::block_barrier: {
      const NamedBarrier& barrier = *static_cast<const NamedBarrier*>(thread.awaited);
      fact += ",\"for\":\"barrier\",\"id\":" + number(int64_t(thread.awaited_value)) + ",\"arrived\":" + number(barrier.arrived) + ",\"expected\":" + number(barrier.expected);
      break;
    }
    case Waiting::cluster_barrier: fact += ",\"for\":\"cluster\""; break;
    case Waiting::warps: fact += ",\"for\":\"warps\""; break;
    case Waiting::group: fact += ",\"for\":\"group\",\"issued\":" + number(thread.warp->issued); break;
    case Waiting::registers: fact += ",\"for\":\"registers\",\"wanted\":" + number(int64_t(thread.awaited_value)) + ",\"pool\":" + number(thread.block->register_pool); break;
    case Waiting::poll: fact += ",\"for\":\"poll\""; break;
    default: fact += ",\"for\":\"nothing\"";
  }
  return fact + "}";
}

}  // namespace

void deadlock(Cluster& cluster) {
  // One entry for all lanes of a warp that wait in the same place.
  std::string waits;
  const Thread* first = nullptr;
  bool partial = false, exited_lanes = false;
  for (uint32_t w = 0; w < cluster.warp_count; ++w) {
    const Warp& warp = cluster.warps[w];
    std::map<std::tuple<uint32_t, int, const void*, uint64_t>, std::pair<uint64_t, const Thread*>> places;
    for (uint32_t lane = 0; lane < warp.lanes; ++lane) {
      const Thread& thread = warp.threads[lane];
      if (thread.exited) continue;
      auto& entry = places[{thread.site, int(thread.waiting), thread.awaited, thread.awaited_value}];
      entry.first |= 1ull << lane;
      if (!entry.second) entry.second = &thread;
    }
    for (const auto& [key, entry] : places) {
      const Thread& thread = *entry.second;
      if (thread.waiting == Waiting::collective) {
        const Meeting& meeting = *static_cast<const Meeting*>(thread.awaited);
        if (!meeting.executing) {
          partial = true;
          if ((meeting.mask & ~warp.live) != 0) exited_lanes = true;
          if (!first || first->waiting != Waiting::collective) first = &thread;
        }
      }
      if (!first) first = &thread;
      std::string fact = waiting_fact(thread);
      fact.insert(fact.size() - 1, ",\"lanes\":" + std::to_string(entry.first));
      waits += (waits.empty() ? "" : ",") + fact;
    }
  }
  if (first)
    report(partial ? "partial-collective" : "deadlock", first, first->site,
           {{"waits", "[" + waits + "]"}, {"exited", exited_lanes ? "true" : "false"}, {"cluster", number(cluster.number)}});
}

Planted enter(TwOperation operation, TwSite position) {
  Thread& thread = *self;
  Cluster& cluster = *thread.cluster;
  Engine& engine = *cluster.engine;
  if (!thread.doubted.empty()) settle_doubts(thread);
  thread.cluster->ticks += 31;                          // a call costs about as much as so many accesses
  tick(thread);
  thread.site = site_of(position);
  thread.operation = operation;
  if (operation != TW_SIGNAL_TEST_WAIT && operation != TW_ACQUIRE) ++cluster.steps;
  Planted planted;
  if (engine.launch.trace & 2) {
    std::lock_guard<std::mutex> hold(engine.lock);
    ++engine.census[{operation, thread.site}];
  }
  for (uint64_t i = 0; i < engine.launch.fault_count; ++i) {
    const TwFault& fault = engine.launch.faults[i];
    if ((fault.operation && fault.operation != uint32_t(operation)) || fault.line != position.line || strcmp(fault.file, position.file)) continue;
    static std::mutex lock;
    std::lock_guard<std::mutex> hold(lock);
    const uint64_t count = engine.fault_counts[i]++;
    if (count < fault.first || count > fault.last) continue;
    if (fault.skip) planted.skip = true;
    planted.delta += fault.delta;
    planted.flip ^= fault.flip;
  }
  if (engine.launch.schedule == TW_RANDOM && cluster.draw(8) == 0) give_way();
  return planted;
}

}  // namespace emulator
