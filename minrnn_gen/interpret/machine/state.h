// State of a launch: fibers, warps, blocks and clusters, and the operations in flight. One launch at a time.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>
#include "cuda_on_host.h"
#include "memory.h"

namespace minrnn_host {
constexpr std::size_t STACK_BYTES = 1 << 18;

// A suspended context. The compiler's own jumps cost a fraction of the library's, which look for what to clean up.
struct Context { void* registers[5]; };
#define MINRNN_SAVE_CONTEXT(CONTEXT) (!__builtin_setjmp((CONTEXT).registers))
[[noreturn]] static inline __attribute__((noinline)) void switch_to(Context& context) { __builtin_longjmp(context.registers, 1); }

struct Fiber;
struct Block;
struct Cluster;
struct WaitQueue { std::vector<Fiber*> fibers; };
struct Barrier : WaitQueue { int arrived = 0, phase = 0; bool any[2] = {}; };
// Barrier of some warps of a block, by its number; those that wait are those that arrived, each for `threads` of them.
struct NamedBarrier : WaitQueue { int threads = 0; };
constexpr int NAMED_BARRIERS = 16;
// What a thread did at a tick, and the code that did it; by no thread: id 0.
struct Event { uint32_t id = 0, tick = 0; uint64_t pc = 0; };
struct Mbarrier : WaitQueue {
    Event initialization, early_store;      // `early_store`: the first that came before the initialization
    bool is_initialized() const { return initialization.id; }
    int arrivals = 1, pending_arrivals = 1;         // of a phase; of the current one, still to come
    long long tx_count = 0;
    int phase = 0;
    std::shared_ptr<VectorClock> pending_clock;     // releases into the current phase, joined
    std::vector<SharedClock> joined_clocks;         // the clocks that `pending_clock` has already
    SharedClock phase_clock;                        // of the last phase that completed
};
// wgmma: the sums of a warp that are in flight, by the registers of its lanes; row by row, 16 of `columns`.
struct Accumulators { std::vector<float*> registers; int columns; std::vector<float> sums; unsigned batch; };
// One multiplication in flight: operands in registers as they were at its issue, others in shared memory.
struct Multiplication {
    std::vector<uint32_t> left;             // rows of 8 words; empty where `left_shared` has them
    const unsigned char *left_shared, *right_shared;
    int columns;
    char element;                           // the first letter of its type
    bool adds;                              // to the sums, rather than writing them
    unsigned batch;
    float* registers;                       // of the first lane, which name the accumulators
    bool is_done;
    uint64_t pc;
    SharedClock issued;                     // what happened before its issue
};
struct Warp {
    std::vector<Fiber*> lanes;              // as many as the block has
    int number = 0;
    SharedClock clock;                      // what happened before, for all its lanes
    const char* operation = nullptr;        // the collective that lanes wait in, and the code that executes it
    const void* operation_pc = nullptr;
    int arrived = 0, ended = 0;
    void* operands[LANES] = {};
    std::vector<Accumulators> accumulators;
    std::vector<Multiplication> multiplications;
    unsigned batch = 0, multiplied = 0;     // the batch that is open; multiplications so far
    bool is_fenced = false;                 // no register of a multiplication may have been written since the last fence
    int registers = 0;                      // of a thread, 0 as at the launch
    // The lanes that acquired a counter since a barrier last ordered them all: what a collective has announced to others, and what not.
    std::map<const void*, uint32_t> announced, acquired_by;
};
struct Block {
    unsigned number;
    unsigned rank;
    int fibers_left;
    Cluster* cluster;
    std::vector<unsigned char> memory;
    unsigned char* shared;
    std::unique_ptr<Region> region;
    std::vector<Warp> warps;
    Barrier barrier;
    const char* barrier_kind = nullptr;
    NamedBarrier named_barriers[NAMED_BARRIERS];
    std::map<void*, Mbarrier> mbarriers;
};
struct AsyncCopy { unsigned char* to; const unsigned char* from; int bytes; bool has_arrived; uint32_t pc; };
// Loads of a fiber since memory changed last: how many, and how often it repeated one of them. That one is the first, then the
// second, fourth, eighth ..., so that in a polling loop over any number of addresses it is in the end one of the loop's.
struct Polling {
    unsigned since = 0, loads = 0, repeats = 0;   // `since`: the change
    const void *address = nullptr, *pc = nullptr;
    bool is_spinning = false;
};
// One thread of the kernel.
struct Fiber {
    Context context;
    bool has_begun = false;
    unsigned char* stack;
    unsigned thread, clock_index;           // in the block; in the cluster's vector clocks
    uint32_t id;                            // in the grid, from 1 on
    uint32_t tick = 1;
    uint32_t fence_tick = 0;                // of its last fence of the asynchronous proxy
    bool acquires_unfenced = false;         // has acquired a counter since
    SharedClock acquired;                   // what happened before, beyond its warp's clock
    Block* block;
    Warp* warp;
    std::vector<std::vector<AsyncCopy>> copy_groups = std::vector<std::vector<AsyncCopy>>(1);    // the last one is not committed
    const char* waits_for = nullptr;        // while it waits
    const void* waits_pc = nullptr;
    Polling polling;
};
struct Cluster {
    unsigned first_block;
    int fibers_left;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Fiber>> fibers;
    Barrier barrier;
};
struct BufferedStore { unsigned char* to; unsigned char value[16]; int bytes; uint32_t by, tick; };      // `by` the thread of this id
// What a release publishes: the clocks of a fiber, and its own tick.
struct Released { SharedClock warp_clock, acquired; std::size_t clock_index; uint32_t tick; };
// A store into the shared memory of a block of the cluster (st.async).
struct RemoteStore { Block* block; unsigned char* to; void* mbarrier; unsigned char value[8]; int bytes; Fiber* by; uint64_t pc; Released released; };
// A copy from global memory into shared memory of the block (cp.async.bulk).
struct BulkCopy { Block* block; unsigned char* to; const unsigned char* from; unsigned bytes; void* mbarrier; Fiber* by; uint64_t pc; Released released; };
// Copies of a thread (cp.async), whose completion arrives on an mbarrier of its block.
struct AsyncArrival { Block* block; std::vector<AsyncCopy> copies; void* mbarrier; Fiber* by; uint64_t pc; Released released; };
// Releases to a counter in global memory by the threads of one cluster, joined, and the last of them.
struct Counter { SharedClock clock; Event last; };

static Context scheduler;
static Fiber* current;
static std::vector<Fiber*> runnable;
static std::vector<RemoteStore> remote_stores;
static std::vector<BulkCopy> bulk_copies;
static std::vector<AsyncArrival> async_arrivals;
static std::map<std::pair<const void*, unsigned>, Counter> counters;    // by address, and the first block of the cluster
static std::vector<BufferedStore> store_buffer;
static std::vector<std::unique_ptr<Cluster>> clusters;
static std::vector<unsigned char*> free_stacks;
static std::vector<std::unique_ptr<Region>> arrays;
static Region* last_array;
static unsigned block_threads, blocks_of_cluster, steps, memory_changes, accesses_left;
static std::size_t shared_size;
static uint64_t random_state;
static bool is_over, watches_arrays, prefers_recent;
static int late_warp;                       // of every block, -1 for none
static const Entry* kernel;
static long long words[1 << 10];          // the arguments: static, as kernels read them too
static unsigned char *code_begin, *code_end;

// xorshift64* (Vigna, 2016), the high bits.
static unsigned random_below(unsigned count) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return unsigned((random_state * 0x2545f4914f6cdd1dull >> 33) % count);
}
}  // namespace minrnn_host
