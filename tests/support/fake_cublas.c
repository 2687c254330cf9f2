// A cuBLAS without a GPU: it writes down what it is asked for, a line each, into the file FAKE_DRIVER_LOG.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return 0;
}

int cublasSetMathMode(struct Handle *handle, int mode)
{
    handle->mode = mode;
    return 0;
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
    return 0;
}
