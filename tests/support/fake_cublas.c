// A cuBLAS without a GPU: it writes down what it is asked for, a line each, into the file FAKE_DRIVER_LOG.
// With FAKE_DRIVER_KERNELS it multiplies, too.
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Handle {
    int number, mode;
    void *stream, *workspace;
    size_t workspace_bytes;
};

static int handles;

static void note(const char *line)
{
    FILE *const log = fopen(getenv("FAKE_DRIVER_LOG"), "a");
    fprintf(log, "%s\n", line);
    fclose(log);
}

int cublasCreate_v2(struct Handle **handle)
{
    if (getenv("FAKE_CUBLAS_REFUSES"))
        return 3;
    *handle = calloc(1, sizeof **handle);
    (*handle)->number = handles++;
    note("handle");
    return 0;
}

int cublasDestroy_v2(struct Handle *handle)
{
    free(handle);
    note("handle_dropped");
    return 0;
}

// A new stream brings back the library's own workspace.
int cublasSetStream_v2(struct Handle *handle, void *stream)
{
    handle->stream = stream;
    handle->workspace = 0;
    return 0;
}

int cublasSetWorkspace_v2(struct Handle *handle, void *workspace, size_t bytes)
{
    sched_yield(); // so that another thread, if it has the same handle, comes between
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return 0;
}

int cublasSetMathMode(struct Handle *handle, int mode)
{
    handle->mode = mode;
    return 0;
}

// Numbers by their cudaDataType: 0 float, 1 double, 2 half, 14 bfloat16.
static double number_at(const void *array, int type, int64_t at)
{
    if (type == 0)
        return ((const float *)array)[at];
    if (type == 1)
        return ((const double *)array)[at];
    const uint32_t bits = ((const uint16_t *)array)[at];
    if (type == 14) {
        const uint32_t wide = bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 0x3ff, size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static void store_at(void *array, int type, int64_t at, double value)
{
    if (type == 0) {
        ((float *)array)[at] = (float)value;
    } else if (type == 1) {
        ((double *)array)[at] = value;
    } else if (type == 14) {
        const float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        ((uint16_t *)array)[at] = value == value ? (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) : 0x7fff;
    } else {
        int exponent = 0;
        frexp(value, &exponent);
        exponent = exponent < -13 ? -13 : exponent;
        const double units = nearbyint(ldexp(fabs(value), 11 - exponent)); // of the last place
        const uint32_t size = value != value ? 0x7e00 : exponent > 16 ? 0x7c00 : (uint32_t)(exponent + 13) * 1024u + (uint32_t)units;
        ((uint16_t *)array)[at] = (uint16_t)((signbit(value) ? 0x8000u : 0u) | (value == 0 ? 0 : size));
    }
}

int cublasGemmStridedBatchedEx(struct Handle *handle, int left_op, int right_op, int m, int n, int k, const void *alpha, const void *A,
                               int A_type, int A_row, long long A_stride, const void *B, int B_type, int B_row, long long B_stride,
                               const void *beta, void *C, int C_type, int C_row, long long C_stride, int batch, int compute, int algorithm)
{
    const int is_double = compute == 70;
    const double scale = is_double ? *(const double *)alpha : *(const float *)alpha, kept = is_double ? *(const double *)beta : *(const float *)beta;
    char line[512];
    snprintf(line, sizeof line, "product %llu %llu %zu %d %d %d %d %d %d %d %llu %d %d %lld %llu %d %d %lld %d %llu %d %d %lld %d %d %d",
             (unsigned long long)(uintptr_t)handle->stream, (unsigned long long)(uintptr_t)handle->workspace, handle->workspace_bytes,
             handle->mode, left_op, right_op, m, n, k, (int)scale, (unsigned long long)(uintptr_t)A, A_type, A_row, A_stride,
             (unsigned long long)(uintptr_t)B, B_type, B_row, B_stride, (int)kept, (unsigned long long)(uintptr_t)C, C_type, C_row, C_stride,
             batch, compute, algorithm);
    note(line);
    for (int at = 0; getenv("FAKE_DRIVER_KERNELS") && at < batch; at++)
        for (int column = 0; column < n; column++)
            for (int row = 0; row < m; row++) {
                const int64_t place = at * C_stride + (int64_t)column * C_row + row;
                double sum = kept ? kept * number_at(C, C_type, place) : 0;
                for (int depth = 0; depth < k; depth++)
                    sum += number_at(A, A_type, at * A_stride + (left_op ? (int64_t)row * A_row + depth : (int64_t)depth * A_row + row)) *
                           number_at(B, B_type, at * B_stride + (right_op ? (int64_t)depth * B_row + column : (int64_t)column * B_row + depth));
                store_at(C, C_type, place, sum);
            }
    return 0;
}
