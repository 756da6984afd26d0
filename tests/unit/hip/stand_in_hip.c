/* A stand-in of HIP's runtime library: it does nothing on any GPU, refuses what the library refuses, and remembers what it was asked.
 *
 * Each check cites what it stands for: [runtime] HIP's runtime API reference (module management, execution control), [elf] LLVM's user guide for
 * the AMDGPU back end (code object ELF header, kernel descriptors), [limits] hipDeviceProp_t of an MI300X.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONFIGURATION = 9, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, TOO_LARGE = 720 };
enum { DEVICES = 2, STREAMS = 4, MACH_GFX942 = 0x4c, EM_AMDGPU = 224, OSABI_HSA = 64 };

struct Module { uint32_t magic; const unsigned char* image; uint64_t size; int device; };
struct Function { uint32_t magic; struct Module* module; uint32_t kernarg, shared; char name[200]; };
struct Launch { char name[200]; uint32_t grid[3], block[3], shared; uint64_t stream; int device, cooperative; unsigned char arguments[512]; uint32_t argument_bytes; };

static int initialised, device, count;
static struct Launch launches[256];

/* Test's own: sizes of the next kernel's parameters, what was launched, memory that is left. */
uint32_t standin_sizes[64], standin_parameters;
uint64_t standin_memory = 1 << 30;
int standin_launches(void) { return count; }
const struct Launch* standin_launch(int number) { return &launches[number]; }
void standin_reset(void) { initialised = device = count = 0; standin_memory = 1 << 30; }

const char* hipGetErrorName(int error) {
  switch (error) {
    case SUCCESS: return "hipSuccess";
    case INVALID_VALUE: return "hipErrorInvalidValue";
    case OUT_OF_MEMORY: return "hipErrorOutOfMemory";
    case NOT_INITIALIZED: return "hipErrorNotInitialized";
    case INVALID_CONFIGURATION: return "hipErrorInvalidConfiguration";
    case INVALID_DEVICE: return "hipErrorInvalidDevice";
    case INVALID_IMAGE: return "hipErrorInvalidImage";
    case NO_BINARY: return "hipErrorNoBinaryForGpu";
    case INVALID_HANDLE: return "hipErrorInvalidHandle";
    case NOT_FOUND: return "hipErrorNotFound";
    case TOO_LARGE: return "hipErrorCooperativeLaunchTooLarge";
    default: return "hipErrorUnknown";
  }
}
int hipInit(unsigned flags) { return flags ? INVALID_VALUE : (initialised = 1, SUCCESS); }   /* [runtime] flags must be zero */
int hipGetDeviceCount(int* out) {
  if (!out) return INVALID_VALUE;                                                            /* [runtime] */
  *out = DEVICES;
  return SUCCESS;
}
int hipGetDevicePropertiesR0600(char* properties, int which) {
  if (!properties || which < 0 || which >= DEVICES) return INVALID_DEVICE;                   /* [runtime] */
  memset(properties, 0, 1472);
  strcpy(properties, "AMD Instinct MI300X");
  strcpy(properties + 1160, "gfx942:sramecc+:xnack-");
  return SUCCESS;
}
int hipDeviceGetAttribute(int* out, int attribute, int which) {
  if (!out || which < 0 || which >= DEVICES) return INVALID_DEVICE;                          /* [runtime] */
  if (attribute != 63) return INVALID_VALUE;                                                 /* hipDeviceAttributeMultiprocessorCount */
  *out = 228 + which;
  return SUCCESS;
}
int hipGetDevice(int* out) { return out ? (*out = device, SUCCESS) : INVALID_VALUE; }
int hipSetDevice(int which) { return which < 0 || which >= DEVICES ? INVALID_DEVICE : (device = which, SUCCESS); }

int hipModuleLoadData(struct Module** out, const unsigned char* image) {
  if (!initialised) return NOT_INITIALIZED;                                                  /* [runtime] hipInit comes first */
  if (!out || !image) return INVALID_VALUE;                                                  /* [runtime] */
  if (memcmp(image, "\177ELF", 4) || image[4] != 2 || image[7] != OSABI_HSA) return INVALID_IMAGE;        /* [elf] 64 bits, ELFOSABI_AMDGPU_HSA */
  if (image[8] < 2) return INVALID_IMAGE;                                                    /* [elf] code object version 4 is the oldest one taken */
  if (*(const uint16_t*)(image + 18) != EM_AMDGPU) return INVALID_IMAGE;                     /* [elf] e_machine */
  if (*(const uint16_t*)(image + 16) != 3) return INVALID_IMAGE;                             /* [elf] a shared object, not an object file */
  if ((*(const uint32_t*)(image + 48) & 0xFF) != MACH_GFX942) return NO_BINARY;              /* [elf] e_flags name the machine */
  struct Module* module = malloc(sizeof *module);
  module->magic = 0x600D;
  module->image = image;
  module->device = device;
  *out = module;
  return SUCCESS;
}

/* The symbol of a name in .dynsym, whose strings are .dynstr. */
static const unsigned char* symbol(const unsigned char* image, const char* wanted) {
  const uint64_t sections = *(const uint64_t*)(image + 0x28);
  const uint16_t size = *(const uint16_t*)(image + 0x3A), total = *(const uint16_t*)(image + 0x3C);
  for (int i = 0; i < total; ++i) {
    const unsigned char* section = image + sections + (uint64_t)size * i;
    if (*(const uint32_t*)(section + 4) != 11) continue;                                      /* SHT_DYNSYM */
    const unsigned char* strings = image + sections + (uint64_t)size * *(const uint32_t*)(section + 40);
    const char* names = (const char*)image + *(const uint64_t*)(strings + 24);
    const unsigned char* entry = image + *(const uint64_t*)(section + 24);
    for (uint64_t rest = *(const uint64_t*)(section + 32); rest >= 24; rest -= 24, entry += 24)
      if (!strcmp(names + *(const uint32_t*)entry, wanted)) return entry;
  }
  return 0;
}
int hipModuleGetFunction(struct Function** out, struct Module* module, const char* name) {
  if (!out || !name) return INVALID_VALUE;                                                   /* [runtime] */
  if (!module || module->magic != 0x600D) return INVALID_HANDLE;                             /* [runtime] */
  char descriptor[200];
  snprintf(descriptor, sizeof descriptor, "%s.kd", name);
  const unsigned char* found = symbol(module->image, descriptor);                            /* [elf] kernel descriptors end in .kd */
  if (!found) return NOT_FOUND;
  const uint32_t* kernel = (const uint32_t*)(module->image + *(const uint64_t*)(found + 8)); /* read-only data lies where it is loaded */
  struct Function* function = calloc(1, sizeof *function);
  function->magic = 0xF00D;
  function->module = module;
  function->shared = kernel[0];                                                              /* [elf] group_segment_fixed_size */
  function->kernarg = kernel[2];                                                             /* [elf] kernarg_size */
  strcpy(function->name, name);
  *out = function;
  return SUCCESS;
}
static int launch(struct Function* f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared, uint64_t stream, void** arguments, int cooperative) {
  if (!f || f->magic != 0xF00D) return INVALID_HANDLE;                                       /* [runtime] */
  if (!gx || !gy || !gz || !bx || !by || !bz) return INVALID_CONFIGURATION;                  /* [runtime] dimensions are positive */
  if (bx > 1024 || (uint64_t)bx * by * bz > 1024) return INVALID_CONFIGURATION;              /* [limits] maxThreadsPerBlock */
  if ((uint64_t)gx * bx > 0xFFFFFFFFull || gy > 65536 || gz > 65536) return INVALID_CONFIGURATION;  /* [limits] threads along x, maxGridSize */
  if (f->shared + shared > 65536) return INVALID_VALUE;                                      /* [limits] sharedMemPerBlock */
  if (stream >= STREAMS) return INVALID_HANDLE;                                              /* [runtime] a stream of this process */
  if (f->module->device != device) return INVALID_HANDLE;                                    /* [runtime] modules belong to the device that loaded them */
  if (!arguments && standin_parameters) return INVALID_VALUE;                                /* [runtime] kernelParams */
  if (cooperative && gx * gy * gz > 228 * 2) return TOO_LARGE;                               /* [runtime] all blocks are resident */
  struct Launch* one = &launches[count++ % 256];
  memset(one, 0, sizeof *one);
  strcpy(one->name, f->name);
  const uint32_t grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  memcpy(one->grid, grid, 12);
  memcpy(one->block, block, 12);
  one->shared = shared;
  one->stream = stream;
  one->device = device;
  one->cooperative = cooperative;
  uint32_t at = 0;
  for (uint32_t i = 0; i < standin_parameters; ++i) {                                        /* [elf] each argument at a multiple of its size */
    const uint32_t size = standin_sizes[i];
    at = (at + size - 1) / size * size;
    if (!arguments[i]) return INVALID_VALUE;
    memcpy(one->arguments + at, arguments[i], size);
    at += size;
  }
  if (at > f->kernarg) return INVALID_VALUE;                                                 /* [elf] kernarg_size holds them all */
  one->argument_bytes = at;
  return SUCCESS;
}
int hipModuleLaunchKernel(struct Function* f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared, uint64_t stream, void** arguments, void** extra) {
  if (arguments && extra) return INVALID_VALUE;                                              /* [runtime] one of the two */
  return launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0);
}
int hipModuleLaunchCooperativeKernel(struct Function* f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared, uint64_t stream, void** arguments) {
  return launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, 1);
}
int hipMalloc(void** out, uint64_t size) {
  if (!out) return INVALID_VALUE;                                                            /* [runtime] */
  if (size > standin_memory) return OUT_OF_MEMORY;                                           /* [runtime] */
  standin_memory -= size;
  *out = calloc(1, size);
  return SUCCESS;
}
int hipMemsetAsync(void* at, int value, uint64_t size, uint64_t stream) {
  if (stream >= STREAMS) return INVALID_HANDLE;                                              /* [runtime] a stream of this process */
  return at || !size ? SUCCESS : INVALID_VALUE;
}
