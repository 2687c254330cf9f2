/* A language model over bytes, served token by token: no Python, weights from a .safetensors file.

   cc -std=c99 -O2 -I DIR char_lm.c DIR/rnn_char_lm.c -o char_lm -lm -pthread
   ./char_lm weights.safetensors "prompt" 40

   Tensors in float32, V = 256 bytes: embedding [V, I]; weight_ih [3 H, I] and bias_ih [3 H]; weight_hh [3 H, H] and
   bias_hh [3 H]; head [V, H]. Gates in the order of the cell: reset, update, new, as torch.nn.GRU has them. */
#include "rnn_char_lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, H = RNN_CHAR_LM_HIDDEN_SIZE, I = RNN_CHAR_LM_INPUT_SIZE, ROWS = RNN_CHAR_LM_GATES * H };

struct file {
    unsigned char *content;
    size_t size, header;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* 8 bytes of length, a header in JSON, then the tensors. */
static struct file read_file(const char *path)
{
    struct file file = {0, 0, 0};
    FILE *const stream = fopen(path, "rb");
    long size;
    if (!stream || fseek(stream, 0, SEEK_END) || (size = ftell(stream)) < 8 || fseek(stream, 0, SEEK_SET))
        fail(path, "cannot be read");
    file.size = (size_t)size;
    file.content = malloc(file.size + 1);
    if (!file.content || fread(file.content, 1, file.size, stream) != file.size)
        fail(path, "cannot be read");
    file.content[file.size] = 0; /* where a number that is cut off ends */
    fclose(stream);
    for (int at = 7; at >= 0; at--)
        file.header = file.header << 8 | file.content[at];
    if (file.header > file.size - 8)
        fail(path, "is no safetensors file");
    return file;
}

/* A tensor by its name; the header's entries are "name":{"dtype":"F32","shape":[...],"data_offsets":[first,last]}. */
static const float *tensor(const struct file *file, const char *name, size_t count)
{
    static const char offsets[] = "\"data_offsets\":[";
    const size_t length = strlen(name), data = 8 + file->header;
    const char *const header = (const char *)file->content + 8, *const end = header + file->header;
    for (const char *at = header; at + length + 4 < end; at++) {
        if (at[0] != '"' || memcmp(at + 1, name, length) || memcmp(at + 1 + length, "\":{", 3))
            continue;
        const char *entry = at + 1 + length;
        int is_float = 0;
        for (; entry + sizeof offsets < end && *entry != '}'; entry++) {
            is_float |= !memcmp(entry, "\"F32\"", 5);
            if (memcmp(entry, offsets, sizeof offsets - 1))
                continue;
            char *behind;
            const unsigned long long first = strtoull(entry + sizeof offsets - 1, &behind, 10);
            const unsigned long long last = strtoull(behind + 1, 0, 10);
            if (!is_float || last < first || last - first != count * sizeof(float) || last > file->size - data)
                fail(name, "has another dtype or size than the model");
            float *const values = malloc(count * sizeof *values);
            if (!values)
                fail(name, "there is no memory for it");
            memcpy(values, file->content + data + first, count * sizeof *values);
            return values;
        }
    }
    fail(name, "is not in the file");
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 4)
        fail("usage", "char_lm WEIGHTS.safetensors PROMPT TOKENS");
    struct file file = read_file(arguments[1]);
    const float *const embedding = tensor(&file, "embedding", (size_t)BYTES * I);
    const float *const head = tensor(&file, "head", (size_t)BYTES * H);

    rnn_char_lm *kernel;
    float state[H] = {0}, y[H];
    rnn_char_lm_call call;
    memset(&call, 0, sizeof call);
    call.batch = 1;
    call.weight = tensor(&file, "weight_ih", (size_t)ROWS * I);
    call.bias = tensor(&file, "bias_ih", ROWS);
    call.R = tensor(&file, "weight_hh", (size_t)ROWS * H);
    call.recurrent_bias = tensor(&file, "bias_hh", ROWS);
    call.initial_h = call.final_h = state; /* a step advances the state in place */
    call.y = y;
    free(file.content);
    if (rnn_char_lm_create(&kernel, 1) != RNN_CHAR_LM_OK)
        fail("create", rnn_char_lm_message());
    const int64_t bytes = rnn_char_lm_workspace_bytes(kernel, &call, RNN_CHAR_LM_STEP);
    if (bytes < 0)
        fail("workspace", rnn_char_lm_message());
    void *const workspace = malloc((size_t)bytes);
    if (!workspace)
        fail("workspace", "there is no memory for it");

    const char *const prompt = arguments[2];
    const long read = (long)strlen(prompt), tokens = strtol(arguments[3], 0, 10);
    int token = 0;
    for (long at = 0; at < read + tokens; at++) {
        if (at < read)
            token = (unsigned char)prompt[at];
        else
            printf("%d\n", token);
        call.x = embedding + (size_t)token * I;
        if (rnn_char_lm_step(kernel, &call, workspace, bytes, 0) != RNN_CHAR_LM_OK)
            fail("step", rnn_char_lm_message());
        float best = 0;
        for (int candidate = 0; candidate < BYTES; candidate++) {
            float logit = 0;
            for (int unit = 0; unit < H; unit++)
                logit += head[candidate * H + unit] * y[unit];
            if (candidate == 0 || logit > best) {
                best = logit;
                token = candidate;
            }
        }
    }
    free(workspace);
    rnn_char_lm_destroy(kernel);
    return 0;
}
