// CUDA's execution model on a CPU: every thread of a kernel is a fiber, and one of them runs at a time. The seed decides which
// runs next, and when a copy, a relaxed store or a remote store arrives, so that an order that the text does not enforce does
// not hold. Each error is a finding, with the code, the block, the thread and the step at which it happened.
#include <dlfcn.h>
#include <link.h>

#define MINRNN_IS_BFLOAT16 false
#include "scheduler.h"

extern "C" const minrnn_host::Entry minrnn_entries[];

using namespace minrnn_host;
static void find_code() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&find_code), &info);
    code_begin = code_end = static_cast<unsigned char*>(info.dli_fbase);
    dl_iterate_phdr([](dl_phdr_info* library, std::size_t, void*) {
        if (reinterpret_cast<unsigned char*>(library->dlpi_addr) != code_begin) return 0;
        for (int n = 0; n < library->dlpi_phnum; ++n) {
            const auto& segment = library->dlpi_phdr[n];
            if (segment.p_type == PT_LOAD) code_end = std::max(code_end, code_begin + segment.p_vaddr + segment.p_memsz);
        }
        return 1;
    }, nullptr);
}

// ---- calls from Python ------------------------------------------------------------------------------------------------------
extern "C" {
void minrnn_forget_arrays() { arrays.clear(); last_array = nullptr; }
void minrnn_add_array(const char* name, void* begin, unsigned long long bytes, int is_initialized) {
    auto array = std::make_unique<Region>(name, begin, bytes, is_initialized, false);
    auto after = std::upper_bound(arrays.begin(), arrays.end(), array, [](const auto& left, const auto& right) { return left->begin < right->begin; });
    arrays.insert(after, std::move(array));
}
int minrnn_arguments(const char* name) {
    for (const Entry* entry = minrnn_entries; entry->name; ++entry) if (!std::strcmp(entry->name, name)) return entry->arguments;
    return -1;
}
int minrnn_launch(const char* name, unsigned blocks, unsigned threads, unsigned cluster_blocks, int is_cooperative,
                  unsigned long long shared_bytes_wanted, const long long* arguments, unsigned long long seed) {
    for (kernel = minrnn_entries; std::strcmp(kernel->name, name);) ++kernel;
    std::copy_n(arguments, kernel->arguments, words);
    block_threads = threads;
    blocks_of_cluster = cluster_blocks;
    shared_size = shared_bytes_wanted;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    random_state = seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    steps = memory_changes = 0;
    accesses_left = 1 + random_below(ACCESSES_AT_ONCE_MOST);
    is_over = false;
    prefers_recent = random_below(2);
    late_warp = int(seed >> LATE_WARP_BIT) - 1;
    watches_arrays = !arrays.empty();
    findings.clear();
    unconfirmed = 0;
    if (!code_begin) find_code();
    run_grid(blocks, is_cooperative);
    for (const auto& cluster : clusters) {
        for (const auto& fiber : cluster->fibers) if (std::find(free_stacks.begin(), free_stacks.end(), fiber->stack) == free_stacks.end()) free_stacks.push_back(fiber->stack);
    }
    clusters.clear();
    runnable.clear();
    remote_stores.clear();
    bulk_copies.clear();
    async_arrivals.clear();
    counters.clear();
    store_buffer.clear();
    return int(findings.size());
}
const Finding* minrnn_finding(int which) { return &findings[std::size_t(which)]; }
unsigned minrnn_steps() { return steps; }

// ---- calls that -fsanitize inserts -------------------------------------------------------------------------------------------
#define ACCESSES_OF(BYTES)                                                                                   \
    void __tsan_read##BYTES(void* address) { check_access(address, BYTES, BYTES, READ, CALLER); }            \
    void __tsan_write##BYTES(void* address) { check_access(address, BYTES, BYTES, WRITE, CALLER); }          \
    void __tsan_volatile_read##BYTES(void* address) { check_access(address, BYTES, BYTES, READ, CALLER); }   \
    void __tsan_volatile_write##BYTES(void* address) { check_access(address, BYTES, BYTES, WRITE, CALLER); } \
    void __tsan_unaligned_read##BYTES(void* address) { check_access(address, BYTES, 1, READ, CALLER); }      \
    void __tsan_unaligned_write##BYTES(void* address) { check_access(address, BYTES, 1, WRITE, CALLER); }
ACCESSES_OF(1) ACCESSES_OF(2) ACCESSES_OF(4) ACCESSES_OF(8) ACCESSES_OF(16)
void __tsan_read_range(void* address, unsigned long bytes) { check_access(address, bytes, 1, READ, CALLER); }
void __tsan_write_range(void* address, unsigned long bytes) { check_access(address, bytes, 1, WRITE, CALLER); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// -fsanitize=bounds: an element outside an array of fixed size, which mostly is one of registers.
struct OutOfBounds { struct { const char* file; unsigned line, column; } location; const void *array, *index; };
void __ubsan_handle_out_of_bounds(OutOfBounds* access, unsigned long index) {
    report("out of bounds", code_offset(CALLER), 0, current, "indexes element %ld outside of its array (line %u)", long(index), access->location.line);
    abort_launch();
}
void __ubsan_handle_out_of_bounds_abort(OutOfBounds* access, unsigned long index) { __ubsan_handle_out_of_bounds(access, index); }
}
