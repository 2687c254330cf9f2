// Barriers of a block, and collectives of a warp.
#pragma once
#include <string>
#include "race_detector.h"

namespace minrnn_host {
static void arrive_in_block(const char* kind, const void* caller) {
    Block& block = *current->block;
    if (block.barrier.arrived && block.barrier_kind != kind) {
        report(DIVERGENCE, code_offset(caller), 0, current, "waits at %s while other threads of its block wait at %s", kind, block.barrier_kind);
        abort_launch();
    }
    block.barrier_kind = kind;
    ++steps;
    if (++block.barrier.arrived < int(block_threads)) return wait_in(block.barrier, kind, caller);
    block.barrier.arrived = 0;
    ++block.barrier.phase;
    order_all(warps_of(block));
    wake_all(block.barrier);
    yield();
}
void sync_threads() { arrive_in_block("__syncthreads", CALLER); }
int sync_threads_or(int predicate) {
    // Of this phase and the next, which some threads may reach before all have read this one's.
    Barrier& barrier = current->block->barrier;
    const int phase = barrier.phase % 2;
    if (!barrier.arrived) barrier.any[phase] = false;
    barrier.any[phase] |= predicate != 0;
    arrive_in_block("__syncthreads_or", CALLER);
    return barrier.any[phase];
}
// Barrier of whole warps of a block (barrier.sync with a number and a count), which orders these and no others.
static const char* name_of_barrier(int number) {
    static std::string names[NAMED_BARRIERS];
    if (names[number].empty()) names[number] = "barrier " + std::to_string(number) + " of its block";
    return names[number].c_str();
}
static std::vector<Warp*> whole_warps(const std::vector<Fiber*>& fibers, int number, const void* caller) {
    std::map<Warp*, std::size_t> lanes;
    for (Fiber* fiber : fibers) ++lanes[fiber->warp];
    std::vector<Warp*> warps;
    for (const auto& [warp, count] : lanes) {
        warps.push_back(warp);
        if (count == warp->lanes.size()) continue;
        report(DIVERGENCE, code_offset(caller), 0, current, "completes %s, at which only %zu lanes of warp %d are", name_of_barrier(number), count, warp->number);
        abort_launch();
    }
    return warps;
}
void sync_some(int number, int threads) {
    ++steps;
    if (number < 1 || number >= NAMED_BARRIERS) {
        report("out of bounds", code_offset(CALLER), 0, current, "waits at barrier %d; those of some warps are 1 to %d", number, NAMED_BARRIERS - 1);
        abort_launch();
    }
    if (threads < 1 || threads % LANES || threads > int(block_threads)) {
        report(DIVERGENCE, code_offset(CALLER), 0, current, "waits at %s for %d threads, which are no whole warps of the %u threads", name_of_barrier(number),
               threads, block_threads);
        abort_launch();
    }
    NamedBarrier& barrier = current->block->named_barriers[number];
    if (!barrier.fibers.empty() && barrier.threads != threads) {
        report(DIVERGENCE, code_offset(CALLER), 0, current, "waits at %s for %d threads while others wait there for %d", name_of_barrier(number), threads,
               barrier.threads);
        abort_launch();
    }
    barrier.threads = threads;
    if (int(barrier.fibers.size()) + 1 < threads) return wait_in(barrier, name_of_barrier(number), CALLER);
    std::vector<Fiber*> arrived = barrier.fibers;
    arrived.push_back(current);
    order_all(whole_warps(arrived, number, CALLER));
    wake_all(barrier);
    yield();
}

// A collective of a warp: the last lane to arrive performs it for all.
template <typename Perform>
static void collective(unsigned lanes, const char* operation, void* operand, const void* caller, Perform perform) {
    Warp& warp = *current->warp;
    ++steps;
    if (lanes != ~0u) {
        report(DIVERGENCE, code_offset(caller), 0, current, "executes %s with the lane mask %#x, which is not its whole warp", operation, lanes);
        abort_launch();
    }
    if (warp.arrived && std::strcmp(warp.operation, operation)) {
        report(DIVERGENCE, code_offset(caller), 0, current, "executes %s while other lanes of its warp execute %s", operation, warp.operation);
        abort_launch();
    }
    if (warp.arrived && warp.operation_pc != caller) {
        report(DIVERGENCE, code_offset(caller), code_offset(warp.operation_pc), current, "executes %s at another instruction than other lanes of its warp", operation);
    }
    warp.operation = operation;
    warp.operation_pc = caller;
    warp.operands[current->thread % LANES] = operand;
    if (++warp.arrived < int(warp.lanes.size())) {
        current->waits_for = operation;
        current->waits_pc = caller;
        suspend();
        current->waits_for = nullptr;
        return;
    }
    warp.arrived = 0;
    order_reads(warp);
    perform(warp);
    for (Fiber* lane : warp.lanes) runnable.push_back(lane);
    suspend();
}
void sync_warp(unsigned lanes) { collective(lanes, "__syncwarp", nullptr, CALLER, [](Warp& warp) { order_all(warp); }); }
struct Shuffle { void* value; int bytes, from; };
void exchange(unsigned lanes, void* value, int bytes, int from_lane) {
    Shuffle shuffle = {value, bytes, from_lane};
    collective(lanes, "a shuffle", &shuffle, CALLER, [](Warp& warp) {
        unsigned char values[LANES][64];
        auto of = [&](std::size_t lane) -> Shuffle& { return *static_cast<Shuffle*>(warp.operands[lane]); };
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) std::memcpy(values[lane], of(lane).value, of(lane).bytes);
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) {
            if (unsigned(of(lane).from) < warp.lanes.size()) std::memcpy(of(lane).value, values[of(lane).from], of(lane).bytes);
        }
    });
}
struct Vote { bool predicate; unsigned ballot; };
unsigned vote(unsigned lanes, bool predicate) {
    Vote own = {predicate, 0};
    collective(lanes, "a vote", &own, CALLER, [](Warp& warp) {
        unsigned ballot = 0;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) ballot |= unsigned(static_cast<Vote*>(warp.operands[lane])->predicate) << lane;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) static_cast<Vote*>(warp.operands[lane])->ballot = ballot;
    });
    return own.ballot;
}
}  // namespace minrnn_host
