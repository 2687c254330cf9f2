/* The host's part of a call that was met before, in C: its key, and all launches of its trace in one trip.

   Python's stable interface alone, and no header of torch or CUDA: tensors are read through DLPack's exchange interface,
   functions of the driver and of cuBLAS come as addresses. trip.py says what each function is given. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "key.h"

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
typedef int (*MultiplyFunction)(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *,
                                int, int, long long, const void *, void *, int, int, long long, int, int, int);

typedef struct {
  Py_ssize_t slot;
  int64_t offset;
} Place;
typedef struct {
  Py_ssize_t position; /* among the arguments */
  Place first, second;
  int64_t itemsize; /* 0: the address of `second`; else how many elements it lies behind `first` */
} Patch;

enum Kind { LAUNCH, PRODUCT, BYTES, COPY };
typedef struct {
  enum Kind kind;
  uint64_t function;
  Configuration configuration;
  Attribute attribute;
  Py_ssize_t argument_count, patch_count;
  char *arguments; /* 8 bytes each */
  Patch *patches;
  Place places[4]; /* left, right, result, and the workspace, or slot -1; of bytes the first; of a copy from and to */
  int numbers[15];
  long long strides[3];
  int is_double, adds;
  int value;
  uint64_t size_bytes;
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
  Py_ssize_t count, slots, arguments_most;
  Operation *operations;
} Program;
#define PROGRAM_NAME "minrnn_gen.native.program"
#define NO_NARROW_SUMS 16
#define DEFAULT_ALGORITHM -1

static void free_program(Program *program) {
  for (Py_ssize_t index = 0; index < program->count; index++) {
    free(program->operations[index].arguments);
    free(program->operations[index].patches);
  }
  free(program->operations);
  free(program);
}

static void end_program(PyObject *capsule) {
  Program *program = PyCapsule_GetPointer(capsule, PROGRAM_NAME);
  if (program != NULL) free_program(program);
}

static int note_slot(Program *program, Place place) {
  if (place.slot < 0) {
    PyErr_SetString(PyExc_ValueError, "a slot is negative");
    return 0;
  }
  if (place.slot >= program->slots) program->slots = place.slot + 1;
  return 1;
}

static int read_launch(Program *program, Operation *operation, PyObject *item) {
  const char *arguments;
  Py_ssize_t size;
  unsigned blocks, threads, shared_bytes;
  int is_cooperative;
  PyObject *kind, *patches;
  if (!PyArg_ParseTuple(item, "OKIIIpy#O!", &kind, &operation->function, &blocks, &threads, &shared_bytes, &is_cooperative,
                        &arguments, &size, &PyTuple_Type, &patches))
    return 0;
  operation->configuration = (Configuration){{blocks, 1, 1}, {threads, 1, 1}, shared_bytes, NULL, NULL, is_cooperative ? 1 : 0};
  operation->attribute.id = COOPERATIVE;
  operation->attribute.value = 1;
  operation->argument_count = size / 8;
  operation->patch_count = PyTuple_Size(patches);
  operation->arguments = malloc(size + 1);
  operation->patches = calloc(operation->patch_count + 1, sizeof(Patch));
  if (operation->arguments == NULL || operation->patches == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  memcpy(operation->arguments, arguments, size);
  if (operation->argument_count > program->arguments_most) program->arguments_most = operation->argument_count;
  for (Py_ssize_t index = 0; index < operation->patch_count; index++) {
    Patch *patch = &operation->patches[index];
    if (!PyArg_ParseTuple(PyTuple_GetItem(patches, index), "nnLnLL", &patch->position, &patch->first.slot, &patch->first.offset,
                          &patch->second.slot, &patch->second.offset, &patch->itemsize))
      return 0;
    if (patch->position < 0 || patch->position >= operation->argument_count || patch->itemsize < 0) {
      PyErr_SetString(PyExc_ValueError, "an argument is not where it is said to be");
      return 0;
    }
    if (!note_slot(program, patch->first) || !note_slot(program, patch->second)) return 0;
  }
  return 1;
}

static int read_product(Program *program, Operation *operation, PyObject *item) {
  PyObject *kind;
  int *n = operation->numbers;
  long long *strides = operation->strides;
  Place *places = operation->places;
  if (!PyArg_ParseTuple(item, "O(iiiii)(iiLnL)(iiLnL)(iiLnL)iipp(nLK)", &kind, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6],
                        &strides[0], &places[0].slot, &places[0].offset, &n[7], &n[8], &strides[1], &places[1].slot,
                        &places[1].offset, &n[9], &n[10], &strides[2], &places[2].slot, &places[2].offset, &n[11],
                        &n[12], &operation->is_double, &operation->adds, &places[3].slot, &places[3].offset,
                        &operation->size_bytes))
    return 0;
  for (int index = 0; index < (places[3].slot == -1 ? 3 : 4); index++) {
    if (!note_slot(program, places[index])) return 0;
  }
  return 1;
}

static int read_bytes(Program *program, Operation *operation, PyObject *item) {
  PyObject *kind;
  Place *place = operation->places;
  if (!PyArg_ParseTuple(item, "OnLiK", &kind, &place->slot, &place->offset, &operation->value, &operation->size_bytes)) return 0;
  return note_slot(program, *place);
}

static int read_copy(Program *program, Operation *operation, PyObject *item) {
  PyObject *kind;
  Place *places = operation->places;
  if (!PyArg_ParseTuple(item, "OnLnLKKK", &kind, &places[0].slot, &places[0].offset, &places[1].slot, &places[1].offset,
                        &operation->gates, &operation->heads, &operation->size_bytes))
    return 0;
  return note_slot(program, places[0]) && note_slot(program, places[1]);
}

/* program((launch, set bytes, copy, set stream, set workspace, set mode, multiply), operations): addresses of functions, and tuples
   that begin with a kind */
static PyObject *new_program(PyObject *Py_UNUSED(module), PyObject *arguments) {
  unsigned long long launch, set_bytes, copy, set_stream, set_workspace, set_mode, multiply;
  PyObject *items;
  if (!PyArg_ParseTuple(arguments, "(KKKKKKK)O!", &launch, &set_bytes, &copy, &set_stream, &set_workspace, &set_mode, &multiply,
                        &PyTuple_Type, &items))
    return NULL;
  Program *program = calloc(1, sizeof(Program));
  if (program == NULL) return PyErr_NoMemory();
  program->launch = (LaunchFunction)(uintptr_t)launch;
  program->set_bytes = (SetBytesFunction)(uintptr_t)set_bytes;
  program->copy = (CopyFunction)(uintptr_t)copy;
  program->set_workspace = (SetWorkspaceFunction)(uintptr_t)set_workspace;
  program->set_stream = (SetStreamFunction)(uintptr_t)set_stream;
  program->set_mode = (SetModeFunction)(uintptr_t)set_mode;
  program->multiply = (MultiplyFunction)(uintptr_t)multiply;
  program->count = PyTuple_Size(items);
  program->operations = calloc(program->count + 1, sizeof(Operation));
  if (program->operations == NULL) {
    free(program);
    return PyErr_NoMemory();
  }
  for (Py_ssize_t index = 0; index < program->count; index++) {
    Operation *operation = &program->operations[index];
    PyObject *item = PyTuple_GetItem(items, index);
    if (!PyTuple_Check(item) || !PyTuple_Size(item)) {
      PyErr_SetString(PyExc_TypeError, "an operation is a tuple");
      goto failed;
    }
    long kind = PyLong_AsLong(PyTuple_GetItem(item, 0));
    operation->kind = (enum Kind)kind;
    int is_read = 0;
    if (kind == LAUNCH) is_read = read_launch(program, operation, item);
    else if (kind == PRODUCT) is_read = read_product(program, operation, item);
    else if (kind == BYTES) is_read = read_bytes(program, operation, item);
    else if (kind == COPY) is_read = read_copy(program, operation, item);
    else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an operation is of no known kind");
    if (!is_read) goto failed;
  }
  PyObject *capsule = PyCapsule_New(program, PROGRAM_NAME, end_program);
  if (capsule != NULL) return capsule;
failed:
  free_program(program);
  return NULL;
}

static int64_t at(const int64_t *addresses, Place place) { return addresses[place.slot] + place.offset; }

static int64_t floored(int64_t number, int64_t divisor) {
  int64_t quotient = number / divisor;
  return quotient * divisor > number ? quotient - 1 : quotient;
}

static int do_launch(const Program *program, const Operation *operation, const int64_t *addresses, void *stream, char *block) {
  Py_ssize_t count = operation->argument_count;
  void **pointers = (void **)(block + 8 * count);
  memcpy(block, operation->arguments, 8 * count);
  for (Py_ssize_t index = 0; index < operation->patch_count; index++) {
    const Patch *patch = &operation->patches[index];
    int64_t value = at(addresses, patch->second);
    if (patch->itemsize) value = floored(value - at(addresses, patch->first), patch->itemsize);
    memcpy(block + 8 * patch->position, &value, sizeof value);
  }
  for (Py_ssize_t index = 0; index < count; index++) pointers[index] = block + 8 * index;
  Configuration configuration = operation->configuration;
  Attribute attribute = operation->attribute;
  configuration.stream = stream;
  configuration.attributes = &attribute;
  return program->launch(&configuration, (void *)(uintptr_t)operation->function, pointers, NULL);
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

/* run(program, addresses, stream, handle of cuBLAS, first operation): None, or (operation, its kind, status) where one is refused */
static PyObject *run(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *capsule, *list;
  unsigned long long stream_address, handle_address;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(arguments, "OO!KKn", &capsule, &PyList_Type, &list, &stream_address, &handle_address, &index)) return NULL;
  Program *program = PyCapsule_GetPointer(capsule, PROGRAM_NAME);
  if (program == NULL) return NULL;
  Py_ssize_t slots = PyList_Size(list);
  if (slots < program->slots || index < 0) {
    PyErr_SetString(PyExc_ValueError, "an operation is on an array that is not there");
    return NULL;
  }
  int64_t *addresses = malloc(8 * slots + 16 * program->arguments_most + 8);
  if (addresses == NULL) return PyErr_NoMemory();
  for (Py_ssize_t slot = 0; slot < slots; slot++) {
    addresses[slot] = PyLong_AsLongLong(PyList_GetItem(list, slot));
    if (addresses[slot] == -1 && PyErr_Occurred()) {
      free(addresses);
      return NULL;
    }
  }
  void *stream = (void *)(uintptr_t)stream_address, *handle = (void *)(uintptr_t)handle_address, *workspace = NULL;
  int status = 0, is_ready = 0;
  const Operation *operation = NULL;
  Py_BEGIN_ALLOW_THREADS
  for (; index < program->count; index++) {
    operation = &program->operations[index];
    if (operation->kind == LAUNCH) {
      status = do_launch(program, operation, addresses, stream, (char *)(addresses + slots));
    } else if (operation->kind == BYTES) {
      status = program->set_bytes(at(addresses, operation->places[0]), operation->value, operation->size_bytes, stream);
    } else if (operation->kind == COPY) {
      status = do_copy(program, operation, addresses, stream);
    } else {
      const Place place = operation->places[3];
      void *wanted = place.slot < 0 ? NULL : (void *)(uintptr_t)at(addresses, place);
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
  Py_END_ALLOW_THREADS
  free(addresses);
  if (!status) Py_RETURN_NONE;
  return Py_BuildValue("(nii)", index, (int)operation->kind, status);
}

/* serves(exchange): whether this file knows the interface of a library's tensors */
static PyObject *serves(PyObject *Py_UNUSED(module), PyObject *capsule) {
  Exchange *exchange = PyCapsule_GetPointer(capsule, EXCHANGE_NAME);
  if (exchange == NULL) return NULL;
  return PyBool_FromLong(exchange->version.major == 1 && exchange->tensor_from_object != NULL);
}

static PyMethodDef methods[] = {
    {"serves", serves, METH_O, "Say whether tensors can be read through an interface of DLPack."},
    {"describe", describe, METH_VARARGS, "Return the key of tensors, as bytes, and their addresses; None where there is none."},
    {"program", new_program, METH_VARARGS, "Return launches, products and fills to be run on arrays at any addresses."},
    {"run", run, METH_VARARGS, "Run a program; return None, or (operation, kind, status) where one is refused."},
    {NULL, NULL, 0, NULL},
};

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

static int exec(PyObject *module) {
  if (PyModule_AddStringConstant(module, "SOURCE_DIGEST", SOURCE_DIGEST)) return -1;
  State *state = state_of(module);
  state->is_neg = PyUnicode_InternFromString("is_neg");
  state->is_conj = PyUnicode_InternFromString("is_conj");
  state->requires_grad = PyUnicode_InternFromString("requires_grad");
  return state->is_neg && state->is_conj && state->requires_grad ? 0 : -1;
}

static int clear(PyObject *module) {
  State *state = state_of(module);
  if (state != NULL) {
    Py_CLEAR(state->is_neg);
    Py_CLEAR(state->is_conj);
    Py_CLEAR(state->requires_grad);
  }
  return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_trip", "Keys and launches in C; see trip.c.", sizeof(State), methods, slots, NULL, clear, NULL};

PyMODINIT_FUNC PyInit__trip(void) { return PyModuleDef_Init(&definition); }
