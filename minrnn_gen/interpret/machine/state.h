// Who there is, and what is under way: fibers, warps, blocks and clusters, and all that a launch changes. One launch at a time.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>
#include "cuda_on_host.h"
#include "memory.h"

namespace minrnn_host {
constexpr std::size_t STACK_BYTES = 1 << 18;

// Where to go on. The compiler's own jumps are a fraction of the library's, which look for what there is to clean up.
struct Jump { void* registers[5]; };
#define MINRNN_STAY(HERE) (!__builtin_setjmp((HERE).registers))
[[noreturn]] static inline __attribute__((noinline)) void jump(Jump& to) { __builtin_longjmp(to.registers, 1); }

struct Fiber;
struct Block;
struct Cluster;
struct Waiting { std::vector<Fiber*> fibers; };
struct Barrier : Waiting { int arrived = 0, turn = 0; bool any[2] = {}; };
// What a fiber did at a tick, at a place in the code.
struct Deed { uint32_t number = 0, tick = 0; uint64_t at = 0; };
struct Mail : Waiting {
    Deed opened, sent_before;               // by nobody: 0
    bool is_open() const { return opened.number; }
    int arrivals_left = 1;
    long long bytes = 0;
    int turn = 0;
    std::shared_ptr<Ticks> telling;         // of the turn that is being filled, by whom it was told
    std::vector<Clock> heard;               // and those that are in it
    Clock told;                             // of the last turn that is full
};
struct Warp {
    std::vector<Fiber*> lanes;              // those that the block has
    int number = 0;
    Clock clock;                            // what all its lanes know
    const char* operation = nullptr;        // the one that lanes wait in, and where
    const void* operation_at = nullptr;
    int arrived = 0, ended = 0;
    void* given[LANES] = {};
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
    std::map<void*, Mail> mail;
};
struct Copy { unsigned char* to; const unsigned char* from; int bytes; bool has_arrived; uint32_t at; };
// The units of memory that a fiber loaded since anything changed: how many, and how often that one which came first, second,
// fourth, eighth ..., so that in a loop over whatever many it is one of the loop's at last.
struct Asked {
    unsigned since = 0, units = 0, again = 0;   // `since`: the change
    const void *unit = nullptr, *at = nullptr;
    bool is_in_vain = false;
};
struct Fiber {
    Jump here;
    bool has_begun = false;
    unsigned char* stack;
    unsigned thread, place;                 // in the block, in the cluster
    uint32_t number;                        // in the grid, from 1 on
    uint32_t tick = 1;
    Clock heard;                            // what it knows beside its warp
    Block* block;
    Warp* warp;
    std::vector<std::vector<Copy>> groups = std::vector<std::vector<Copy>>(1);    // the last one is open
    const char* waits_for = nullptr;        // while it waits
    const void* waits_at = nullptr;
    Asked asked;
};
struct Cluster {
    unsigned first_block;
    int fibers_left;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Fiber>> fibers;
    Barrier barrier;
};
struct Store { unsigned char* to; unsigned char unit[16]; int bytes; Fiber* by; };
// What a fiber did and knows at a tick.
struct Told { Clock by_warp, heard; std::size_t place; uint32_t tick; };
struct Message { Block* block; unsigned char* to; void* mailbox; unsigned char value[8]; int bytes; Fiber* by; uint64_t at; Told told; };

static Jump scheduler;
static Fiber* current;
static std::vector<Fiber*> runnable;
static std::vector<Message> messages;
static std::vector<Store> stores;
static std::vector<std::unique_ptr<Cluster>> clusters;
static std::vector<unsigned char*> free_stacks;
static std::vector<std::unique_ptr<Region>> arrays;
static Region* last_array;
static unsigned block_threads, blocks_of_cluster, steps, changes, events_left;     // `changes`: of memory
static std::size_t shared_size;
static uint64_t random_state;
static bool is_over, is_observed, stays_near;
static const Entry* kernel;
static long long words[1 << 10];          // of the library's own, as kernels read them too
static unsigned char *code_begin, *code_end;

// xorshift64* (Vigna, 2016), the high bits.
static unsigned below(unsigned count) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return unsigned((random_state * 0x2545f4914f6cdd1dull >> 33) % count);
}
}  // namespace minrnn_host
