/* What a call does, as operations on arrays at any addresses, and their run. No header of Python, torch or CUDA: functions of
   the driver and of cuBLAS come as addresses. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* cuda.h */
typedef struct {
  int id;
  char padding[4];
  int value;
  int rest[15];
} Attribute;
typedef struct {
  unsigned blocks[3], threads[3], shared_bytes;
  void *stream;
  Attribute *attributes;
  unsigned attribute_count;
} Configuration;
#define COOPERATIVE 2
typedef struct {
  size_t x, y;
  int memory;
  void *host;
  uint64_t address;
  void *array;
  size_t pitch;
} CopySide;
typedef struct {
  CopySide from, to;
  size_t width, height;
} Copy;
#define DEVICE_MEMORY 2

typedef int (*LaunchFunction)(const Configuration *, void *, void **, void **);
typedef int (*SetBytesFunction)(uint64_t, unsigned char, size_t, void *);
typedef int (*CopyFunction)(const Copy *, void *);
typedef int (*SetStreamFunction)(void *, void *);
typedef int (*SetWorkspaceFunction)(void *, void *, size_t);
typedef int (*SetModeFunction)(void *, int);
typedef void (*KernelFunction)(const void *);
typedef int (*MultiplyFunction)(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *,
                                int, int, long long, const void *, void *, int, int, long long, int, int, int);

typedef struct {
  ptrdiff_t slot;
  int64_t offset;
} Place;
typedef struct {
  ptrdiff_t position; /* among the arguments */
  Place first, second;
  int64_t itemsize; /* 0: the address of `second`; else how many elements it lies behind `first` */
} Patch;

enum Kind { LAUNCH, PRODUCT, BYTES, COPY, KERNEL };
typedef struct {
  enum Kind kind;
  uint64_t function;
  Configuration configuration;
  Attribute attribute;
  ptrdiff_t argument_count, patch_count;
  char *arguments; /* 8 bytes each */
  Patch *patches;
  Place places[4]; /* left, right, result, and the workspace, or slot -1; of bytes the first; of a copy from and to */
  int numbers[15];
  long long strides[3];
  int is_double, adds;
  int value;
  ptrdiff_t workspace_position; /* of a kernel, among its arguments */
  uint64_t size_bytes;          /* those of bytes, of a square of a copy, of a workspace */
  uint64_t gates, heads; /* of a copy */
} Operation;

typedef struct {
  LaunchFunction launch;
  SetBytesFunction set_bytes;
  CopyFunction copy;
  SetStreamFunction set_stream;
  SetWorkspaceFunction set_workspace;
  SetModeFunction set_mode;
  MultiplyFunction multiply;
  ptrdiff_t count, slots, arguments_most;
  Operation *operations;
} Program;
#define NO_NARROW_SUMS 16
#define DEFAULT_ALGORITHM -1

/* Sums and differences of addresses go around, as the device's do. */
static int64_t at(const int64_t *addresses, Place place) {
  return (int64_t)((uint64_t)addresses[place.slot] + (uint64_t)place.offset);
}

static int64_t floored(int64_t number, int64_t divisor) {
  int64_t quotient = number / divisor;
  return quotient * divisor > number ? quotient - 1 : quotient;
}

/* Write the arguments of a launch or of a kernel, those in arrays at their addresses. */
static void patch_arguments(const Operation *operation, const int64_t *addresses, char *block) {
  memcpy(block, operation->arguments, 8 * operation->argument_count);
  for (ptrdiff_t index = 0; index < operation->patch_count; index++) {
    const Patch *patch = &operation->patches[index];
    int64_t value = at(addresses, patch->second);
    if (patch->itemsize) value = floored((int64_t)((uint64_t)value - (uint64_t)at(addresses, patch->first)), patch->itemsize);
    memcpy(block + 8 * patch->position, &value, sizeof value);
  }
}

static int do_launch(const Program *program, const Operation *operation, const int64_t *addresses, void *stream, char *block) {
  ptrdiff_t count = operation->argument_count;
  void **pointers = (void **)(block + 8 * count);
  patch_arguments(operation, addresses, block);
  for (ptrdiff_t index = 0; index < count; index++) pointers[index] = block + 8 * index;
  Configuration configuration = operation->configuration;
  Attribute attribute = operation->attribute;
  configuration.stream = stream;
  configuration.attributes = &attribute;
  return program->launch(&configuration, (void *)(uintptr_t)operation->function, pointers, NULL);
}

/* Run a kernel of this processor; 1 where there is no memory for it to work in. */
static int do_kernel(const Operation *operation, const int64_t *addresses, char *block) {
  void *workspace = operation->size_bytes ? malloc(operation->size_bytes) : NULL;
  if (operation->size_bytes && workspace == NULL) return 1;
  patch_arguments(operation, addresses, block);
  memcpy(block + 8 * operation->workspace_position, &workspace, sizeof workspace);
  ((KernelFunction)(uintptr_t)operation->function)(block);
  free(workspace);
  return 0;
}

/* result^T = right^T left^T, for cuBLAS thinks in columns; see gpu/cublas.py. */
static int do_multiply(const Program *program, const Operation *operation, const int64_t *addresses, void *handle) {
  static const float float_unit = 1, float_beta[2] = {0, 1};
  static const double double_unit = 1, double_beta[2] = {0, 1};
  const int *n = operation->numbers;
  const Place *places = operation->places;
  int is_double = operation->is_double;
  const void *unit = is_double ? (const void *)&double_unit : &float_unit;
  const void *beta = is_double ? (const void *)&double_beta[operation->adds] : &float_beta[operation->adds];
  return program->multiply(handle, n[4], n[3], n[1], n[0], n[2], unit, (void *)(uintptr_t)at(addresses, places[1]), n[7], n[8],
                           operation->strides[1], (void *)(uintptr_t)at(addresses, places[0]), n[5], n[6],
                           operation->strides[0], beta, (void *)(uintptr_t)at(addresses, places[2]), n[9], n[10],
                           operation->strides[2], n[11], n[12], DEFAULT_ALGORITHM);
}

/* R [gates, heads, D, D] as [heads, gates, D, D], `size_bytes` those of D, D: a gate at a time; see gpu/graph.py. */
static int do_copy(const Program *program, const Operation *operation, const int64_t *addresses, void *stream) {
  const uint64_t gates = operation->gates, heads = operation->heads, square = operation->size_bytes;
  int status = 0;
  for (uint64_t gate = 0; gate < gates && !status; gate++) {
    Copy copy = {{0, 0, DEVICE_MEMORY, NULL, at(addresses, operation->places[0]) + gate * heads * square, NULL, square},
                 {0, 0, DEVICE_MEMORY, NULL, at(addresses, operation->places[1]) + gate * square, NULL, gates * square},
                 square,
                 heads};
    status = program->copy(&copy, stream);
  }
  return status;
}

/* Make cuBLAS ready for a product on `stream` in `workspace`; NULL is its own, to which a new stream takes it back. */
static int prepare_products(const Program *program, void *handle, void *stream, void *workspace, uint64_t size_bytes) {
  int status = program->set_stream(handle, stream);
  if (!status && workspace != NULL) status = program->set_workspace(handle, workspace, size_bytes);
  return status ? status : program->set_mode(handle, NO_NARROW_SUMS);
}

/* Bytes behind the addresses of a run in which arguments are put together. */
static size_t room_of(const Program *program) { return 16 * program->arguments_most + 8; }

/* Run a program from operation `*index` on; return the status of the one that is refused, whose index is left behind.
   `own_workspace`: for products without a workspace in the program; NULL is cuBLAS's own. */
static int run_program(const Program *program, const int64_t *addresses, void *stream, void *handle, void *own_workspace,
                       char *room, ptrdiff_t *index) {
  void *workspace = NULL;
  int status = 0, is_ready = 0;
  for (; *index < program->count; ++*index) {
    const Operation *operation = &program->operations[*index];
    if (operation->kind == LAUNCH) {
      status = do_launch(program, operation, addresses, stream, room);
    } else if (operation->kind == BYTES) {
      status = program->set_bytes(at(addresses, operation->places[0]), operation->value, operation->size_bytes, stream);
    } else if (operation->kind == COPY) {
      status = do_copy(program, operation, addresses, stream);
    } else if (operation->kind == KERNEL) {
      status = do_kernel(operation, addresses, room);
    } else {
      const Place place = operation->places[3];
      void *wanted = place.slot < 0 ? own_workspace : (void *)(uintptr_t)at(addresses, place);
      if (!is_ready || wanted != workspace) {
        is_ready = 1;
        workspace = wanted;
        status = prepare_products(program, handle, stream, workspace, operation->size_bytes);
      }
      if (!status) status = do_multiply(program, operation, addresses, handle);
    }
    if (status) break;
  }
  if (is_ready) program->set_mode(handle, 0);
  return status;
}
