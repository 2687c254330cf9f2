/* Host time of an exported kernel's launch beside that of the driver's own call with the same arguments, in ns, as JSON. */
#include "rnn_cell.c" /* for the driver that it opens */

#include <time.h>

enum { BATCH = 4, TIME = 16, THREADS_MOST = 64, LAUNCHES = 200, ROUNDS = 60 };

/* Memory and streams, which the exported code leaves to its caller. */
static struct {
    int (*allocate)(uint64_t *, size_t);
    int (*to_device)(uint64_t, const void *, size_t);
    int (*to_host)(void *, uint64_t, size_t);
    int (*create_stream)(void **, unsigned);
    int (*wait)(void *);
} cuda;

struct Captured {
    struct Configuration configuration;
    struct Attribute attribute;
    CUfunction function;
    uint64_t slots[SLOTS];
    void *arguments[SLOTS + 1];
};

struct Thread {
    pthread_t id;
    void *stream, *workspace;
    int64_t bytes;
    rnn_cell_call call;
    struct Captured captured;
    double ours_ns[ROUNDS], drivers_ns[ROUNDS];
};

static rnn_cell *kernel;
static struct Thread threads[THREADS_MOST];
static pthread_barrier_t together;
static struct Captured *capturing;
static int (*drivers_launch)(const struct Configuration *, CUfunction, void **, void **);

static void demand(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s fails with %d: %s\n", what, error, rnn_cell_message());
        exit(1);
    }
}

static uint64_t on_device(size_t elements)
{
    uint16_t *const values = malloc(2 * elements);
    uint64_t address = 0;
    for (size_t at = 0; at < elements; at++) /* numbers near 0.01, in bf16 and in fp32 */
        values[at] = (uint16_t)(0x3c00 | (at * 40503u >> 7 & 0xff));
    demand(cuda.allocate(&address, 2 * elements), "memory");
    demand(cuda.to_device(address, values, 2 * elements), "a copy");
    free(values);
    return address;
}

static int capture(const struct Configuration *configuration, CUfunction function, void **arguments, void **extra)
{
    capturing->configuration = *configuration;
    capturing->function = function;
    capturing->attribute = *configuration->attributes;
    capturing->configuration.attributes = &capturing->attribute;
    for (int slot = 0; arguments[slot]; slot++) {
        capturing->slots[slot] = *(uint64_t *)arguments[slot];
        capturing->arguments[slot] = &capturing->slots[slot];
    }
    return drivers_launch(configuration, function, arguments, extra);
}

static double now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}

static double ours(struct Thread *thread)
{
    const double start = now_ns();
    for (int at = 0; at < LAUNCHES; at++)
        demand(rnn_cell_forward(kernel, &thread->call, thread->workspace, thread->bytes, thread->stream), "a launch");
    return (now_ns() - start) / LAUNCHES;
}

static double drivers(struct Thread *thread)
{
    struct Captured *const own = &thread->captured;
    const double start = now_ns();
    for (int at = 0; at < LAUNCHES; at++)
        demand(drivers_launch(&own->configuration, own->function, own->arguments, 0), "the driver's launch");
    return (now_ns() - start) / LAUNCHES;
}

static void *measure(void *argument)
{
    struct Thread *const thread = argument;
    driver.cuCtxSetCurrent(kernel->context);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pthread_barrier_wait(&together);
        if (round % 2)
            thread->drivers_ns[round / 2] = drivers(thread);
        else
            thread->ours_ns[round / 2] = ours(thread);
        demand(cuda.wait(thread->stream), "a stream");
    }
    return 0;
}

static int by_value(const void *one, const void *other)
{
    const double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median(const double *first, int count, size_t stride)
{
    double *const sorted = malloc((size_t)count * ROUNDS * sizeof *sorted);
    for (int thread = 0; thread < count; thread++)
        for (int round = 0; round < ROUNDS; round++)
            sorted[thread * ROUNDS + round] = *(const double *)((const char *)(first + round) + (size_t)thread * stride);
    qsort(sorted, (size_t)count * ROUNDS, sizeof *sorted, by_value);
    const double middle = sorted[count * ROUNDS / 2];
    free(sorted);
    return middle;
}

int main(int argument_count, char **arguments)
{
    const int count = argument_count > 1 ? atoi(arguments[1]) : 1;
    const size_t outputs = (size_t)BATCH * TIME * OUTPUTS * sizeof(rnn_cell_storage);
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    demand(count < 1 || count > THREADS_MOST || !library, "the number of threads or the driver");
    *(void **)&cuda.allocate = dlsym(library, "cuMemAlloc_v2");
    *(void **)&cuda.to_device = dlsym(library, "cuMemcpyHtoD_v2");
    *(void **)&cuda.to_host = dlsym(library, "cuMemcpyDtoH_v2");
    *(void **)&cuda.create_stream = dlsym(library, "cuStreamCreate");
    *(void **)&cuda.wait = dlsym(library, "cuStreamSynchronize");
    demand(rnn_cell_create(&kernel, 0), "create");
    const uint64_t x = on_device((size_t)BATCH * TIME * DIRECTIONS * GATES * HIDDEN * sizeof(rnn_cell_storage) / 2);
    drivers_launch = driver.cuLaunchKernelEx;
    for (int number = 0; number < count; number++) {
        struct Thread *const thread = &threads[number];
        thread->call.batch = BATCH;
        thread->call.time = TIME;
        thread->call.x = (const rnn_cell_storage *)(uintptr_t)x;
        thread->call.y = (rnn_cell_storage *)(uintptr_t)on_device(outputs / 2);
#ifdef RECURRENT_ROWS
        thread->call.R = (const rnn_cell_storage *)(uintptr_t)on_device((size_t)RECURRENT_ROWS * HEAD_DIM * sizeof(rnn_cell_storage) / 2);
#endif
        demand(cuda.create_stream(&thread->stream, 1), "a stream");
        thread->bytes = rnn_cell_workspace_bytes(kernel, &thread->call, RNN_CELL_FORWARD);
        thread->workspace = (void *)(uintptr_t)on_device((size_t)thread->bytes / 2 + 1);
        capturing = &thread->captured;
        driver.cuLaunchKernelEx = capture;
        ours(thread);
        demand(cuda.wait(thread->stream), "a first launch");
        driver.cuLaunchKernelEx = drivers_launch;
    }
    pthread_barrier_init(&together, 0, (unsigned)count);
    for (int number = 0; number < count; number++)
        pthread_create(&threads[number].id, 0, measure, &threads[number]);
    for (int number = 0; number < count; number++)
        pthread_join(threads[number].id, 0);
    void *const first = malloc(outputs), *const other = malloc(outputs);
    int equal = 1;
    demand(cuda.to_host(first, ADDRESS(threads[0].call.y), outputs), "a copy");
    for (int number = 1; number < count; number++) {
        demand(cuda.to_host(other, ADDRESS(threads[number].call.y), outputs), "a copy");
        equal = equal && !memcmp(first, other, outputs);
    }
    printf("{\"threads\": %d, \"ours_ns\": %.0f, \"drivers_ns\": %.0f, \"equal\": %d}\n", count,
           median(threads[0].ours_ns, count, sizeof *threads), median(threads[0].drivers_ns, count, sizeof *threads), equal);
    return 0;
}
