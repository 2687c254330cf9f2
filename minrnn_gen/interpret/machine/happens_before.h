// Happens-before between threads of a cluster: vector clocks, joined at barriers and at every release/acquire pair.
//
// Happens-before is Lamport's (Time, clocks, and the ordering of events in a distributed system, 1978), by the vector clocks of
// Fidge and Mattern (1988). With epochs in shadow memory it follows FastTrack (Flanagan and Freund, FastTrack: efficient and
// precise dynamic race detection, PLDI 2009), and differs from it:
// - A warp has one vector clock for its lanes, as most operations order them all; a lane has a clock more while it has acquired
//   something alone.
// - Clocks span the threads of one cluster. Nothing orders accesses of different clusters: what they share they access relaxed,
//   and relaxed accesses may meet.
// - The second half of a clock orders reads alone, by the values that depend on them: shuffles order a later write behind reads
//   of other lanes, and make no write visible.
// - Several concurrent readers of shared memory are kept by warp (a tick and a mask of lanes); of those of an array one is kept.
// - Writes may be in flight (cp.async, st.async): any access to the cell meanwhile is a race.
// - The launch goes on after a race, to find others.
#pragma once
#include <algorithm>
#include "state.h"

namespace minrnn_host {
static std::size_t fibers_of(const Cluster& cluster) { return cluster.fibers.size(); }
// Whether an access of thread `id` at `tick` happens before what `fiber` does now; of a read, whether it is complete by now.
static bool happens_before(uint32_t id, uint32_t tick, bool is_read, const Fiber& fiber) {
    if (id == fiber.id) return true;
    const Cluster& cluster = *fiber.block->cluster;
    const std::size_t index = id - 1 - cluster.first_block * block_threads;
    if (index >= fibers_of(cluster)) return false;  // of another cluster, running or ended
    const std::size_t n = index + (is_read ? fibers_of(cluster) : 0);
    return (*fiber.warp->clock)[n] > tick || (fiber.acquired && (*fiber.acquired)[n] > tick);
}
// Release: all that the fiber did so far; what it does from now on has a later tick.
static Released release(Fiber& fiber) { return {fiber.warp->clock, fiber.acquired, fiber.clock_index, ++fiber.tick}; }
static void release_into(Mbarrier& mbarrier, const Released& released) {
    const std::size_t count = released.warp_clock->size();
    if (!mbarrier.pending_clock) mbarrier.pending_clock = std::make_shared<VectorClock>(count);
    for (const SharedClock& clock : {released.warp_clock, released.acquired}) {
        if (!clock || std::find(mbarrier.joined_clocks.begin(), mbarrier.joined_clocks.end(), clock) != mbarrier.joined_clocks.end()) continue;
        join(*mbarrier.pending_clock, clock);
        mbarrier.joined_clocks.push_back(clock);
    }
    for (const std::size_t n : {released.clock_index, released.clock_index + count / 2}) {
        (*mbarrier.pending_clock)[n] = std::max((*mbarrier.pending_clock)[n], released.tick);
    }
}
static void acquire(Fiber& fiber, const SharedClock& clock) { fiber.acquired = joined(fiber.acquired, clock); }
static VectorClock& writable(SharedClock& clock) {
    if (clock.use_count() > 1) clock = std::make_shared<VectorClock>(*clock);
    return const_cast<VectorClock&>(*clock);  // which was not made constant, and has no other owner
}
// Join what single lanes acquired into the clock of their warp.
static SharedClock& join_lanes(Warp& warp) {
    SharedClock last;
    for (Fiber* lane : warp.lanes) {
        if (!lane->acquired) continue;
        if (lane->acquired != last) warp.clock = joined(warp.clock, lane->acquired);
        last = lane->acquired;
    }
    for (Fiber* lane : warp.lanes) lane->acquired = nullptr;
    return warp.clock;
}
static void advance_lanes(const Warp& warp, VectorClock& clock, bool of_reads_alone) {
    const std::size_t count = clock.size() / 2;
    uint32_t latest = 0;
    for (const Fiber* lane : warp.lanes) latest = std::max(latest, lane->tick);
    for (Fiber* lane : warp.lanes) {
        lane->tick = clock[lane->clock_index + count] = latest + 1;
        if (!of_reads_alone) clock[lane->clock_index] = latest + 1;
    }
}
static void forget_acquires(Warp& warp) {
    warp.announced.clear();
    warp.acquired_by.clear();
}
// Results of all lanes depend on what each has read; nothing else is ordered.
static void order_reads(Warp& warp) {
    advance_lanes(warp, writable(join_lanes(warp)), true);
    for (const auto& [counter, lanes] : warp.acquired_by) warp.announced[counter] |= lanes;
    warp.acquired_by.clear();
}
static void order_all(Warp& warp) {
    advance_lanes(warp, writable(join_lanes(warp)), false);
    forget_acquires(warp);
}
static void order_all(const std::vector<Warp*>& warps) {
    const auto clock = std::make_shared<VectorClock>(warps[0]->clock->size());
    SharedClock last;
    for (Warp* warp : warps) {
        if (join_lanes(*warp) != last) join(*clock, warp->clock);
        last = warp->clock;
    }
    for (Warp* warp : warps) advance_lanes(*warp, *clock, false);
    for (Warp* warp : warps) {
        warp->clock = clock;
        forget_acquires(*warp);
    }
}
static std::vector<Warp*> warps_of(Block& block) {
    std::vector<Warp*> warps;
    for (Warp& warp : block.warps) warps.push_back(&warp);
    return warps;
}
}  // namespace minrnn_host
