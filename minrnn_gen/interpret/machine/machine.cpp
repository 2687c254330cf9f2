// CUDA's execution model on the host: every thread of a kernel is a fiber, and one of them runs at a time. Who runs next, and
// when a copy, a store or a message arrives, is drawn anew for every seed, so that an order that the text does not enforce is
// not kept. What goes wrong is a finding, with the place in the code, the block, the thread and the step at which it happened.
#include <dlfcn.h>
#include <link.h>

#define MINRNN_IS_BFLOAT16 false
#include "launches.h"

extern "C" const minrnn_host::Entry minrnn_entries[];

using namespace minrnn_host;
static void find_code() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&find_code), &info);
    code_begin = code_end = static_cast<unsigned char*>(info.dli_fbase);
    dl_iterate_phdr([](dl_phdr_info* library, std::size_t, void*) {
        if (reinterpret_cast<unsigned char*>(library->dlpi_addr) != code_begin) return 0;
        for (int n = 0; n < library->dlpi_phnum; ++n) {
            const auto& part = library->dlpi_phdr[n];
            if (part.p_type == PT_LOAD) code_end = std::max(code_end, code_begin + part.p_vaddr + part.p_memsz);
        }
        return 1;
    }, nullptr);
}

// ---- what Python calls ----------------------------------------------------------------------------------------------------------
extern "C" {
void minrnn_forget_arrays() { arrays.clear(); last_array = nullptr; }
void minrnn_add_array(const char* name, void* begin, unsigned long long bytes, int is_given) {
    auto array = std::make_unique<Region>(name, begin, bytes, is_given, false);
    auto after = std::upper_bound(arrays.begin(), arrays.end(), array, [](const auto& one, const auto& other) { return one->begin < other->begin; });
    arrays.insert(after, std::move(array));
}
int minrnn_arguments(const char* name) {
    for (const Entry* one = minrnn_entries; one->name; ++one) if (!std::strcmp(one->name, name)) return one->arguments;
    return -1;
}
int minrnn_launch(const char* name, unsigned blocks, unsigned threads, unsigned cluster_blocks, int is_cooperative,
                  unsigned long long shared_bytes_wanted, const long long* given, unsigned long long seed) {
    for (kernel = minrnn_entries; std::strcmp(kernel->name, name);) ++kernel;
    std::copy_n(given, kernel->arguments, words);
    block_threads = threads;
    blocks_of_cluster = cluster_blocks;
    shared_size = shared_bytes_wanted;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    random_state = seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    steps = changes = 0;
    events_left = 1 + below(EVENTS_AT_ONCE_MOST);
    is_over = false;
    stays_near = below(2);
    is_observed = !arrays.empty();
    findings.clear();
    suspicions = 0;
    if (!code_begin) find_code();
    run_grid(blocks, is_cooperative);
    for (const auto& cluster : clusters) {
        for (const auto& fiber : cluster->fibers) if (std::find(free_stacks.begin(), free_stacks.end(), fiber->stack) == free_stacks.end()) free_stacks.push_back(fiber->stack);
    }
    clusters.clear();
    runnable.clear();
    messages.clear();
    stores.clear();
    return int(findings.size());
}
const Finding* minrnn_finding(int which) { return &findings[std::size_t(which)]; }
unsigned minrnn_steps() { return steps; }

// ---- what the compiler announces --------------------------------------------------------------------------------------------------
#define ANNOUNCED(BYTES)                                                                                                    \
    void __tsan_read##BYTES(void* at) { access(at, BYTES, BYTES, READ, CALLER); }                                         \
    void __tsan_write##BYTES(void* at) { access(at, BYTES, BYTES, WRITE, CALLER); }                                       \
    void __tsan_volatile_read##BYTES(void* at) { access(at, BYTES, BYTES, READ, CALLER); }                                \
    void __tsan_volatile_write##BYTES(void* at) { access(at, BYTES, BYTES, WRITE, CALLER); }                              \
    void __tsan_unaligned_read##BYTES(void* at) { access(at, BYTES, 1, READ, CALLER); }                                   \
    void __tsan_unaligned_write##BYTES(void* at) { access(at, BYTES, 1, WRITE, CALLER); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
void __tsan_read_range(void* at, unsigned long bytes) { access(at, bytes, 1, READ, CALLER); }
void __tsan_write_range(void* at, unsigned long bytes) { access(at, bytes, 1, WRITE, CALLER); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// -fsanitize=bounds: a place outside an array of fixed size, which mostly is one of registers.
struct Bounded { struct { const char* file; unsigned line, column; } at; const void *array, *index; };
void __ubsan_handle_out_of_bounds(Bounded* what, unsigned long index) {
    found("out of bounds", place_in_code(CALLER), 0, current, "asks for element %ld of an array that has fewer (line %u)", long(index), what->at.line);
    abandon();
}
void __ubsan_handle_out_of_bounds_abort(Bounded* what, unsigned long index) { __ubsan_handle_out_of_bounds(what, index); }
}
