/* A call of a kernel again, in one step from Python: what its arguments were is kept in a record, with places for the
 * addresses that differ from call to call.  `tilewright_again` takes arrays of NumPy as the interpreter holds them, and
 * looks into them by the structure that NumPy publishes: each must be like the array that the record was made with, its
 * memory as even, and none may overlap what the kernel writes.  Whoever makes records has tried on an array of his own
 * that the structure is as it is written here (`targets/cpu/again.py`).  `tilewright_launch` takes addresses. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_DIMENSIONS 4
#define MOST_ARRAYS 6
#define MISSED INT64_MIN
#define OWNED 4 /* a flag: whether memory is the array's own, which nobody asks */

/* What follows the interpreter's own header in every array. */
typedef struct {
  uint8_t *data;
  int32_t dimensions;
  const int64_t *shape, *strides;
  const void *base, *type;
  int32_t flags;
} array;

typedef struct {
  const void *class, *type;
  int64_t dimensions, flags, shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
  int64_t mask, rest;  /* of its address: what the kernel was compiled for */
  int64_t low, high;   /* bytes from its address to its first and behind its last */
  int64_t slot;        /* among the arguments; below 0 where the kernel takes it nowhere */
} likeness;

typedef struct {
  int32_t (*entry)(const uint64_t *);
  void *(*release)(void);    /* the interpreter's lock */
  void (*acquire)(void *);
  int64_t header;            /* bytes in front of an object's own; its class is the last word of them */
  int64_t count, arrays, written;  /* arguments, arrays, and which of these the kernel writes */
  likeness like[MOST_ARRAYS];
  uint64_t arguments[];
} record;

static int is_like(const likeness *l, const array *a, const void *class) {
  if (class != l->class || a->type != l->type || a->dimensions != l->dimensions || (a->flags ^ l->flags) & ~OWNED) return 0;
  for (int64_t i = 0; i < l->dimensions; i++)
    if (a->shape[i] != l->shape[i] || a->strides[i] != l->strides[i]) return 0;
  return ((int64_t)(uintptr_t)a->data & l->mask) == l->rest;
}

static int64_t again(const record *r, const uint8_t *const *objects) {
  uint64_t given[r->count];
  for (int64_t i = 0; i < r->count; i++) given[i] = r->arguments[i];
  for (int64_t i = 0; i < r->arrays; i++) {
    const array *a = (const array *)(objects[i] + r->header);
    if (!is_like(&r->like[i], a, ((const void *const *)a)[-1])) return MISSED;
    if (r->like[i].slot >= 0) given[r->like[i].slot] = (uint64_t)(uintptr_t)a->data;
  }
  const likeness *written = &r->like[r->written];
  const int64_t at = (int64_t)(uintptr_t)((const array *)(objects[r->written] + r->header))->data;
  for (int64_t i = 0; i < r->arrays; i++) {
    const int64_t apart = at - (int64_t)(uintptr_t)((const array *)(objects[i] + r->header))->data;
    if (i != r->written && r->like[i].low - written->high < apart && apart < r->like[i].high - written->low) return MISSED;
  }
  void *const state = r->release();
  const int32_t status = r->entry(given);
  r->acquire(state);
  return status;
}

static int64_t launch(const record *r, const uint64_t *addresses) {
  uint64_t given[r->count];
  for (int64_t i = 0; i < r->count; i++) given[i] = r->arguments[i];
  for (int64_t i = 0; i < r->arrays; i++) given[r->like[i].slot] = addresses[i];
  return r->entry(given);
}

#define BOTH(number, ...) \
  EXPORT int64_t tilewright_again_##number(const record *r, PARAMETERS_##number(const uint8_t *)) { \
    const uint8_t *const all[] = {__VA_ARGS__}; \
    return again(r, all); \
  } \
  EXPORT int64_t tilewright_launch_##number(const record *r, PARAMETERS_##number(uint64_t)) { \
    const uint64_t all[] = {__VA_ARGS__}; \
    return launch(r, all); \
  }
#define PARAMETERS_1(type) type a0
#define PARAMETERS_2(type) PARAMETERS_1(type), type a1
#define PARAMETERS_3(type) PARAMETERS_2(type), type a2
#define PARAMETERS_4(type) PARAMETERS_3(type), type a3
#define PARAMETERS_5(type) PARAMETERS_4(type), type a4
#define PARAMETERS_6(type) PARAMETERS_5(type), type a5
BOTH(1, a0)
BOTH(2, a0, a1)
BOTH(3, a0, a1, a2)
BOTH(4, a0, a1, a2, a3)
BOTH(5, a0, a1, a2, a3, a4)
BOTH(6, a0, a1, a2, a3, a4, a5)
