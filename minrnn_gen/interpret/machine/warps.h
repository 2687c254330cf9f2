// Barriers of a block, and what the lanes of a warp do together.
#pragma once
#include "accesses.h"

namespace minrnn_host {
static void arrive_in_block(const char* kind, const void* caller) {
    Block& block = *current->block;
    if (block.barrier.arrived && block.barrier_kind != kind) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s while others of its block are in %s", kind, block.barrier_kind);
        abandon();
    }
    block.barrier_kind = kind;
    ++steps;
    if (++block.barrier.arrived < int(block_threads)) return wait_in(block.barrier, kind, caller);
    block.barrier.arrived = 0;
    ++block.barrier.turn;
    meet(warps_of(block));
    release(block.barrier);
    let_others_run();
}
void sync_threads() { arrive_in_block("__syncthreads", CALLER); }
int sync_threads_or(int mine) {
    // Of this turn and the next, which some may reach before all have read this one's.
    Barrier& barrier = current->block->barrier;
    const int turn = barrier.turn % 2;
    if (!barrier.arrived) barrier.any[turn] = false;
    barrier.any[turn] |= mine != 0;
    arrive_in_block("__syncthreads_or", CALLER);
    return barrier.any[turn];
}

// The last lane to come does it for all.
template <typename Do> static void together(unsigned lanes, const char* operation, void* given, const void* caller, Do act) {
    Warp& warp = *current->warp;
    ++steps;
    if (lanes != ~0u) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s with the lanes %#x, which not all of its warp are", operation, lanes);
        abandon();
    }
    if (warp.arrived && std::strcmp(warp.operation, operation)) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s while other lanes of its warp are in %s", operation, warp.operation);
        abandon();
    }
    if (warp.arrived && warp.operation_at != caller) {
        found(PARTED, place_in_code(caller), place_in_code(warp.operation_at), current, "is in %s at another place than others of its warp", operation);
    }
    warp.operation = operation;
    warp.operation_at = caller;
    warp.given[current->thread % LANES] = given;
    if (++warp.arrived < int(warp.lanes.size())) {
        current->waits_for = operation;
        current->waits_at = caller;
        leave();
        current->waits_for = nullptr;
        return;
    }
    warp.arrived = 0;
    meet_by_values(warp);
    act(warp);
    for (Fiber* lane : warp.lanes) runnable.push_back(lane);
    leave();
}
void sync_warp(unsigned lanes) { together(lanes, "__syncwarp", nullptr, CALLER, [](Warp& warp) { meet(warp); }); }
struct Exchanged { void* value; int bytes, from; };
void exchange(unsigned lanes, void* value, int bytes, int from_lane) {
    Exchanged mine = {value, bytes, from_lane};
    together(lanes, "a shuffle", &mine, CALLER, [](Warp& warp) {
        unsigned char values[LANES][64];
        auto of = [&](std::size_t lane) -> Exchanged& { return *static_cast<Exchanged*>(warp.given[lane]); };
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) std::memcpy(values[lane], of(lane).value, of(lane).bytes);
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) {
            if (unsigned(of(lane).from) < warp.lanes.size()) std::memcpy(of(lane).value, values[of(lane).from], of(lane).bytes);
        }
    });
}
struct Vote { bool mine; unsigned all; };
unsigned vote(unsigned lanes, bool mine) {
    Vote given = {mine, 0};
    together(lanes, "a vote", &given, CALLER, [](Warp& warp) {
        unsigned all = 0;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) all |= unsigned(static_cast<Vote*>(warp.given[lane])->mine) << lane;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) static_cast<Vote*>(warp.given[lane])->all = all;
    });
    return given.all;
}
}  // namespace minrnn_host
