// Threads that call an exported kernel at once, each on a stream and in a workspace of its own.
#include "rnn_cell.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16, CALLS = 40 };

static rnn_cell *kernel;
static int refused[THREADS];

static void *call_often(void *number)
{
    const uintptr_t thread = (uintptr_t)number;
    rnn_cell_call call;
    memset(&call, 0, sizeof call);
    call.batch = 4;
    call.time = 16;
    call.x = (rnn_cell_storage *)((thread + 1) << 32);
    call.y = (rnn_cell_storage *)((thread + 1) << 36);
    call.weight = (rnn_cell_storage *)((thread + 1) << 40);
    const int64_t bytes = rnn_cell_workspace_bytes(kernel, &call, RNN_CELL_FORWARD);
    for (int at = 0; at < CALLS; at++)
        refused[thread] += rnn_cell_forward(kernel, &call, (void *)((thread + 1) << 44), bytes, (void *)(thread + 1)) != RNN_CELL_OK;
    return 0;
}

int main(void)
{
    pthread_t threads[THREADS];
    int refusals = 0;
    if (rnn_cell_create(&kernel, 0)) {
        puts(rnn_cell_message());
        return 1;
    }
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], 0, call_often, (void *)thread);
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], 0);
        refusals += refused[thread];
    }
    rnn_cell_destroy(kernel);
    return refusals;
}
