// Host time of a call of an exported kernel, and of the driver's own launch with the same arguments: the medians of rounds, in us.
#include "cell.c"

#include <time.h>

enum { ROUNDS = 41, CALLS = 200 };

static struct Configuration launched_how;
static struct Attribute launched_attribute;
static CUfunction launched_function;
static uint64_t launched_slots[SLOTS];
static int (*own_launch)(const struct Configuration *, CUfunction, void **, void **);

// Keep what is launched, and launch it.
static int kept_launch(const struct Configuration *how, CUfunction function, void **arguments, void **extra)
{
    launched_how = *how;
    launched_attribute = *how->attributes;
    launched_how.attributes = &launched_attribute;
    launched_function = function;
    for (int slot = 0; arguments[slot]; slot++)
        launched_slots[slot] = *(uint64_t *)arguments[slot];
    return own_launch(how, function, arguments, extra);
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int by_size(const void *left, const void *right)
{
    const double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

int main(void)
{
    int (*allocate)(uint64_t *, size_t), (*synchronize)(void);
    static double of_call[ROUNDS], of_launch[ROUNDS];
    uint64_t memory = 0;
    void *arguments[SLOTS + 1];
    cell *kernel;
    cell_call call;
    memset(&call, 0, sizeof call);
    if (cell_create(&kernel, 0)) {
        puts(cell_message());
        return 1;
    }
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    *(void **)&synchronize = dlsym(library, "cuCtxSynchronize");
    if (allocate(&memory, (size_t)64 << 20))
        return 1;
    // Of one sequence of one step, with all that is there in memory of its own: the GPU is never what is waited for.
    call.batch = call.time = 1;
    call.x = (cell_storage *)(uintptr_t)memory;
    call.y = (cell_storage *)(uintptr_t)(memory + ((uint64_t)16 << 20));
#ifdef HEAD_DIM
    call.R = (cell_storage *)(uintptr_t)(memory + ((uint64_t)32 << 20));
#endif
    void *const workspace = (void *)(uintptr_t)(memory + ((uint64_t)48 << 20));
    const int64_t bytes = cell_workspace_bytes(kernel, &call, CELL_FORWARD);
    own_launch = driver.cuLaunchKernelEx;
    driver.cuLaunchKernelEx = kept_launch;
    int code = cell_forward(kernel, &call, workspace, bytes, 0);
    driver.cuLaunchKernelEx = own_launch;
    for (int slot = 0; slot <= SLOTS; slot++)
        arguments[slot] = slot < SLOTS ? &launched_slots[slot] : 0;
    for (int round = 0; !code && round < ROUNDS; round++) {
        const double begin = now_us();
        for (int at = 0; !code && at < CALLS; at++)
            code = cell_forward(kernel, &call, workspace, bytes, 0);
        of_call[round] = (now_us() - begin) / CALLS;
        synchronize();
        const double middle = now_us();
        for (int at = 0; !code && at < CALLS; at++)
            code = own_launch(&launched_how, launched_function, arguments, 0);
        of_launch[round] = (now_us() - middle) / CALLS;
        synchronize();
    }
    qsort(of_call, ROUNDS, sizeof *of_call, by_size);
    qsort(of_launch, ROUNDS, sizeof *of_launch, by_size);
    printf("%.4f %.4f\n", of_call[ROUNDS / 2], of_launch[ROUNDS / 2]);
    return code;
}
