// Barriers of a block, and collectives of a warp.
#pragma once
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
