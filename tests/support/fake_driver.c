// A driver without a GPU: it writes down what it is asked for, a line each, into the file FAKE_DRIVER_LOG.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Function {
    long module;
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
    *module = (void *)(uintptr_t)++modules;
    snprintf(line, sizeof line, "module %llu", (unsigned long long)hash);
    note(line);
    return 0;
}

int cuModuleUnload(void *module)
{
    (void)module;
    note("unloaded");
    return 0;
}

int cuModuleGetFunction(struct Function **function, void *module, const char *name)
{
    *function = calloc(1, sizeof **function);
    (*function)->module = (long)(uintptr_t)module - 1;
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    return 0;
}

int cuFuncSetAttribute(struct Function *function, int attribute, int value)
{
    char line[64];
    snprintf(line, sizeof line, "attribute %ld %d %d", function->module, attribute, value);
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
    return 0;
}

int cuLaunchKernelEx(const struct Configuration *how, struct Function *function, void **arguments, void **extra)
{
    char line[4096];
    int used, is_cooperative = 0;
    if (extra || !current || number_of("FAKE_DRIVER_REFUSES", 0))
        return 700;
    for (unsigned at = 0; at < how->attribute_count; at++)
        is_cooperative |= how->attributes[at].id == 2 && how->attributes[at].value;
    used = snprintf(line, sizeof line, "launch %ld %s %u %u %u %u %u %u %u %llu %d", function->module, function->name, how->blocks[0],
                    how->blocks[1], how->blocks[2], how->threads[0], how->threads[1], how->threads[2], how->shared_bytes,
                    (unsigned long long)(uintptr_t)how->stream, is_cooperative);
    for (; *arguments; arguments++) { // a null ends them here, though not for the driver
        uint64_t slot;
        memcpy(&slot, *arguments, 8);
        used += snprintf(line + used, sizeof line - (size_t)used, " %llu", (unsigned long long)slot);
    }
    note(line);
    return 0;
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
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    *address = (uint64_t)(uintptr_t)malloc(bytes);
    return 0;
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
