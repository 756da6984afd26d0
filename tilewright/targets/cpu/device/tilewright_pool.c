/* The thread pool of the cpu target: one a process, shared by all kernels.
 *
 * A launch is a task: a number of blocks in as many shares as it has threads, handed out in chunks, the smaller the fewer
 * are left.  The same thread begins with the same share at every launch, so that a core finds in its own cache the part of
 * a weight that it read before; who is done with his own share helps with the one that has most left.  The calling thread
 * works on its own task, so nested launches and launches from several threads at once always make progress; idle workers
 * join whatever tasks have blocks left, without a lock, since a launch may be over in ten microseconds.  A worker without work
 * watches for the next launch for a while before it sleeps: to be woken takes as long as a product of one row.  A caller wakes
 * one sleeper, who wakes others.  After a fork the child starts with an empty pool and makes workers of its own. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_SHARES 512 /* and threads */
#define MOST_TASKS 64  /* at once; a launch beyond has no helpers */
#define SPINS 8000     /* some 200 microseconds: as long as Python may take between two layers */
#define UNTIL_LOOK 64  /* spins: whom one waits for may itself be waiting for this very core */
#define CHUNKS 4       /* of what is left of a share; one is taken at once */
#define LATE_SPINS 50  /* for which a worker leaves a launch of fewer threads to those whose share it is */
#define WORKER_STACK_BYTES (8u << 20)
#define OUT_OF_MEMORY (-1)

typedef int32_t (*block_function)(const void *arguments, int64_t block, uint8_t *scratch);

/* A task lies in one of the pool's places, which stay where they are: a worker may look at one that is being taken or given
 * back.  Each helper has a share of his own, and says there that he is inside, so that no line of memory is written by all;
 * only who has done so and then found the task open reads more than numbers.  Who gives a place back closes it first, and
 * waits until nobody is inside. */
#define LINE 64
typedef struct {
  _Alignas(LINE) _Atomic int64_t next, end;  /* blocks of it that nobody has taken */
  _Atomic bool inside;                       /* whose share it is, or who stands in for him */
} share;
typedef struct {
  _Alignas(LINE) _Atomic bool open, taken, waited_for;
  _Atomic int shares_held;
  _Alignas(LINE) _Atomic int32_t status;  /* first failure */
  int64_t scratch_bytes;
  block_function function;
  const void *arguments;
  share shares[MOST_SHARES];
} task;

static task tasks[MOST_TASKS];
static _Atomic int places;         /* how many of them have ever been taken */
static _Atomic uint64_t launches;  /* that asked for helpers */
static _Atomic int thread_count = 1, workers, sleepers;
static _Atomic int callers_core = -2;  /* of the last launch, where a core has a number */

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_arrived = PTHREAD_COND_INITIALIZER;
static pthread_cond_t helpers_left = PTHREAD_COND_INITIALIZER;
static int wanted;  /* sleepers that are still to be woken; read and written under pool_mutex */

typedef struct {
  uint8_t *memory;
  int64_t bytes;
  bool busy;
} scratch_space;
static __thread scratch_space own_scratch;

static inline int this_core(void) {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

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

static int64_t left_of(const share *s) {
  return atomic_load_explicit(&s->end, memory_order_relaxed) - atomic_load_explicit(&s->next, memory_order_relaxed);
}

/* The share with most blocks left, or NULL where there are none. */
static share *fullest(task *t) {
  int held = atomic_load_explicit(&t->shares_held, memory_order_relaxed);
  share *found = NULL;
  int64_t most = 0;
  for (share *s = t->shares; s < t->shares + held; s++) {
    int64_t left = left_of(s);
    if (left > most) most = left, found = s;
  }
  return found;
}

/* Take the next chunk of a share: a part of what is left, at least one block.  False where none is left. */
static bool take_chunk(share *s, int64_t *first, int64_t *last) {
  int64_t end = atomic_load_explicit(&s->end, memory_order_relaxed);
  *first = atomic_load_explicit(&s->next, memory_order_relaxed);
  do {
    int64_t left = end - *first;
    if (left <= 0) return false;
    *last = *first + (left > CHUNKS ? left / CHUNKS : 1);
  } while (!atomic_compare_exchange_weak_explicit(&s->next, first, *last, memory_order_relaxed, memory_order_relaxed));
  return true;
}

static void fail(task *t, int32_t status) {
  int32_t fine = 0;
  atomic_compare_exchange_strong(&t->status, &fine, status);
}

/* Run chunks of a task until none is left or a block has failed, beginning with a share. */
static void work_on(task *t, share *own) {
  bool nested = false;
  uint8_t *scratch = NULL;
  if (t->scratch_bytes > 0 && !(scratch = take_scratch(t->scratch_bytes, &nested))) {
    fail(t, OUT_OF_MEMORY);
    return;
  }
  int64_t first, last;
  if (own >= t->shares + atomic_load_explicit(&t->shares_held, memory_order_relaxed)) own = fullest(t);
  for (share *s = own; s; s = fullest(t)) {
    while (atomic_load_explicit(&t->status, memory_order_relaxed) == 0 && take_chunk(s, &first, &last)) {
      for (int64_t block = first; block < last; block++) {
        int32_t status = t->function(t->arguments, block, scratch);
        if (status == 0) continue;
        fail(t, status);
        break;
      }
    }
    if (atomic_load_explicit(&t->status, memory_order_relaxed) != 0) break;
  }
#if defined(__x86_64__)
  __builtin_ia32_sfence();  // what blocks stored past the caches is there for whoever is told that all is done
#endif
  if (t->scratch_bytes > 0) give_scratch_back(scratch, nested);
}

static void leave(task *t, share *own) {
  atomic_store(&own->inside, false);
  if (!atomic_load(&t->waited_for)) return;
  pthread_mutex_lock(&pool_mutex);
  pthread_cond_broadcast(&helpers_left);
  pthread_mutex_unlock(&pool_mutex);
}

/* The share by which a worker gets inside a task that is open and has blocks left: his own, or late, when others had their
 * chance, one whose owner is busy elsewhere.  NULL where there is none. */
static share *join(task *t, int thread, bool late) {
  if (!atomic_load_explicit(&t->open, memory_order_relaxed)) return NULL;
  int held = atomic_load_explicit(&t->shares_held, memory_order_relaxed), owned = atomic_load(&workers) + 1;
  share *found = thread < held && !atomic_load_explicit(&t->shares[thread].inside, memory_order_relaxed) ? &t->shares[thread] : NULL;
  if ((!found && !late) || ((!found || left_of(found) <= 0) && !fullest(t))) return NULL;
  for (int i = 1; !found && i < held && i < owned; i++)
    if (!atomic_load_explicit(&t->shares[i].inside, memory_order_relaxed)) found = &t->shares[i];
  bool outside = false;
  if (!found || !atomic_compare_exchange_strong(&found->inside, &outside, true)) return NULL;
  if (atomic_load(&t->open)) return found;
  leave(t, found);
  return NULL;
}

/* Work on whatever has work; whether there was any. */
static bool help(int thread, bool late) {
  bool helped = false;
  int met = atomic_load(&places);
  for (task *t = tasks; t < tasks + met; t++) {
    share *own = join(t, thread, late);
    if (!own) continue;
    work_on(t, own);
    leave(t, own);
    helped = true;
  }
  return helped;
}

/* Until there is another launch than were seen; who is woken wakes two others, where as many are wanted. */
static void sleep_until_launch(uint64_t seen) {
  pthread_mutex_lock(&pool_mutex);
  atomic_fetch_add(&sleepers, 1);
  while (atomic_load(&launches) == seen) pthread_cond_wait(&work_arrived, &pool_mutex);
  int others = atomic_fetch_sub(&sleepers, 1) - 1;
  if (wanted > 0) wanted--;
  others = others > wanted ? wanted : others;
  pthread_mutex_unlock(&pool_mutex);
  for (int i = 0; i < 2 && i < others; i++) pthread_cond_signal(&work_arrived);
}

static void *worker_main(void *number) {
  const int thread = (int)(intptr_t)number;
  for (;;) {
    uint64_t seen = atomic_load(&launches);
    if (help(thread, false)) continue;
    int spin = 0;
    while (spin < SPINS && atomic_load_explicit(&launches, memory_order_relaxed) == seen) {
      if (spin == LATE_SPINS && help(thread, true)) break;
      relax();
      if (++spin % UNTIL_LOOK == 0 && this_core() == atomic_load_explicit(&callers_core, memory_order_relaxed)) sched_yield();
    }
    if (spin == SPINS) sleep_until_launch(seen);
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
  pthread_cond_init(&helpers_left, NULL);
  memset(tasks, 0, (size_t)atomic_load(&places) * sizeof *tasks);
  atomic_store(&workers, 0);
  atomic_store(&sleepers, 0);
  wanted = 0;
}

/* More workers, up to `count`; with fewer the launch still runs. */
static void start_workers(int count) {
  static bool registered;
  pthread_mutex_lock(&pool_mutex);
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
  while (atomic_load(&workers) < count) {
    pthread_t thread;
    void *number = (void *)(intptr_t)(atomic_load(&workers) + 1);
    if (pthread_create(&thread, &attributes, worker_main, number) != 0) break;
    atomic_fetch_add(&workers, 1);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_mutex_unlock(&pool_mutex);
}

EXPORT void tilewright_set_threads(int count) {
  atomic_store(&thread_count, count < 1 ? 1 : count > MOST_SHARES ? MOST_SHARES : count);
}

/* Somebody else's number of threads, which ours does not exceed: who tells torch to use few means all of a model. */
typedef int (*thread_limit)(void);
static _Atomic thread_limit limit;

EXPORT void tilewright_limit_threads(thread_limit ask) { atomic_store(&limit, ask); }

EXPORT int tilewright_get_threads(void) {
  int threads = atomic_load_explicit(&thread_count, memory_order_relaxed);
  thread_limit ask = atomic_load_explicit(&limit, memory_order_relaxed);
  int most = ask ? ask() : threads;
  return most > 0 && most < threads ? most : threads;
}

/* A place for a task that helpers may join; NULL where all are taken. */
static task *take_place(void) {
  for (int i = 0; i < MOST_TASKS; i++) {
    bool free_place = false;
    if (!atomic_load_explicit(&tasks[i].taken, memory_order_relaxed) &&
        atomic_compare_exchange_strong(&tasks[i].taken, &free_place, true)) {
      int met = atomic_load(&places);
      while (met <= i && !atomic_compare_exchange_weak(&places, &met, i + 1)) {}
      return &tasks[i];
    }
  }
  return NULL;
}

/* Let helpers join a task, and wake one who sleeps. */
static void call_helpers(task *t, int count) {
  if (atomic_load_explicit(&workers, memory_order_relaxed) < count) start_workers(count);
  int core = this_core();
  if (core >= 0 && atomic_load_explicit(&callers_core, memory_order_relaxed) != core) atomic_store(&callers_core, core);
  atomic_store(&t->open, true);
  atomic_fetch_add(&launches, 1);
  if (atomic_load(&sleepers) == 0) return;
  pthread_mutex_lock(&pool_mutex);
  wanted = count;
  pthread_mutex_unlock(&pool_mutex);
  pthread_cond_signal(&work_arrived);
}

static bool anybody_inside(task *t) {
  int owned = atomic_load(&workers) + 1;
  for (int i = 1; i < owned && i < MOST_SHARES; i++)
    if (atomic_load(&t->shares[i].inside)) return true;
  return false;
}

/* Let nobody join any more, and wait until all helpers have left. */
static void wait_for_helpers(task *t) {
  atomic_store(&t->open, false);
  for (int spin = 0; spin < SPINS; spin++) {
    if (!anybody_inside(t)) return;
    relax();
    if (spin % (UNTIL_LOOK * 16) == UNTIL_LOOK * 16 - 1) sched_yield();
  }
  pthread_mutex_lock(&pool_mutex);
  atomic_store(&t->waited_for, true);
  while (anybody_inside(t)) pthread_cond_wait(&helpers_left, &pool_mutex);
  atomic_store(&t->waited_for, false);
  pthread_mutex_unlock(&pool_mutex);
}

/* All blocks one after the other, on the calling thread. */
static int32_t run_alone(int64_t blocks, int64_t scratch_bytes, block_function function, const void *arguments) {
  bool nested = false;
  uint8_t *scratch = NULL;
  if (scratch_bytes > 0 && !(scratch = take_scratch(scratch_bytes, &nested))) return OUT_OF_MEMORY;
  int32_t status = 0;
  for (int64_t block = 0; block < blocks && status == 0; block++) status = function(arguments, block, scratch);
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
  if (scratch_bytes > 0) give_scratch_back(scratch, nested);
  return status;
}

/* Run `function` for every block of 0 .. blocks - 1.  Returns 0 or the first failure's status. */
EXPORT int32_t tilewright_parallel_for(int64_t blocks, int64_t scratch_bytes, block_function function, const void *arguments) {
  if (blocks <= 0) return 0;
  int threads = blocks > 1 ? tilewright_get_threads() : 1;
  if (threads > blocks) threads = (int)blocks;
  task *t = threads > 1 ? take_place() : NULL;
  if (!t) return run_alone(blocks, scratch_bytes, function, arguments);
  t->function = function;
  t->arguments = arguments;
  t->scratch_bytes = scratch_bytes;
  for (int i = 0; i < threads; i++) {
    atomic_store_explicit(&t->shares[i].next, blocks * i / threads, memory_order_relaxed);
    atomic_store_explicit(&t->shares[i].end, blocks * (i + 1) / threads, memory_order_relaxed);
  }
  atomic_store_explicit(&t->shares_held, threads, memory_order_relaxed);
  atomic_store_explicit(&t->status, 0, memory_order_relaxed);
  call_helpers(t, threads - 1);
  work_on(t, t->shares);
  wait_for_helpers(t);
  int32_t status = atomic_load(&t->status);
  atomic_store(&t->taken, false);
  return status;
}
