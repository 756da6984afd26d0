/* Products with quantised weights as llama.cpp computes them, for benchmarks/llama_cpp.py: several weights of one shape, one graph. */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  ggml_backend_t backend;
  struct ggml_cgraph *graph;
  struct ggml_tensor *x, *y;
} product;

/* The buffer type whose kernels take such weights (repacked, or for a matrix unit), else plain memory. */
static ggml_backend_buffer_type_t place_for(struct ggml_tensor *w, struct ggml_tensor *op) {
  ggml_backend_reg_t reg = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, 0);
  ggml_backend_dev_get_extra_bufts_t list =
      (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
  ggml_backend_buffer_type_t *types = list ? list(device) : NULL;
  for (; types && *types; types++) {
    w->buffer = ggml_backend_buft_alloc_buffer(*types, 0);
    int takes = w->buffer && ggml_backend_dev_supports_op(device, op);
    ggml_backend_buffer_free(w->buffer);
    w->buffer = NULL;
    if (takes) return *types;
  }
  return ggml_backend_cpu_buffer_type();
}

static void quiet(enum ggml_log_level level, const char *text, void *data) { (void)level, (void)text, (void)data; }

/* `count` weights [n, k] of the same numbers, times x[m, k]; NULL where the type is unknown or memory is short. */
void *product_make(const char *type_name, int64_t n, int64_t k, int64_t m, int count, int threads, const float *numbers) {
  int type = 0;
  ggml_log_set(quiet, NULL);
  while (type < GGML_TYPE_COUNT && strcmp(ggml_type_name(type) ? ggml_type_name(type) : "", type_name)) type++;
  if (type == GGML_TYPE_COUNT) return NULL;
  struct ggml_init_params params = {ggml_tensor_overhead() * (2 * count + 8) + ggml_graph_overhead(), NULL, true};
  struct ggml_context *weights = ggml_init(params), *others = ggml_init(params);
  product *p = calloc(1, sizeof *p);
  p->backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(p->backend, threads);
  p->x = ggml_new_tensor_2d(others, GGML_TYPE_F32, k, m);
  p->graph = ggml_new_graph(others);
  struct ggml_tensor *first = NULL, **all = malloc(count * sizeof *all);
  for (int i = 0; i < count; i++) {
    all[i] = ggml_new_tensor_2d(weights, type, k, n);
    p->y = ggml_mul_mat(others, all[i], p->x);
    if (!first) first = p->y;
    ggml_build_forward_expand(p->graph, p->y);
  }
  if (!ggml_backend_alloc_ctx_tensors_from_buft(weights, place_for(all[0], first))) return NULL;
  if (!ggml_backend_alloc_ctx_tensors(others, p->backend)) return NULL;
  size_t bytes = ggml_nbytes(all[0]);
  void *codes = malloc(bytes);
  ggml_quantize_chunk(type, numbers, codes, 0, n, k, NULL);
  for (int i = 0; i < count; i++) ggml_backend_tensor_set(all[i], codes, 0, bytes);
  free(codes);
  free(all);
  return p;
}

/* The products with all weights; y is the last one. */
int product_run(product *p, const float *x, float *y) {
  memcpy(p->x->data, x, ggml_nbytes(p->x));
  int status = ggml_backend_graph_compute(p->backend, p->graph);
  memcpy(y, p->y->data, ggml_nbytes(p->y));
  return status;
}
