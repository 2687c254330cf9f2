/* The key of tensors and where they start, read through DLPack's exchange interface; part of trip.c. */
#define KEY_BYTES 4096
#define AXES_MOST 8
#define ALIGNMENT_BYTES 16 /* problem.WIDEST_COPY_BYTES */

/* dlpack.h, version 1. */
typedef struct {
  uint32_t major, minor;
} Version;
typedef struct {
  int32_t type, index;
} Device;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} Dtype;
typedef struct {
  void *data;
  Device device;
  int32_t axes;
  Dtype dtype;
  int64_t *shape, *strides;
  uint64_t offset_bytes;
} Tensor;
typedef struct {
  Version version;
  void *previous;
  void *allocate, *owning_from_object, *object_from_owning;
  int (*tensor_from_object)(void *, Tensor *);
  void *current_stream;
} Exchange;
#define EXCHANGE_NAME "dlpack_exchange_api"
#define COMPLEX 5

/* A true, false or failed answer of a method without arguments, or of an attribute. */
static int answer(PyObject *object, PyObject *name, int is_method) {
  PyObject *value = PyObject_GetAttr(object, name);
  if (value != NULL && is_method) {
    PyObject *result = PyObject_CallNoArgs(value);
    Py_DECREF(value);
    value = result;
  }
  if (value == NULL) return -1;
  int is_true = PyObject_IsTrue(value);
  Py_DECREF(value);
  return is_true;
}

typedef struct {
  PyObject *is_neg, *is_conj, *requires_grad;
} State;

static State *state_of(PyObject *module) { return PyModule_GetState(module); }

static size_t put(char *key, size_t at, const void *from, size_t size) {
  memcpy(key + at, from, size);
  return at + size;
}

/* describe(exchange, tensor type, parameter type, tensors, refuses those that record gradients) */
static PyObject *describe(PyObject *module, PyObject *arguments) {
  PyObject *capsule, *first_type, *second_type, *tensors;
  int refuses;
  if (!PyArg_ParseTuple(arguments, "OOOO!p", &capsule, &first_type, &second_type, &PyList_Type, &tensors, &refuses)) return NULL;
  Exchange *exchange = PyCapsule_GetPointer(capsule, EXCHANGE_NAME);
  if (exchange == NULL) return NULL;
  State *state = state_of(module);
  Py_ssize_t count = PyList_Size(tensors);
  PyObject *addresses = PyList_New(count);
  if (addresses == NULL) return NULL;
  char key[KEY_BYTES];
  size_t size = 0;
  for (Py_ssize_t slot = 0; slot < count; slot++) {
    PyObject *object = PyList_GetItem(tensors, slot);
    uint64_t address = 0;
    if (object == NULL) goto failed;
    if (object != Py_None) {
      PyObject *type = (PyObject *)Py_TYPE(object);
      if (type != first_type && type != second_type) goto without;
      int is_grad = refuses ? answer(object, state->requires_grad, 0) : 0;
      if (is_grad) goto without_or_failed;
      int is_neg = answer(object, state->is_neg, 1);
      if (is_neg) goto without_or_failed;
      Tensor tensor;
      if (exchange->tensor_from_object(object, &tensor)) goto without_or_failed;
      int is_conj = tensor.dtype.code == COMPLEX ? answer(object, state->is_conj, 1) : 0;
      if (is_conj) goto without_or_failed;
      if (tensor.axes > AXES_MOST) goto without;
      address = (uint64_t)(uintptr_t)tensor.data + tensor.offset_bytes;
      size_t axes_bytes = (size_t)tensor.axes * sizeof(int64_t);
      if (size + 16 + 2 * axes_bytes > KEY_BYTES || slot > 0xffff) goto without;
      int is_empty = 0;
      for (int32_t axis = 0; axis < tensor.axes; axis++) is_empty |= tensor.shape[axis] == 0;
      if (!address && !is_empty) goto without; /* zeros without memory */
      uint16_t head[4] = {(uint16_t)slot, (uint16_t)(address % ALIGNMENT_BYTES), (uint16_t)tensor.axes, (uint16_t)tensor.device.type};
      size = put(key, size, head, sizeof head);
      size = put(key, size, &tensor.device.index, sizeof tensor.device.index);
      size = put(key, size, &tensor.dtype, sizeof tensor.dtype);
      size = put(key, size, tensor.shape, axes_bytes);
      size = put(key, size, tensor.strides, axes_bytes);
    }
    PyObject *number = PyLong_FromUnsignedLongLong(address);
    if (number == NULL || PyList_SetItem(addresses, slot, number)) goto failed;
  }
  return Py_BuildValue("(y#N)", key, (Py_ssize_t)size, addresses);

without_or_failed:
  /* What has no memory of its own says so in one of these exceptions, as call/key.py has them. */
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError))
      goto failed;
    PyErr_Clear();
  }
without:
  Py_DECREF(addresses);
  Py_RETURN_NONE;
failed:
  Py_DECREF(addresses);
  return NULL;
}
