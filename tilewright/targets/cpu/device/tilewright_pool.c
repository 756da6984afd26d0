/* The thread pool of the cpu target: one a process, shared by all kernels.
 *
 * A launch is a task: a number of blocks handed out in chunks, the smaller the fewer are left.  The calling thread works
 * on its own task, so nested launches and launches from several threads at once always make progress; idle workers join
 * whatever tasks have blocks left.  Workers wait a moment for the next task before they sleep, callers for their helpers'
 * last blocks.  After a fork the child starts with an empty pool and makes workers of its own. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_WORKERS 1023
#define SPINS 2000
#define SHARES 4  /* of what is left for each thread; one makes a chunk */
#define WORKER_STACK_BYTES (8u << 20)
#define OUT_OF_MEMORY (-1)

typedef int32_t (*block_function)(const void *arguments, int64_t block, uint8_t *scratch);

typedef struct task {
  block_function function;
  const void *arguments;
  int64_t blocks, parts, scratch_bytes;
  _Atomic int64_t next;       /* first block that nobody has taken */
  _Atomic int32_t status;     /* first failure */
  _Atomic int helpers;        /* workers inside the task; changed under pool_mutex */
  int most_helpers;
  struct task *following;
} task;

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_arrived = PTHREAD_COND_INITIALIZER;
static pthread_cond_t helper_left = PTHREAD_COND_INITIALIZER;
static task *tasks;
static _Atomic int open_tasks;  /* length of the list, readable without the mutex */
static int workers, sleepers;
static _Atomic int thread_count = 1;

typedef struct {
  uint8_t *memory;
  int64_t bytes;
  bool busy;
} scratch_space;
static __thread scratch_space own_scratch;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Scratch memory of this thread; a nested launch gets memory of its own. */
static uint8_t *take_scratch(int64_t bytes, bool *nested) {
  *nested = own_scratch.busy;
  if (*nested) return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64 + 64);
  if (own_scratch.bytes < bytes) {
    free(own_scratch.memory);
    own_scratch.memory = aligned_alloc(4096, (size_t)(bytes + 4095) / 4096 * 4096);
    own_scratch.bytes = own_scratch.memory ? bytes : 0;
    if (!own_scratch.memory) return NULL;
  }
  own_scratch.busy = true;
  return own_scratch.memory;
}

static void give_scratch_back(uint8_t *memory, bool nested) {
  if (nested)
    free(memory);
  else
    own_scratch.busy = false;
}

/* Take the next chunk of a task: a share of what is left, at least one block.  False where none is left. */
static bool take_chunk(task *t, int64_t *first, int64_t *last) {
  *first = atomic_load_explicit(&t->next, memory_order_relaxed);
  do {
    int64_t left = t->blocks - *first;
    if (left <= 0) return false;
    *last = *first + (left > t->parts ? left / t->parts : 1);
  } while (!atomic_compare_exchange_weak_explicit(&t->next, first, *last, memory_order_relaxed, memory_order_relaxed));
  return true;
}

/* Run chunks of a task until none is left. */
static void work_on(task *t) {
  bool nested = false;
  uint8_t *scratch = NULL;
  if (t->scratch_bytes > 0 && !(scratch = take_scratch(t->scratch_bytes, &nested))) {
    int32_t fine = 0;
    atomic_compare_exchange_strong(&t->status, &fine, OUT_OF_MEMORY);
    atomic_store(&t->next, t->blocks);
    return;
  }
  int64_t first, last;
  while (take_chunk(t, &first, &last)) {
    for (int64_t block = first; block < last; block++) {
      int32_t status = t->function(t->arguments, block, scratch);
      if (status != 0) {
        int32_t fine = 0;
        atomic_compare_exchange_strong(&t->status, &fine, status);
        atomic_store(&t->next, t->blocks);
        break;
      }
    }
  }
#if defined(__x86_64__)
  __builtin_ia32_sfence();  // what blocks stored past the caches is there for whoever is told that all is done
#endif
  if (t->scratch_bytes > 0) give_scratch_back(scratch, nested);
}

static bool has_work(task *t) {
  return atomic_load_explicit(&t->helpers, memory_order_relaxed) < t->most_helpers &&
         atomic_load_explicit(&t->next, memory_order_relaxed) < t->blocks;
}

static void *worker_main(void *unused) {
  (void)unused;
  for (;;) {
    for (int spin = 0; spin < SPINS && atomic_load_explicit(&open_tasks, memory_order_relaxed) == 0; spin++) relax();
    pthread_mutex_lock(&pool_mutex);
    task *t = tasks;
    while (t && !has_work(t)) t = t->following;
    if (!t) {
      sleepers++;
      pthread_cond_wait(&work_arrived, &pool_mutex);
      sleepers--;
      pthread_mutex_unlock(&pool_mutex);
      continue;
    }
    atomic_fetch_add(&t->helpers, 1);
    pthread_mutex_unlock(&pool_mutex);
    work_on(t);
    pthread_mutex_lock(&pool_mutex);
    if (atomic_fetch_sub(&t->helpers, 1) == 1) pthread_cond_broadcast(&helper_left);  // the task may be gone from here on
    pthread_mutex_unlock(&pool_mutex);
  }
  return NULL;
}

/* Workspaces, kept for the next call: pages that the system hands out anew cost more than filling them.  The size
 * stands in front of each. */
#define MOST_KEPT 8
#define MOST_KEPT_BYTES ((int64_t)256 << 20)
#define HEADER 64
static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t *kept[MOST_KEPT];

/* Large ones begin at a large page and ask for such pages, of which a processor remembers enough. */
#define LARGE_PAGE ((size_t)2 << 20)
static void *fresh(size_t bytes) {
  if (bytes < 2 * LARGE_PAGE) return aligned_alloc(HEADER, bytes);
  bytes = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
  void *memory = aligned_alloc(LARGE_PAGE, bytes);
#if defined(MADV_HUGEPAGE)
  if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

EXPORT void *tilewright_take(int64_t bytes) {
  int64_t *found = NULL;
  bytes = (bytes + HEADER - 1) / HEADER * HEADER;
  pthread_mutex_lock(&kept_mutex);
  int best = -1;
  for (int i = 0; i < MOST_KEPT; i++)
    if (kept[i] && *kept[i] >= bytes && (best < 0 || *kept[i] < *kept[best])) best = i;
  if (best >= 0) {
    found = kept[best];
    kept[best] = NULL;
  }
  pthread_mutex_unlock(&kept_mutex);
  if (!found && (found = fresh((size_t)bytes + HEADER))) *found = bytes;
  return found ? (char *)found + HEADER : NULL;
}

EXPORT void tilewright_give(void *memory) {
  if (!memory) return;
  int64_t *given = (int64_t *)((char *)memory - HEADER), held = 0;
  int slot = -1;
  pthread_mutex_lock(&kept_mutex);
  for (int i = 0; i < MOST_KEPT; i++) {
    if (kept[i]) held += *kept[i];
    else slot = i;
  }
  if (slot >= 0 && held + *given <= MOST_KEPT_BYTES) {
    kept[slot] = given;
    given = NULL;
  }
  pthread_mutex_unlock(&kept_mutex);
  free(given);
}

static void forget_workers_after_fork(void) {
  pthread_mutex_init(&kept_mutex, NULL);
  pthread_mutex_init(&pool_mutex, NULL);
  pthread_cond_init(&work_arrived, NULL);
  pthread_cond_init(&helper_left, NULL);
  tasks = NULL;
  atomic_store(&open_tasks, 0);
  workers = sleepers = 0;
}

/* More workers, up to `wanted`; with fewer than wanted the launch still runs. */
static void start_workers(int wanted) {
  static bool registered;
  if (!registered) {
    pthread_atfork(NULL, NULL, forget_workers_after_fork);
    registered = true;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (workers < wanted) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, worker_main, NULL) != 0) break;
    workers++;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

EXPORT void tilewright_set_threads(int count) {
  atomic_store(&thread_count, count < 1 ? 1 : count > MOST_WORKERS ? MOST_WORKERS : count);
}

EXPORT int tilewright_get_threads(void) { return atomic_load(&thread_count); }

/* Run `function` for every block of 0 .. blocks - 1.  Returns 0 or the first failure's status. */
EXPORT int32_t tilewright_parallel_for(int64_t blocks, int64_t scratch_bytes, block_function function, const void *arguments) {
  if (blocks <= 0) return 0;
  int threads = atomic_load_explicit(&thread_count, memory_order_relaxed);
  if (threads > blocks) threads = (int)blocks;
  task t = {.function = function, .arguments = arguments, .blocks = blocks, .parts = (int64_t)threads * SHARES,
            .scratch_bytes = scratch_bytes, .most_helpers = threads - 1};
  if (threads > 1) {
    pthread_mutex_lock(&pool_mutex);
    if (workers < threads - 1) start_workers(threads - 1);
    t.following = tasks;
    tasks = &t;
    atomic_fetch_add(&open_tasks, 1);
    if (sleepers > 0) pthread_cond_broadcast(&work_arrived);
    pthread_mutex_unlock(&pool_mutex);
  }
  work_on(&t);
  if (threads > 1) {
    pthread_mutex_lock(&pool_mutex);
    task **link = &tasks;
    while (*link != &t) link = &(*link)->following;
    *link = t.following;
    atomic_fetch_sub(&open_tasks, 1);
    pthread_mutex_unlock(&pool_mutex);
    for (int spin = 0; spin < SPINS && atomic_load(&t.helpers) > 0; spin++) relax();
    if (atomic_load(&t.helpers) > 0) {
      pthread_mutex_lock(&pool_mutex);
      while (atomic_load(&t.helpers) > 0) pthread_cond_wait(&helper_left, &pool_mutex);
      pthread_mutex_unlock(&pool_mutex);
    }
  }
  return atomic_load(&t.status);
}
