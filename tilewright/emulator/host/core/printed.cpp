// What a kernel says: lines of a block in the order in which its warps ran, blocks one after the other.
//
// Threads run here one at a time, a machine's lanes together: within a stretch in which one warp ran, a statement's lines of all lanes
// come one after the other.
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>

#include "engine.h"

namespace emulator {

namespace {

void append(Engine& engine, const Printed& line) {
  std::string& of_block = engine.printed[line.warp->block->number];
  of_block += (of_block.empty() ? "" : ",\n") + text(line.text);
}

}  // namespace

void hand_over_printed(Cluster& cluster) {
  std::vector<Printed>& lines = cluster.printed;
  std::lock_guard<std::mutex> hold(cluster.engine->lock);
  for (size_t first = 0, end; first < lines.size(); first = end) {
    for (end = first; end < lines.size() && lines[end].warp == lines[first].warp; ++end) {}
    std::map<uint32_t, std::deque<const Printed*>> lanes;
    for (size_t i = first; i < end; ++i) lanes[lines[i].lane].push_back(&lines[i]);
    while (!lanes.empty()) {
      const char* statement = lanes.begin()->second.front()->statement;
      for (auto lane = lanes.begin(); lane != lanes.end();) {
        std::deque<const Printed*>& own = lane->second;
        if (own.front()->statement == statement) {
          append(*cluster.engine, *own.front());
          own.pop_front();
        }
        lane = own.empty() ? lanes.erase(lane) : std::next(lane);
      }
    }
  }
  lines.clear();
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void tw_print(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string line(size_t(vsnprintf(nullptr, 0, format, arguments)) + 1, 0);
  vsnprintf(line.data(), line.size(), format, again);
  va_end(again);
  va_end(arguments);
  line.pop_back();                                    // without the end of the text, and of the line
  if (!line.empty() && line.back() == '\n') line.pop_back();
  Thread& thread = *self;
  thread.cluster->printed.push_back({thread.warp, thread.lane, format, std::move(line)});
}

void tw_assertion_failed(const char* message, TwSite position) {
  report("assertion", self, site_of(position), {{"message", text(message)}});
  abort_cluster();
}

}  // extern "C"
