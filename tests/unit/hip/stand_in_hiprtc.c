/* A stand-in of hiprtc: it hands texts to the clang that STANDIN_CLANG names, behind a header like the one that the library puts in front, and refuses
 * what the library refuses.
 *
 * Each check cites what it stands for: [hiprtc] the HIP RTC API reference (hiprtcResult of each function), [header] hiprtc_runtime.h, which every text
 * finds in front of it, [clang] options go to clang as they are.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, CREATION = 2, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };
struct Program { uint32_t magic; char folder[64], name[64]; char* log; char* code; uint64_t log_size, code_size; int compiled; };

static int alive;
int standin_alive(void) { return alive; }

/* [header] types, coordinates and functions that HIP's own header declares; a text that declares them otherwise is refused. */
static const char* const RUNTIME =
  "#define __HIPCC_RTC__ 1\n#define HIP_VERSION_MAJOR 6\n#define __device__ __attribute__((device))\n#define __global__ __attribute__((global))\n#define __shared__ __attribute__((shared))\n"
  "typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;\n"
  "typedef long long int64_t; typedef unsigned long long uint64_t; typedef unsigned long size_t;\n"
  "struct uint2 { unsigned x, y; }; struct alignas(16) uint4 { unsigned x, y, z, w; };\n"
  "struct __HIP_Coordinates { unsigned x, y, z; }; extern __device__ const __HIP_Coordinates threadIdx, blockIdx, blockDim, gridDim;\n"
  "extern \"C\" __device__ inline void* memcpy(void* to, const void* from, size_t n) { return __builtin_memcpy(to, from, n); }\n"
  "__device__ inline int min(int a, int b) { return a < b ? a : b; }\n__device__ inline int max(int a, int b) { return a < b ? b : a; }\n";

const char* hiprtcGetErrorString(int error) {
  static const char* const words[] = {"HIPRTC_SUCCESS", "HIPRTC_ERROR_OUT_OF_MEMORY", "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE", "HIPRTC_ERROR_INVALID_INPUT",
                                      "HIPRTC_ERROR_INVALID_PROGRAM", "HIPRTC_ERROR_INVALID_OPTION", "HIPRTC_ERROR_COMPILATION"};
  return error < 7 ? words[error] : "HIPRTC_ERROR_INTERNAL_ERROR";
}
int hiprtcVersion(int* major, int* minor) { return major && minor ? (*major = 6, *minor = 4, SUCCESS) : INVALID_INPUT; }   /* [hiprtc] */

static void put(const char* folder, const char* name, const char* first, const char* text) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, "w");
  fputs(first, file);
  fputs(text, file);
  fclose(file);
}
static char* get(const char* folder, const char* name, uint64_t* size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file) return 0;
  fseek(file, 0, SEEK_END);
  *size = ftell(file);
  rewind(file);
  char* found = malloc(*size + 1);
  *size = fread(found, 1, *size, file);
  found[*size] = 0;
  fclose(file);
  return found;
}
int hiprtcCreateProgram(struct Program** out, const char* text, const char* name, int count, const char* const* headers, const char* const* names) {
  if (!out || !text) return INVALID_INPUT;                                                   /* [hiprtc] prog and src */
  if (count < 0 || (count && (!headers || !names))) return INVALID_INPUT;                    /* [hiprtc] numHeaders, headers, includeNames */
  struct Program* program = calloc(1, sizeof *program);
  strcpy(program->folder, "/tmp/standin_hiprtc_XXXXXX");
  if (!mkdtemp(program->folder)) return CREATION;
  program->magic = 0xA3D;
  snprintf(program->name, sizeof program->name, "%s", name && *name ? name : "CompileSource");
  for (int i = 0; i < count; ++i) put(program->folder, names[i], "", headers[i]);
  put(program->folder, program->name, "", text);
  put(program->folder, "hiprtc_runtime.h", "", RUNTIME);
  *out = program;
  ++alive;
  return SUCCESS;
}
static int is_program(const struct Program* program) { return program && program->magic == 0xA3D; }
int hiprtcCompileProgram(struct Program* program, int count, const char* const* options) {
  if (!is_program(program)) return INVALID_PROGRAM;                                          /* [hiprtc] */
  if (count < 0 || (count && !options)) return INVALID_INPUT;                                /* [hiprtc] */
  char words[2048] = "", architecture[64] = "", command[8192];
  for (int i = 0; i < count; ++i) {
    if (!options[i] || options[i][0] != '-') return INVALID_OPTION;                          /* [hiprtc] options begin with a dash */
    if (!strncmp(options[i], "--offload-arch=", 15)) snprintf(architecture, sizeof architecture, "%s", options[i] + 15);
    if (!strcmp(options[i], "-c") || !strcmp(options[i], "-S") || !strncmp(options[i], "-o", 2)) return INVALID_OPTION;   /* the library says what comes out */
    strcat(strcat(words, " "), options[i]);
  }
  if (!*architecture) return INVALID_OPTION;                                                 /* no GPU here to take it from */
  const char* clang = getenv("STANDIN_CLANG");
  snprintf(command, sizeof command,
           "cd %s && { %s clang -x hip --cuda-device-only -nogpuinc -nogpulib -include hiprtc_runtime.h -I.%s -S %s -o k.s && "
           "%s clang --target=amdgcn-amd-amdhsa -mcpu=%s -mcode-object-version=5 -c k.s -o k.o && %s ld.lld -shared k.o -o k.hsaco; } 2> log",
           program->folder, clang, words, program->name, clang, architecture, clang);
  const int refused = system(command);
  program->log = get(program->folder, "log", &program->log_size);
  program->code = refused ? 0 : get(program->folder, "k.hsaco", &program->code_size);
  program->compiled = 1;
  return refused || !program->code ? COMPILATION : SUCCESS;
}
int hiprtcGetProgramLogSize(struct Program* program, size_t* size) {
  if (!is_program(program)) return INVALID_PROGRAM;
  return size ? (*size = program->log ? program->log_size + 1 : 0, SUCCESS) : INVALID_INPUT;  /* [hiprtc] with the zero at its end */
}
int hiprtcGetProgramLog(struct Program* program, char* out) {
  if (!is_program(program)) return INVALID_PROGRAM;
  return out ? (memcpy(out, program->log, program->log_size + 1), SUCCESS) : INVALID_INPUT;
}
int hiprtcGetCodeSize(struct Program* program, size_t* size) {
  if (!is_program(program) || !program->code) return INVALID_PROGRAM;                        /* [hiprtc] there is code once it is compiled */
  return size ? (*size = program->code_size, SUCCESS) : INVALID_INPUT;
}
int hiprtcGetCode(struct Program* program, char* out) {
  if (!is_program(program) || !program->code) return INVALID_PROGRAM;
  return out ? (memcpy(out, program->code, program->code_size), SUCCESS) : INVALID_INPUT;
}
int hiprtcDestroyProgram(struct Program** program) {
  if (!program || !is_program(*program)) return INVALID_PROGRAM;                             /* [hiprtc] a pointer to the program */
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", (*program)->folder);
  system(command);
  (*program)->magic = 0;
  *program = 0;
  --alive;
  return SUCCESS;
}
