/* The handler of XLA's custom calls in C: calls that were published run here, without Python; all others go to its handler.

   c_handler.py says what each function is given, and puts program.h in its place. */
#include <pthread.h>

#include "program.h"
#include "xla/ffi/api/c_api.h"

/* A call on one device, -1 this processor, whose operands and results have slots; it stays as long as the process. */
typedef struct Call {
  int64_t digest, device;
  const Program *program;
  void *handle; /* of cuBLAS, where there are products */
  int64_t slots, operand_count, result_count, scratch_count, workspace_bytes, alignment;
  const int64_t *operand_slots, *result_slots, *scratch_slots, *scratch_offsets;
  const struct Call *next;
} Call;

#define BUCKETS 1024
#define ON_HOST 0
#define ON_DEVICE 1
/* Addresses of more than this many bytes are not on the stack. */
#define ROOM_ON_STACK 4096

static const Call *buckets[BUCKETS];
static XLA_FFI_Handler *python[2];
static int64_t served;
static int is_paused;
static pthread_mutex_t publishing = PTHREAD_MUTEX_INITIALIZER, multiplying = PTHREAD_MUTEX_INITIALIZER;

void set_python(int where, void *handler) { python[where] = (XLA_FFI_Handler *)handler; }

/* While it is paused, Python runs all calls. */
void set_paused(int paused) { __atomic_store_n(&is_paused, paused, __ATOMIC_RELAXED); }

int64_t served_count(void) { return __atomic_load_n(&served, __ATOMIC_RELAXED); }

static const Call **bucket_of(int64_t digest) { return &buckets[(uint64_t)digest % BUCKETS]; }

void publish(Call *call) {
  const Call **bucket = bucket_of(call->digest);
  pthread_mutex_lock(&publishing);
  call->next = *bucket;
  __atomic_store_n(bucket, call, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&publishing);
}

/* Calls that run meanwhile may still be run; none is freed. */
void withdraw_all(void) {
  pthread_mutex_lock(&publishing);
  for (int index = 0; index < BUCKETS; index++) __atomic_store_n(&buckets[index], NULL, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&publishing);
}

static const Call *find(int64_t digest, int64_t device) {
  const Call *call = __atomic_load_n(bucket_of(digest), __ATOMIC_ACQUIRE);
  while (call != NULL && (call->digest != digest || call->device != device)) call = call->next;
  return call;
}

/* Whether XLA did what it was asked for; of an error Python's handler, which asks again, says more. */
static int is_done(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  if (error == NULL) return 1;
  XLA_FFI_Error_Destroy_Args arguments = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  api->XLA_FFI_Error_Destroy(&arguments);
  return 0;
}

static int device_of(const XLA_FFI_CallFrame *frame, int64_t *device) {
  const XLA_FFI_Api *api = frame->api;
  if (api->struct_size < offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(void *)) return 0; /* of an older plugin */
  XLA_FFI_DeviceOrdinal_Get_Args arguments = {XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, NULL, frame->ctx, 0};
  if (!is_done(api, api->XLA_FFI_DeviceOrdinal_Get(&arguments))) return 0;
  *device = arguments.device_ordinal;
  return 1;
}

static int stream_of(const XLA_FFI_CallFrame *frame, void **stream) {
  XLA_FFI_Stream_Get_Args arguments = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, NULL, frame->ctx, NULL};
  if (!is_done(frame->api, frame->api->XLA_FFI_Stream_Get(&arguments))) return 0;
  *stream = arguments.stream;
  return 1;
}

static int64_t address_of(void *const *buffers, int64_t index) {
  return (int64_t)(uintptr_t)((const XLA_FFI_Buffer *)buffers[index])->data;
}

/* Put the buffers into their slots, and scratch into the workspace, the last result; 0 where a call does not look like this. */
static int fill(const Call *call, const XLA_FFI_CallFrame *frame, int64_t *addresses) {
  const int64_t arguments = frame->args.size, results = frame->rets.size, has_workspace = call->workspace_bytes > 0;
  if (call->program->slots > call->slots) return 0;
  if (arguments != call->operand_count || results != call->result_count + has_workspace) return 0;
  memset(addresses, 0, 8 * call->slots);
  for (int64_t index = 0; index < arguments; index++)
    addresses[call->operand_slots[index]] = address_of(frame->args.args, index);
  for (int64_t index = 0; index < call->result_count; index++)
    addresses[call->result_slots[index]] = address_of(frame->rets.rets, index);
  for (int64_t slot = 0; slot < call->slots; slot++)
    if (addresses[slot] % call->alignment) return 0;
  if (!has_workspace) return 1;
  const XLA_FFI_Buffer *workspace = frame->rets.rets[results - 1];
  if (workspace->dims[0] < call->workspace_bytes) return 0;
  for (int64_t index = 0; index < call->scratch_count; index++)
    addresses[call->scratch_slots[index]] = (int64_t)(uintptr_t)workspace->data + call->scratch_offsets[index];
  return 1;
}

/* Run a call that was published; 0 where Python has to. */
static int run(const XLA_FFI_CallFrame *frame, int where) {
  /* XLA may ask what a handler is, too. The type of an extension is called otherwise in each version. */
  const int asks = frame->extension_start != NULL && frame->extension_start->type == XLA_FFI_Extension_Metadata;
  if (asks || frame->stage != XLA_FFI_ExecutionStage_EXECUTE || frame->attrs.size < 1) return 0;
  if (__atomic_load_n(&is_paused, __ATOMIC_RELAXED)) return 0;
  /* The first attribute by name is the digest. */
  if (frame->attrs.types[0] != XLA_FFI_AttrType_SCALAR) return 0;
  const int64_t digest = *(const int64_t *)((const XLA_FFI_Scalar *)frame->attrs.attrs[0])->value;
  int64_t device = -1;
  void *stream = NULL;
  if (where == ON_DEVICE && !device_of(frame, &device)) return 0;
  const Call *call = find(digest, device);
  if (call == NULL || (where == ON_DEVICE && !stream_of(frame, &stream))) return 0;
  const size_t size = 8 * call->slots + room_of(call->program);
  int64_t on_stack[ROOM_ON_STACK / 8];
  int64_t *addresses = size <= sizeof on_stack ? on_stack : malloc(size);
  if (addresses == NULL) return 0;
  ptrdiff_t index = 0;
  int is_run = fill(call, frame, addresses);
  if (is_run) {
    if (call->handle != NULL) pthread_mutex_lock(&multiplying);
    is_run = !run_program(call->program, addresses, stream, call->handle, NULL, (char *)(addresses + call->slots), &index);
    if (call->handle != NULL) pthread_mutex_unlock(&multiplying);
  }
  if (addresses != on_stack) free(addresses);
  if (is_run) __atomic_add_fetch(&served, 1, __ATOMIC_RELAXED);
  return is_run;
}

/* A refused operation too is Python's: it does all of the call again, and says what is wrong. The driver refuses the first one
   of a thread without a context, which Python makes. */
XLA_FFI_Error *handle_on_host(XLA_FFI_CallFrame *frame) { return run(frame, ON_HOST) ? NULL : python[ON_HOST](frame); }

XLA_FFI_Error *handle_on_device(XLA_FFI_CallFrame *frame) { return run(frame, ON_DEVICE) ? NULL : python[ON_DEVICE](frame); }
