// A driver without a GPU: it writes down what it is asked for, a line each, into the file FAKE_DRIVER_LOG.
// In the folder FAKE_DRIVER_KERNELS are kernels by the hash of their cubins, compiled for the host; with it they run.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Module {
    uint64_t hash;
    long number, cluster_blocks, floats[4];
    int float_count;
    void *library;
};

struct Function {
    struct Module *module;
    char name[64];
};

struct Attribute {
    int id, padding, value, rest[15];
};

struct Configuration {
    unsigned blocks[3], threads[3], shared_bytes;
    void *stream;
    struct Attribute *attributes;
    unsigned attribute_count;
};

static long modules, context;
static unsigned long long launches;
static void *current;

static void note(const char *line)
{
    FILE *const log = fopen(getenv("FAKE_DRIVER_LOG"), "a");
    fprintf(log, "%s\n", line);
    fclose(log);
}

static int number_of(const char *variable, int otherwise)
{
    return getenv(variable) ? atoi(getenv(variable)) : otherwise;
}

int cuInit(unsigned flags)
{
    return (int)flags;
}

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < 2 ? 0 : 101;
}

int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "%s", getenv("FAKE_DRIVER_NAME") ? getenv("FAKE_DRIVER_NAME") : "none");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const int capability = number_of("FAKE_DRIVER_CAPABILITY", 90);
    (void)device;
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 16 ? 132 : 0;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **made, int device)
{
    (void)device;
    *made = &context;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    note("released");
    return 0;
}

int cuCtxGetCurrent(void **found)
{
    *found = current;
    return 0;
}

int cuCtxSetCurrent(void *made)
{
    current = made;
    return 0;
}

// FNV-1a of a cubin, an ELF file: its headers say where it ends.
int cuModuleLoadData(void **module, const void *image)
{
    const unsigned char *const bytes = image;
    uint64_t segments, sections, hash = 14695981039346656037u;
    uint16_t sizes[4]; // of a segment's header, how many; of a section's header, how many
    char line[64];
    memcpy(&segments, bytes + 32, 8);
    memcpy(&sections, bytes + 40, 8);
    memcpy(sizes, bytes + 54, 8);
    segments += (uint64_t)sizes[0] * sizes[1];
    sections += (uint64_t)sizes[2] * sizes[3];
    for (uint64_t at = 0; at < (segments > sections ? segments : sections); at++)
        hash = (hash ^ bytes[at]) * 1099511628211u;
    struct Module *const loaded = *module = calloc(1, sizeof *loaded);
    loaded->hash = hash;
    loaded->number = modules++;
    snprintf(line, sizeof line, "module %llu", (unsigned long long)hash);
    note(line);
    return 0;
}

int cuModuleUnload(void *module)
{
    free(module);
    note("unloaded");
    return 0;
}

int cuModuleGetFunction(struct Function **function, struct Module *module, const char *name)
{
    *function = calloc(1, sizeof **function);
    (*function)->module = module;
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    return 0;
}

int cuFuncSetAttribute(struct Function *function, int attribute, int value)
{
    char line[64];
    snprintf(line, sizeof line, "attribute %ld %d %d", function->module->number, attribute, value);
    note(line);
    return 0;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct Function *function, int threads, size_t shared_bytes)
{
    (void)function, (void)threads, (void)shared_bytes;
    *blocks = number_of("FAKE_DRIVER_BLOCKS", 1);
    return 0;
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *stream)
{
    char line[128];
    snprintf(line, sizeof line, "memset %llu %d %zu %llu", (unsigned long long)address, value, bytes, (unsigned long long)(uintptr_t)stream);
    note(line);
    if (getenv("FAKE_DRIVER_KERNELS"))
        memset((void *)(uintptr_t)address, value, bytes);
    return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    char line[128];
    snprintf(line, sizeof line, "copied %llu %llu %zu %llu", (unsigned long long)to, (unsigned long long)from, bytes,
             (unsigned long long)(uintptr_t)stream);
    note(line);
    if (getenv("FAKE_DRIVER_KERNELS"))
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

// Open a module's kernels, and the numbers beside them: blocks of a cluster, and which arguments are float.
static int open_kernels(struct Module *module)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%llu.so", getenv("FAKE_DRIVER_KERNELS"), (unsigned long long)module->hash);
    module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    memcpy(path + strlen(path) - 2, "txt", 4);
    FILE *const numbers = fopen(path, "r");
    if (!module->library || !numbers || fscanf(numbers, "%ld", &module->cluster_blocks) != 1)
        return 1;
    while (fscanf(numbers, "%ld", &module->floats[module->float_count]) == 1)
        module->float_count++;
    fclose(numbers);
    return 0;
}

// Run a launch by the emulated machine, for which a number with a point is a double.
static int run(struct Function *function, const struct Configuration *how, int is_cooperative, const int64_t *slots)
{
    struct Module *const module = function->module;
    int64_t words[64];
    int (*launch)(const char *, unsigned, unsigned, unsigned, int, unsigned long long, const int64_t *, unsigned long long);
    if (!module->library && open_kernels(module))
        return 301;
    *(void **)&launch = dlsym(module->library, "minrnn_launch");
    memcpy(words, slots, sizeof words);
    for (int at = 0; at < module->float_count; at++) {
        float narrow;
        memcpy(&narrow, &slots[module->floats[at]], sizeof narrow);
        const double wide = narrow;
        memcpy(&words[module->floats[at]], &wide, sizeof wide);
    }
    return launch(function->name, how->blocks[0], how->threads[0], (unsigned)module->cluster_blocks, is_cooperative, how->shared_bytes, words, ++launches) ? 719 : 0;
}

int cuLaunchKernelEx(const struct Configuration *how, struct Function *function, void **arguments, void **extra)
{
    char line[4096];
    int used, is_cooperative = 0;
    if (extra || !current || number_of("FAKE_DRIVER_REFUSES", 0))
        return 700;
    for (unsigned at = 0; at < how->attribute_count; at++)
        is_cooperative |= how->attributes[at].id == 2 && how->attributes[at].value;
    used = snprintf(line, sizeof line, "launch %ld %s %u %u %u %u %u %u %u %llu %d", function->module->number, function->name, how->blocks[0],
                    how->blocks[1], how->blocks[2], how->threads[0], how->threads[1], how->threads[2], how->shared_bytes,
                    (unsigned long long)(uintptr_t)how->stream, is_cooperative);
    int64_t slots[64] = {0};
    for (int at = 0; arguments[at]; at++) { // a null ends them here, though not for the driver
        memcpy(&slots[at], arguments[at], 8);
        used += snprintf(line + used, sizeof line - (size_t)used, " %llu", (unsigned long long)slots[at]);
    }
    note(line);
    return getenv("FAKE_DRIVER_KERNELS") ? run(function, how, is_cooperative, slots) : 0;
}

struct Side {
    size_t byte_in_row, row;
    int kind;
    const void *on_host;
    uint64_t on_device;
    void *array;
    size_t row_bytes;
};

struct Copy {
    struct Side from, to;
    size_t width_bytes, height;
};

int cuMemcpy2DAsync_v2(const struct Copy *copy, void *stream)
{
    char line[256];
    if (copy->from.kind != 2 || copy->to.kind != 2)
        return 1;
    snprintf(line, sizeof line, "copy %llu %llu %zu %llu %zu %zu %zu", (unsigned long long)(uintptr_t)stream,
             (unsigned long long)copy->from.on_device, copy->from.row_bytes, (unsigned long long)copy->to.on_device, copy->to.row_bytes,
             copy->width_bytes, copy->height);
    note(line);
    for (size_t row = 0; getenv("FAKE_DRIVER_KERNELS") && row < copy->height; row++)
        memcpy((void *)(uintptr_t)(copy->to.on_device + row * copy->to.row_bytes),
               (const void *)(uintptr_t)(copy->from.on_device + row * copy->from.row_bytes), copy->width_bytes);
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    void *memory = 0;
    const int error = posix_memalign(&memory, 256, bytes);
    *address = (uint64_t)(uintptr_t)memory;
    return error;
}

int cuMemFree_v2(uint64_t address)
{
    free((void *)(uintptr_t)address);
    return 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return 0;
}
