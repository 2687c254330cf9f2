// Scheduler of a launch: clusters are admitted, fibers run and operations arrive in a random order, until all ended or none can.
#pragma once
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include "bulk_copies.h"
#include "clusters.h"
#include "cp_async.h"
#include "relaxed_memory.h"
#include "warpgroups.h"

MinrnnIndex threadIdx, blockIdx, blockDim, gridDim;
// The reference of cuda_on_host.h, as it lies in memory.
extern "C++" { unsigned char* minrnn_shared_bytes_at asm("minrnn_shared_bytes"); }

namespace minrnn_host {
constexpr int POISON = 0xff;                // NaN, whatever the type
constexpr unsigned CLUSTERS_RESIDENT_MOST = 4, FIBERS_RESIDENT_MOST = 4096;     // where blocks do not wait for each other
// In every other launch mostly one of the fibers that became runnable last: they are what a core's caches hold.
constexpr unsigned RECENT = 64, ANY_ONE_IN = 8;
// Upper bits of a seed are the number of a warp of each block that falls behind, from 1 on: one draw of so many has no regard to it.
constexpr unsigned LATE_WARP_BIT = 52, REGARDLESS_ONE_IN = 64;

static void run_fiber() {
    kernel->run(words);
    Fiber& fiber = *current;
    Block& block = *fiber.block;
    for (const auto& group : fiber.copy_groups) {
        for (const AsyncCopy& copy : group) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            report("copy", copy.pc, 0, current, "exits with a cp.async of its own in flight");
        }
    }
    free_stacks.push_back(fiber.stack);
    if (++fiber.warp->ended == int(fiber.warp->lanes.size())) check_multiplications(*fiber.warp);
    if (!--block.fibers_left) check_warpgroups(block);
    --block.cluster->fibers_left;
    ++steps;
    switch_to(scheduler);
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
    const auto zero = std::make_shared<VectorClock>(2 * blocks_of_cluster * block_threads);
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
            fiber.clock_index = rank * block_threads + thread;
            fiber.id = block.number * block_threads + thread + 1;
            fiber.block = &block;
            fiber.warp = &block.warps[thread / LANES];
            fiber.warp->number = int(thread / LANES);
            fiber.warp->clock = zero;
            fiber.warp->lanes.push_back(&fiber);
            fiber.stack = new_stack();
            runnable.push_back(&fiber);
        }
    }
}
static void run_next() {
    const unsigned count = unsigned(runnable.size()), among = prefers_recent && random_below(ANY_ONE_IN) ? std::min(count, RECENT) : count;
    std::size_t which = count - 1 - random_below(among);
    const bool has_regard = late_warp >= 0 && random_below(REGARDLESS_ONE_IN);
    for (unsigned n = 1; has_regard && n < count && runnable[which]->warp->number == late_warp; ++n) which = (which + 1) % count;
    std::swap(runnable[which], runnable.back());
    current = runnable.back();
    runnable.pop_back();
    threadIdx.x = current->thread;
    blockIdx.x = current->block->number;
    minrnn_shared_bytes_at = current->block->shared;
    if (MINRNN_SAVE_CONTEXT(scheduler)) {
        if (current->has_begun) switch_to(current->context);
        current->has_begun = true;
        static ucontext_t first;
        getcontext(&first);
        first.uc_stack.ss_sp = current->stack;
        // Stacks that end at multiples of their size would share a few lines of every cache.
        constexpr unsigned COLOURS = 61, LINE_BYTES = 64;
        first.uc_stack.ss_size = STACK_BYTES - current->id % COLOURS * LINE_BYTES;
        first.uc_link = nullptr;
        makecontext(&first, run_fiber, 0);
        setcontext(&first);
    }
    current = nullptr;
}
static bool is_barrier(const std::string& awaited) { return awaited != MBARRIER_PHASE && awaited != STORE; }
// Which threads wait for what, where none can run.
static void report_deadlock() {
    for (const auto& cluster : clusters) {
        // Barriers last: a thread that does not reach one waits for something else.
        struct BarriersLast {
            bool operator()(const std::string& left, const std::string& right) const { return std::pair(is_barrier(left), left) < std::pair(is_barrier(right), right); }
        };
        std::map<std::string, std::pair<int, const Fiber*>, BarriersLast> waiting;
        int ended = 0;
        for (const auto& fiber : cluster->fibers) {
            if (!fiber->waits_for && !spins_without_progress(*fiber)) { ++ended; continue; }
            auto& [count, first] = waiting[fiber->waits_for ? fiber->waits_for : STORE];
            ++count;
            if (!first) first = fiber.get();
        }
        for (const auto& [what, waiters] : waiting) {
            const auto& [count, first] = waiters;
            std::string others;
            for (const auto& [other, other_waiters] : waiting) if (other != what) others += ", " + std::to_string(other_waiters.first) + " for " + other;
            const bool is_divergence = ended && is_barrier(what);
            const std::string address = what == STORE ? " to " + near_region(first->polling.address) : "";
            report(is_divergence ? DIVERGENCE : "deadlock", code_offset(first->waits_for ? first->waits_pc : first->polling.pc), 0, first,
                   "waits in vain for %s%s, as do %d threads of its %s; others wait%s; %d have ended", what.c_str(), address.c_str(), count,
                   blocks_of_cluster > 1 ? "cluster" : "block", others.empty() ? " for nothing else" : others.c_str() + 1, ended);
        }
    }
    is_over = true;
}
// Stores and copies that arrive in shared memory by themselves, in any order.
static bool has_arrivals() { return !remote_stores.empty() || !bulk_copies.empty() || !async_arrivals.empty(); }
static void deliver_one(bool may_wait) {
    const auto stores = unsigned(remote_stores.size()), copies = unsigned(bulk_copies.size()), arrivals = unsigned(async_arrivals.size());
    const unsigned which = random_below(stores + copies + arrivals);
    if (which < stores) deliver_remote_store(may_wait);
    else if (which < stores + copies) deliver_bulk_copy();
    else deliver_async_arrival();
}
// Remove clusters whose threads have ended; says whether there were any.
static bool dismiss_clusters() {
    if (has_arrivals()) return false;
    auto is_done = [](const auto& cluster) { return !cluster->fibers_left; };
    const auto left = std::remove_if(clusters.begin(), clusters.end(), is_done);
    const bool are_some = left != clusters.end();
    clusters.erase(left, clusters.end());
    return are_some;
}
static void run_grid(unsigned blocks, bool is_cooperative) {
    const unsigned most = std::min(CLUSTERS_RESIDENT_MOST, std::max(1u, FIBERS_RESIDENT_MOST / (blocks_of_cluster * block_threads)));
    const unsigned resident = is_cooperative ? blocks : (1 + random_below(most)) * blocks_of_cluster;
    unsigned admitted = 0, seen = 0;
    std::size_t iterations = 0;             // since memory changed
    while (!is_over) {
        while (admitted < blocks && clusters.size() * blocks_of_cluster < resident) {
            admit_cluster(admitted);
            admitted += blocks_of_cluster;
        }
        if (has_arrivals() && (runnable.empty() || !random_below(4))) deliver_one(!runnable.empty());
        else if (!store_buffer.empty() && (runnable.empty() || !random_below(4))) drain_store(random_below(unsigned(store_buffer.size())));
        else if (!runnable.empty()) run_next();
        else if (clusters.empty()) break;
        else report_deadlock();
        if (runnable.empty() | !(steps % 64)) dismiss_clusters();
        iterations = seen == memory_changes ? iterations + 1 : 0;
        seen = memory_changes;
        if (!runnable.empty() && store_buffer.empty() && iterations > POLLS_MOST * runnable.size()) {
            iterations = 0;
            if (!std::all_of(runnable.begin(), runnable.end(), [](const Fiber* fiber) { return spins_without_progress(*fiber); })) continue;
            if (has_arrivals()) deliver_one(false);
            else if (!dismiss_clusters()) report_deadlock();
        }
    }
    while (!store_buffer.empty()) drain_store(0);
}
}  // namespace minrnn_host
