/* Launches from several threads at once, some inside others, with pauses between: every block of each runs once. */
#include "tilewright_pool.c"
#include <stdio.h>
#include <unistd.h>

enum { CALLERS = 6, LAUNCHES = 300, MOST = 40 };
typedef struct { _Atomic int *seen; int inner; } request;

static int32_t nothing(const void *arguments, int64_t block, uint8_t *scratch) {
  atomic_fetch_add((_Atomic int *)arguments, 1);
  return scratch ? (int32_t)(block * 0) : 0;
}

static int32_t count(const void *arguments, int64_t block, uint8_t *scratch) {
  const request *given = arguments;
  scratch[0] = (uint8_t)block;
  atomic_fetch_add(&given->seen[block], 1);
  if (given->inner) {
    _Atomic int inner = 0;
    if (tilewright_parallel_for(given->inner, 64, nothing, &inner) != 0 || inner != given->inner) return 7;
  }
  return scratch[0] == (uint8_t)block ? 0 : 8;
}

static int32_t fail_at_five(const void *arguments, int64_t block, uint8_t *scratch) {
  (void)arguments, (void)scratch;
  return block == 5 ? 3 : 0;
}

static void *call(void *seed) {
  unsigned state = (unsigned)(uintptr_t)seed;
  for (int i = 0; i < LAUNCHES; i++) {
    _Atomic int seen[MOST];
    int blocks = 1 + rand_r(&state) % MOST;
    for (int b = 0; b < MOST; b++) atomic_init(&seen[b], 0);
    request given = {seen, rand_r(&state) % 4 == 0 ? 3 : 0};
    if (tilewright_parallel_for(blocks, 64, count, &given) != 0) return "a block failed";
    for (int b = 0; b < MOST; b++)
      if (seen[b] != (b < blocks)) return "a block did not run once";
    if (tilewright_parallel_for(9, 0, fail_at_five, NULL) != 3) return "a failure was lost";
    int pause = rand_r(&state) % 4;
    if (pause == 1) usleep(500);  /* workers fall asleep */
    if (pause == 2) usleep(10);
  }
  return NULL;
}

int main(int argc, char **argv) {
  tilewright_set_threads(argc > 1 ? atoi(argv[1]) : 2);
  pthread_t callers[CALLERS];
  for (uintptr_t i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, (void *)(i + 1));
  int failed = 0;
  for (int i = 0; i < CALLERS; i++) {
    void *said;
    pthread_join(callers[i], &said);
    if (said) failed = 1, puts(said);
  }
  return failed;
}
