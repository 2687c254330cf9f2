// A launch: clusters come and go, somebody runs or something arrives, until nobody is left or nobody goes on.
#pragma once
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include "clusters.h"
#include "copies.h"
#include "news.h"
#include "tensor_cores.h"

MinrnnIndex threadIdx, blockIdx, blockDim, gridDim;
// The reference of cuda_on_host.h, as it lies in memory.
extern "C++" { unsigned char* minrnn_shared_bytes_at asm("minrnn_shared_bytes"); }

namespace minrnn_host {
constexpr int POISON = 0xff;                // NaN, whatever the type
constexpr unsigned CLUSTERS_RESIDENT_MOST = 4, FIBERS_RESIDENT_MOST = 4096;     // of those that need not wait for each other
// Mostly one of the last that others woke: what a core's caches hold. In every other launch, anyone.
constexpr unsigned NEAR = 64, FAR_ONE_IN = 8;

static void run_fiber() {
    kernel->run(words);
    Fiber& fiber = *current;
    Block& block = *fiber.block;
    for (const auto& group : fiber.groups) {
        for (const Copy& copy : group) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            found("copy", copy.at, 0, current, "ends while a copy that it began is under way");
        }
    }
    free_stacks.push_back(fiber.stack);
    ++fiber.warp->ended;
    --block.fibers_left;
    --block.cluster->fibers_left;
    ++steps;
    jump(scheduler);
}
static unsigned char* new_stack() {
    constexpr int AT_ONCE = 64;
    if (free_stacks.empty()) {
        void* many = mmap(nullptr, AT_ONCE * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (many == MAP_FAILED) std::abort();
        for (int n = 0; n < AT_ONCE; ++n) free_stacks.push_back(static_cast<unsigned char*>(many) + n * STACK_BYTES);
    }
    unsigned char* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}
static void admit_cluster(unsigned first_block) {
    clusters.push_back(std::make_unique<Cluster>());
    Cluster& cluster = *clusters.back();
    cluster.first_block = first_block;
    cluster.fibers_left = int(blocks_of_cluster * block_threads);
    const auto nothing = std::make_shared<Ticks>(2 * blocks_of_cluster * block_threads);
    for (unsigned rank = 0; rank < blocks_of_cluster; ++rank) {
        constexpr std::size_t ALIGNMENT = 1024;
        cluster.blocks.push_back(std::make_unique<Block>());
        Block& block = *cluster.blocks.back();
        block.number = first_block + rank;
        block.rank = rank;
        block.fibers_left = int(block_threads);
        block.cluster = &cluster;
        block.memory.assign(shared_size + ALIGNMENT, POISON);
        block.shared = block.memory.data() + (ALIGNMENT - reinterpret_cast<std::uintptr_t>(block.memory.data()) % ALIGNMENT) % ALIGNMENT;
        block.region = std::make_unique<Region>("shared memory", block.shared, shared_size, false, true);
        block.warps.resize((block_threads + LANES - 1) / LANES);
        block.region->warps = int(block.warps.size());
        for (unsigned thread = 0; thread < block_threads; ++thread) {
            cluster.fibers.push_back(std::make_unique<Fiber>());
            Fiber& fiber = *cluster.fibers.back();
            fiber.thread = thread;
            fiber.place = rank * block_threads + thread;
            fiber.number = block.number * block_threads + thread + 1;
            fiber.block = &block;
            fiber.warp = &block.warps[thread / LANES];
            fiber.warp->number = int(thread / LANES);
            fiber.warp->clock = nothing;
            fiber.warp->lanes.push_back(&fiber);
            fiber.stack = new_stack();
            runnable.push_back(&fiber);
        }
    }
}
static void run_next() {
    const unsigned count = unsigned(runnable.size()), near = stays_near && below(FAR_ONE_IN) ? std::min(count, NEAR) : count;
    const std::size_t which = count - 1 - below(near);
    std::swap(runnable[which], runnable.back());
    current = runnable.back();
    runnable.pop_back();
    threadIdx.x = current->thread;
    blockIdx.x = current->block->number;
    minrnn_shared_bytes_at = current->block->shared;
    if (MINRNN_STAY(scheduler)) {
        if (current->has_begun) jump(current->here);
        current->has_begun = true;
        static ucontext_t first;
        getcontext(&first);
        first.uc_stack.ss_sp = current->stack;
        // Stacks that end at multiples of their size would share a few lines of every cache.
        constexpr unsigned COLOURS = 61, LINE_BYTES = 64;
        first.uc_stack.ss_size = STACK_BYTES - current->number % COLOURS * LINE_BYTES;
        first.uc_link = nullptr;
        makecontext(&first, run_fiber, 0);
        setcontext(&first);
    }
    current = nullptr;
}
static bool is_barrier(const std::string& awaited) { return awaited != MAILBOX && awaited != NEWS; }
// Who waits for what, where nobody goes on.
static void report_deadlock() {
    for (const auto& cluster : clusters) {
        // Barriers last: whoever is not there waits for something else.
        struct Last { bool operator()(const std::string& one, const std::string& other) const { return std::pair(is_barrier(one), one) < std::pair(is_barrier(other), other); } };
        std::map<std::string, std::pair<int, const Fiber*>, Last> waiting;
        int ended = 0;
        for (const auto& fiber : cluster->fibers) {
            if (!fiber->waits_for && !asks_in_vain(*fiber)) { ++ended; continue; }
            auto& its = waiting[fiber->waits_for ? fiber->waits_for : NEWS];
            ++its.first;
            if (!its.second) its.second = fiber.get();
        }
        for (const auto& [what, its] : waiting) {
            const auto& [count, first] = its;
            std::string others;
            for (const auto& [other, their] : waiting) if (other != what) others += ", " + std::to_string(their.first) + " for " + other;
            const bool is_parted = ended && is_barrier(what);
            const std::string place = what == NEWS ? " of " + whereabouts(first->asked.unit) : "";
            found(is_parted ? PARTED : "deadlock", place_in_code(first->waits_for ? first->waits_at : first->asked.at), 0, first,
                  "waits for %s%s in vain, as do %d threads of its %s; others wait%s; %d have ended", what.c_str(), place.c_str(), count,
                  blocks_of_cluster > 1 ? "cluster" : "block", others.empty() ? " for nothing else" : others.c_str() + 1, ended);
        }
    }
    is_over = true;
}
// Let go of clusters that are done; says whether there were any.
static bool dismiss_clusters() {
    if (!messages.empty()) return false;
    auto is_done = [](const auto& cluster) { return !cluster->fibers_left; };
    const auto left = std::remove_if(clusters.begin(), clusters.end(), is_done);
    const bool are_some = left != clusters.end();
    clusters.erase(left, clusters.end());
    return are_some;
}
static void run_grid(unsigned blocks, bool is_cooperative) {
    const unsigned most = std::min(CLUSTERS_RESIDENT_MOST, std::max(1u, FIBERS_RESIDENT_MOST / (blocks_of_cluster * block_threads)));
    const unsigned resident = is_cooperative ? blocks : (1 + below(most)) * blocks_of_cluster;
    unsigned admitted = 0, seen = 0;
    std::size_t turns = 0;                  // since anything changed
    while (!is_over) {
        while (admitted < blocks && clusters.size() * blocks_of_cluster < resident) {
            admit_cluster(admitted);
            admitted += blocks_of_cluster;
        }
        if (!messages.empty() && (runnable.empty() || !below(4))) deliver(!runnable.empty());
        else if (!stores.empty() && (runnable.empty() || !below(4))) arrive_in_memory(below(unsigned(stores.size())));
        else if (!runnable.empty()) run_next();
        else if (clusters.empty()) break;
        else report_deadlock();
        if (runnable.empty() | !(steps % 64)) dismiss_clusters();
        turns = seen == changes ? turns + 1 : 0;
        seen = changes;
        if (!runnable.empty() && stores.empty() && turns > ASKS_IN_VAIN * runnable.size()) {
            turns = 0;
            if (!std::all_of(runnable.begin(), runnable.end(), [](const Fiber* one) { return asks_in_vain(*one); })) continue;
            if (!messages.empty()) deliver(false);
            else if (!dismiss_clusters()) report_deadlock();
        }
    }
    while (!stores.empty()) arrive_in_memory(0);
}
}  // namespace minrnn_host
