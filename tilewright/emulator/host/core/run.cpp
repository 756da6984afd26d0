// Running a grid: clusters are handed to a few OS threads, each of which takes turns between those that are resident.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <list>
#include <thread>

#include "engine.h"

namespace emulator {

namespace {

struct Grid {
  Engine& engine;
  uint32_t clusters, resident;
  std::atomic<uint32_t> next{0};
};

// While it lives, this OS thread takes subnormal floats for zeros and makes none.
class Flushing {
 public:
  explicit Flushing(bool flushes) {
#if defined(__x86_64__)
    before_ = __builtin_ia32_stmxcsr();
    if (flushes) __builtin_ia32_ldmxcsr(unsigned(before_) | 0x8040u);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if (flushes) asm volatile("msr fpcr, %0" ::"r"(before_ | 1ull << 24));
#endif
  }
  ~Flushing() {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(unsigned(before_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(before_));
#endif
  }

 private:
  uint64_t before_ = 0;
};

void work(Grid& grid) {
  const Flushing flushing(grid.engine.launch.flushes);
  std::list<Cluster> resident;
  auto current = resident.end();
  uint64_t quiet = 0, progress = ~0ull;
  for (;;) {
    if (grid.engine.stop) break;
    bool fresh = false;
    if (current == resident.end()) {
      // Everyone resident has had a turn: start another if there is room, else begin again.
      if (resident.size() < grid.resident) {
        const uint32_t number = grid.next.fetch_add(1);
        if (number < grid.clusters) {
          current = resident.emplace(resident.end());
          current->engine = &grid.engine;
          current->number = number;
          current->start();
          fresh = true;
        }
      }
      if (!fresh) {
        if (resident.empty()) break;
        uint64_t now = grid.engine.progress;
        for (Cluster& cluster : resident) now += cluster.steps;
        quiet = now == progress ? quiet + 1 : 0;
        progress = now;
        if (quiet > 1) {
          for (Cluster& cluster : resident) {
            self = &cluster.threads[0];
            deadlock(cluster);
            self = nullptr;
          }
          grid.engine.stop = true;
          break;
        }
        current = resident.begin();
      }
    }
    if (current->step_until_stuck()) {
      grid.engine.progress += fresh;
      ++current;
    } else {
      current = resident.erase(current);
    }
  }
  for (Cluster& cluster : resident) cluster.finish();
}

char* copy_text(const std::string& value) {
  char* copy = static_cast<char*>(malloc(value.size() + 1));
  memcpy(copy, value.c_str(), value.size() + 1);
  return copy;
}

std::string result(Engine& engine) {
  std::string all = "{\"reports\":[" + engine.reports + "],\n\"reported\":" + number(engine.reported) + ",\n\"positions\":[";
  for (size_t i = 0; i < engine.positions.size(); ++i)
    all += std::string(i ? "," : "") + "[" + text(engine.positions[i].first) + "," + number(engine.positions[i].second) + "]";
  all += "],\n\"census\":[";
  bool first = true;
  for (const auto& [key, count] : engine.census) {
    all += std::string(first ? "" : ",") + "[" + number(key.first) + "," + number(key.second) + "," + number(int64_t(count)) + "]";
    first = false;
  }
  all += "],\n\"printed\":[";
  first = true;
  for (const auto& [block, lines] : engine.printed) {
    all += (first ? "" : ",\n") + lines;
    first = false;
  }
  return all + "],\n\"events\":[" + engine.events + "]}";
}

}  // namespace

}  // namespace emulator

using namespace emulator;

extern "C" {

char* tw_run(const TwLaunch* launch) {
  Engine engine;
  engine.launch = *launch;
  engine.check = launch->check;
  Clock::follow_spaces = launch->spaces;
  Clock::follow_publishing = launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 1;
  engine.positions.reserve(1 << 16);                  // read without a lock, so it must not move
  engine.deadline = launch->milliseconds ? milliseconds() + launch->milliseconds : 0;
  if (engine.check && launch->arena_high > launch->arena_low)
    engine.global_shadow.cover(Space::global, reinterpret_cast<char*>(launch->arena_low), launch->arena_high - launch->arena_low, launch->workers > 1);
  const uint32_t clusters = launch->grid[0] / launch->cluster[0] * (launch->grid[1] / launch->cluster[1]) * (launch->grid[2] / launch->cluster[2]);
  const uint32_t workers = launch->workers < 1 ? 1 : launch->workers;
  Grid grid{engine, clusters, launch->resident / workers < 1 ? 1 : launch->resident / workers};
  std::vector<std::thread> others;
  std::atomic<uint32_t> busy{workers - 1};
  for (uint32_t w = 1; w < workers; ++w)
    others.emplace_back([&] {
      work(grid);
      --busy;
    });
  may_ask(true);
  engine.looked = milliseconds();
  work(grid);
  while (busy) {
    usleep(1000);
    ask_outside(engine);
  }
  may_ask(false);
  for (std::thread& other : others) other.join();
  return copy_text(result(engine));
}

// Where the shared object that holds `symbol` lies in memory.
void tw_image(const void* symbol, tw_u64* low, tw_u64* high) {
  struct Search { uintptr_t symbol, low, high; } search = {reinterpret_cast<uintptr_t>(symbol), 0, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        Search& s = *static_cast<Search*>(data);
        uintptr_t end = info->dlpi_addr;
        bool holds = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
          const uintptr_t first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, last = first + info->dlpi_phdr[i].p_memsz;
          holds |= s.symbol >= first && s.symbol < last;
          end = last > end ? last : end;
        }
        if (!holds) return 0;
        s.low = info->dlpi_addr;
        s.high = end;
        return 1;
      },
      &search);
  *low = search.low;
  *high = search.high;
}

void tw_free(char* text) { free(text); }

// Around the memory lies a wide margin that nobody may touch, so that a wild index hits nothing else of this process.
void* tw_reserve(tw_u64 bytes) {
  void* memory = mmap(nullptr, bytes + 2 * margin_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* base = static_cast<char*>(memory) + margin_bytes;
  mprotect(base, bytes, PROT_READ | PROT_WRITE);
  return base;
}

void tw_release(void* base, tw_u64 bytes) { munmap(static_cast<char*>(base) - margin_bytes, bytes + 2 * margin_bytes); }

TwThread* tw_thread() { return &self->visible; }
tw_u32 tw_lane() { return self->lane; }
tw_u32 tw_warp() { return self->warp->index; }
tw_u32 tw_warp_size() { return self->cluster->engine->launch.warp_size; }
tw_u32 tw_cluster_rank() { return self->block->rank; }
tw_u32 tw_cluster_size() { return tw_u32(self->cluster->blocks.size()); }

tw_u64 tw_clock() { return self->cluster->steps; }

void tw_leave(void) { self->left = true; }

void tw_trap(TwSite position) {
  report("trap", self, site_of(position), {});
  abort_cluster();
}

}  // extern "C"
