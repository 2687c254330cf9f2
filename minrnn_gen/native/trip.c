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
#include "program.h"

#include "graphs.h"

#define PROGRAM_NAME "minrnn_gen.native.program"
#include "replay.h"
#define SLOTS_MOST (PY_SSIZE_T_MAX / 16) /* addresses of 8 bytes, and as many bytes of arguments */

static void free_program(Program *program) {
  Kept *kept = (Kept *)program;
  for (int index = 0; index < GRAPHS_MOST; index++) free_captured(&kept->captured[index]);
  leave_list(kept);
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
  if (place.slot < 0 || place.slot >= SLOTS_MOST) {
    PyErr_Format(PyExc_ValueError, "a slot is %zd; allowed: 0 to %zd", (Py_ssize_t)place.slot, (Py_ssize_t)SLOTS_MOST - 1);
    return 0;
  }
  if (place.slot >= program->slots) program->slots = place.slot + 1;
  return 1;
}

/* The arguments of a launch or of a kernel, and which of them are addresses. */
static int read_arguments(Program *program, Operation *operation, const char *arguments, Py_ssize_t size, PyObject *patches) {
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
  return read_arguments(program, operation, arguments, size, patches);
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

static int read_kernel(Program *program, Operation *operation, PyObject *item) {
  const char *arguments;
  Py_ssize_t size, position;
  PyObject *kind, *patches;
  if (!PyArg_ParseTuple(item, "OKy#O!nK", &kind, &operation->function, &arguments, &size, &PyTuple_Type, &patches, &position,
                        &operation->size_bytes))
    return 0;
  if (position < 0 || position >= size / 8) {
    PyErr_SetString(PyExc_ValueError, "a workspace is no argument");
    return 0;
  }
  operation->workspace_position = position;
  return read_arguments(program, operation, arguments, size, patches);
}

/* program((launch, set bytes, copy, set stream, set workspace, set mode, multiply), operations): addresses of functions, and tuples
   that begin with a kind */
static PyObject *new_program(PyObject *Py_UNUSED(module), PyObject *arguments) {
  unsigned long long launch, set_bytes, copy, set_stream, set_workspace, set_mode, multiply;
  PyObject *items;
  if (!PyArg_ParseTuple(arguments, "(KKKKKKK)O!", &launch, &set_bytes, &copy, &set_stream, &set_workspace, &set_mode, &multiply,
                        &PyTuple_Type, &items))
    return NULL;
  Kept *kept = calloc(1, sizeof(Kept));
  if (kept == NULL) return PyErr_NoMemory();
  Program *program = &kept->program;
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
    free(kept);
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
    else if (kind == KERNEL) is_read = read_kernel(program, operation, item);
    else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an operation is of no known kind");
    if (!is_read) goto failed;
  }
  PyObject *capsule = PyCapsule_New(program, PROGRAM_NAME, end_program);
  if (capsule != NULL) return capsule;
failed:
  free_program(program);
  return NULL;
}

/* run(program, addresses, stream, handle of cuBLAS, first operation): None, or (operation, its kind, status) where one is refused */
static PyObject *run(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *capsule, *list;
  unsigned long long stream_address, handle_address;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(arguments, "OO!KKn", &capsule, &PyList_Type, &list, &stream_address, &handle_address, &index)) return NULL;
  Program *program = PyCapsule_GetPointer(capsule, PROGRAM_NAME);
  if (program == NULL) return NULL;
  if (index < 0) {
    PyErr_SetString(PyExc_ValueError, "the first operation is none of the program");
    return NULL;
  }
  void *stream = (void *)(uintptr_t)stream_address, *handle = (void *)(uintptr_t)handle_address;
  int64_t *addresses = new_addresses(program, list, stream);
  if (addresses == NULL) return NULL;
  ptrdiff_t refused = index;
  int status;
  Py_BEGIN_ALLOW_THREADS
  status = run_program(program, addresses, stream, handle, NULL, (char *)(addresses + PyList_Size(list) + 1), &refused);
  Py_END_ALLOW_THREADS
  free(addresses);
  if (!status) Py_RETURN_NONE;
  return Py_BuildValue("(nii)", (Py_ssize_t)refused, (int)program->operations[refused].kind, status);
}

/* serves(exchange): whether this file knows the interface of a library's tensors */
static PyObject *serves(PyObject *Py_UNUSED(module), PyObject *capsule) {
  Exchange *exchange = PyCapsule_GetPointer(capsule, EXCHANGE_NAME);
  if (exchange == NULL) return NULL;
  return PyBool_FromLong(exchange->version.major == 1 && exchange->tensor_from_object != NULL);
}

/* A function that a library is given once, and what it calls: a handler that may be there later, or another one by then. */
typedef void *(*Forwarded)(void *);
static Forwarded targets[2];
static void *forward_first(void *argument) { return __atomic_load_n(&targets[0], __ATOMIC_ACQUIRE)(argument); }
static void *forward_second(void *argument) { return __atomic_load_n(&targets[1], __ATOMIC_ACQUIRE)(argument); }

/* forward(which of the two functions, address of a function): its own address; from now on it calls that function */
static PyObject *forward(PyObject *Py_UNUSED(module), PyObject *arguments) {
  int which;
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "iK", &which, &address)) return NULL;
  if (which < 0 || which > 1 || !address) {
    PyErr_SetString(PyExc_ValueError, "there are two functions, 0 and 1, and what they call is a function");
    return NULL;
  }
  __atomic_store_n(&targets[which], (Forwarded)(uintptr_t)address, __ATOMIC_RELEASE);
  return PyLong_FromUnsignedLongLong((uintptr_t)(which ? forward_second : forward_first));
}

static PyMethodDef methods[] = {
    {"serves", serves, METH_O, "Say whether tensors can be read through an interface of DLPack."},
    {"describe", describe, METH_VARARGS, "Return the key of tensors, as bytes, and their addresses; None where there is none."},
    {"program", new_program, METH_VARARGS, "Return launches, products and fills to be run on arrays at any addresses."},
    {"run", run, METH_VARARGS, "Run a program; return None, or (operation, kind, status) where one is refused."},
    {"replay", replay, METH_VARARGS, "Allocate the arrays of a run, and run a program; see trip.c for what is returned."},
    {"capture", capture, METH_VARARGS, "Make a run on arrays at the same addresses a CUDA graph; say whether it is one."},
    {"graphs", graphs, METH_VARARGS, "Take the functions of the driver that capture and launch graphs."},
    {"forward", forward, METH_VARARGS, "Have one of two functions call the function at an address; return its own address."},
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
