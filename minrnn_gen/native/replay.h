/* A recorded run on new arrays, from their allocation to the last launch; part of trip.c. */

/* Memory for a run: that of `addresses`, behind them the stream, and room for arguments. */
static int64_t *new_addresses(const Program *program, PyObject *list, void *stream) {
  Py_ssize_t slots = PyList_Size(list);
  if (slots < program->slots) {
    PyErr_SetString(PyExc_ValueError, "an operation is on an array that is not there");
    return NULL;
  }
  int64_t *addresses = malloc(8 * (slots + 1) + room_of(program));
  if (addresses == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  for (Py_ssize_t slot = 0; slot < slots; slot++) {
    addresses[slot] = PyLong_AsLongLong(PyList_GetItem(list, slot));
    if (addresses[slot] == -1 && PyErr_Occurred()) {
      free(addresses);
      return NULL;
    }
  }
  addresses[slots] = (int64_t)(uintptr_t)stream;
  return addresses;
}

/* Allocate an array by `allocate`(shape, strides, dtype, ...): 1, and its address; 0 where it is not aligned, -1 failed. */
static int allocate_array(const Exchange *exchange, PyObject *allocate, PyObject *allocation, PyObject **array, int64_t *address) {
  PyObject *arguments = PyTuple_GetSlice(allocation, 0, 3);
  *array = arguments == NULL ? NULL : PyObject_Call(allocate, arguments, NULL);
  Py_XDECREF(arguments);
  Tensor tensor;
  if (*array == NULL) return -1;
  if (exchange->tensor_from_object(*array, &tensor)) {
    Py_CLEAR(*array);
    return -1;
  }
  *address = (int64_t)((uintptr_t)tensor.data + tensor.offset_bytes);
  if (*address % ALIGNMENT_BYTES) Py_CLEAR(*array);
  return *array != NULL;
}

static int set_address(PyObject *list, Py_ssize_t slot, int64_t address) {
  PyObject *number = PyLong_FromLongLong(address);
  return number == NULL || PyList_SetItem(list, slot, number);
}

/* Give each array that a run allocates its memory; 1, or 0 where some is not aligned, -1 failed. `*piece` holds what is scratch. */
static int allocate_all(const Exchange *exchange, PyObject *allocate, PyObject *held, PyObject *shared, PyObject *scratch,
                        PyObject *arrays, PyObject *addresses, PyObject **piece) {
  int64_t address;
  for (Py_ssize_t index = 0; index < PyTuple_Size(held); index++) {
    Py_ssize_t slot;
    PyObject *allocation, *array;
    if (!PyArg_ParseTuple(PyTuple_GetItem(held, index), "nO!", &slot, &PyTuple_Type, &allocation)) return -1;
    int is_there = allocate_array(exchange, allocate, allocation, &array, &address);
    if (is_there != 1) return is_there;
    if (PyList_SetItem(arrays, slot, array) || set_address(addresses, slot, address)) return -1;
  }
  if (shared == Py_None) return 1;
  int is_there = allocate_array(exchange, allocate, shared, piece, &address);
  if (is_there != 1) return is_there;
  for (Py_ssize_t index = 0; index < PyTuple_Size(scratch); index++) {
    Py_ssize_t slot, offset;
    if (!PyArg_ParseTuple(PyTuple_GetItem(scratch, index), "nn", &slot, &offset)) return -1;
    if (set_address(addresses, slot, address + offset)) return -1;
  }
  return 1;
}

/* The handle of cuBLAS that a function returns, none without a function; 0 where it raises. */
static int get_handle(PyObject *handle_of, void **handle) {
  if (handle_of == Py_None) return 1;
  PyObject *number = PyObject_CallNoArgs(handle_of);
  *handle = number == NULL ? NULL : PyLong_AsVoidPtr(number);
  Py_XDECREF(number);
  return number != NULL && !PyErr_Occurred();
}

/* replay(program, interface, allocate, (arrays that stay, piece, scratch), arrays, addresses, stream, handle): allocate, run.
   `handle` is a function, which is not asked where a graph is launched, or None where nothing is multiplied.
   None; True where the same arrays were met before, for which `capture` may be asked; False where memory is not aligned, and
   nothing was run; (operation, its kind, status) where one is refused. `arrays` and `addresses` get what is allocated. */
static PyObject *replay(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *capsule, *interface, *allocate, *held, *shared, *scratch, *arrays, *list, *handle_of, *piece = NULL;
  unsigned long long stream_address;
  if (!PyArg_ParseTuple(arguments, "OOO(O!OO!)O!O!KO", &capsule, &interface, &allocate, &PyTuple_Type, &held, &shared, &PyTuple_Type,
                        &scratch, &PyList_Type, &arrays, &PyList_Type, &list, &stream_address, &handle_of))
    return NULL;
  Kept *kept = PyCapsule_GetPointer(capsule, PROGRAM_NAME);
  Exchange *exchange = PyCapsule_GetPointer(interface, EXCHANGE_NAME);
  if (kept == NULL || exchange == NULL) return NULL;
  void *stream = (void *)(uintptr_t)stream_address, *handle = NULL;
  PyObject *answer = NULL;
  int64_t *addresses = NULL;
  int is_there = allocate_all(exchange, allocate, held, shared, scratch, arrays, list, &piece);
  if (is_there == 0) answer = PyBool_FromLong(0);
  if (is_there == 1) addresses = new_addresses(&kept->program, list, stream);
  if (addresses != NULL) {
    /* Of arrays that are allocated here no other thread has a run at the same time. */
    int may_be = may_be_graph(kept) && (PyTuple_Size(held) || piece != NULL);
    Py_ssize_t slots = PyList_Size(list);
    uint64_t hash = may_be ? hash_of(addresses, slots + 1) : 0;
    Captured *captured = may_be ? find_captured(kept, addresses, slots + 1, hash) : NULL;
    int is_again = may_be && captured == NULL && is_met_again(kept, hash);
    if (captured != NULL) {
      captured->launching++;
      captured->last_use = ++uses_of_all;
    }
    ptrdiff_t refused = 0;
    int status = 0, is_launched = 0;
    if (captured != NULL) {
      Py_BEGIN_ALLOW_THREADS
      is_launched = !is_being_captured(stream) && !graph_functions.launch(captured->executable, stream);
      Py_END_ALLOW_THREADS
      captured->launching--;
      kept->launches += is_launched;
    }
    int has_handle = is_launched || get_handle(handle_of, &handle);
    if (!is_launched && has_handle) {
      Py_BEGIN_ALLOW_THREADS
      status = run_program(&kept->program, addresses, stream, handle, NULL, (char *)(addresses + slots + 1), &refused);
      Py_END_ALLOW_THREADS
    }
    if (!has_handle) answer = NULL;
    else if (status) answer = Py_BuildValue("(nii)", (Py_ssize_t)refused, (int)kept->program.operations[refused].kind, status);
    else if (is_again) answer = PyBool_FromLong(1);
    else answer = Py_NewRef(Py_None);
    free(addresses);
  }
  /* Only now, when everything is enqueued that works in it. */
  Py_XDECREF(piece);
  return answer;
}

/* capture(program, addresses, stream, handle, workspace): whether a run on these is a graph from now on; it is not run. */
static PyObject *capture(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *capsule, *list;
  unsigned long long stream_address, handle_address, workspace_address;
  if (!PyArg_ParseTuple(arguments, "OO!KKK", &capsule, &PyList_Type, &list, &stream_address, &handle_address, &workspace_address))
    return NULL;
  Kept *kept = PyCapsule_GetPointer(capsule, PROGRAM_NAME);
  if (kept == NULL) return NULL;
  void *stream = (void *)(uintptr_t)stream_address, *handle = (void *)(uintptr_t)handle_address;
  if (!may_be_graph(kept) || is_being_captured(stream)) Py_RETURN_FALSE;
  int64_t *addresses = new_addresses(&kept->program, list, stream);
  if (addresses == NULL) return NULL;
  Py_ssize_t slots = PyList_Size(list);
  Captured *captured = place_for_graph(kept);
  void *executable = captured == NULL ? NULL
                                      : capture_run(&kept->program, addresses, stream, handle, (void *)(uintptr_t)workspace_address,
                                                    (char *)(addresses + slots + 1));
  kept->captures++;
  if (executable == NULL) {
    kept->is_refused = captured != NULL;
    free(addresses);
    Py_RETURN_FALSE;
  }
  *captured = (Captured){hash_of(addresses, slots + 1), ++uses_of_all, addresses, executable, 0};
  graphs_of_all++;
  enlist(kept);
  Py_RETURN_TRUE;
}

/* graphs((functions of the driver)): from now on programs that are run again on the same arrays become graphs */
static PyObject *graphs(PyObject *Py_UNUSED(module), PyObject *arguments) {
  unsigned long long at[9];
  if (!PyArg_ParseTuple(arguments, "(KKKKKKKKK)", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &at[7], &at[8])) return NULL;
  uintptr_t functions[9];
  for (int index = 0; index < 9; index++) functions[index] = (uintptr_t)at[index];
  memcpy(&graph_functions, functions, sizeof graph_functions);
  Py_RETURN_NONE;
}
