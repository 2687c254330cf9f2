// Who knows of what: clocks of warps, told and heard.
#pragma once
#include <algorithm>
#include "state.h"

namespace minrnn_host {
static std::size_t fibers_of(const Cluster& cluster) { return cluster.fibers.size(); }
// Of what was done at `tick`: that it is over, and seen, or of reads, that they are over.
static bool knows(const Fiber& fiber, uint32_t number, uint32_t tick, bool of_read) {
    if (number == fiber.number) return true;
    const Cluster& cluster = *fiber.block->cluster;
    const std::size_t place = number - 1 - cluster.first_block * block_threads;
    if (place >= fibers_of(cluster)) return false;  // of another cluster, or of one that is over
    const std::size_t n = place + (of_read ? fibers_of(cluster) : 0);
    return (*fiber.warp->clock)[n] > tick || (fiber.heard && (*fiber.heard)[n] > tick);
}
// What the fiber did and knows, for others to know; what it does from now on they do not.
static Told told_by(Fiber& fiber) { return {fiber.warp->clock, fiber.heard, fiber.place, ++fiber.tick}; }
static void tell(Mail& mail, const Told& told) {
    const std::size_t count = told.by_warp->size();
    if (!mail.telling) mail.telling = std::make_shared<Ticks>(count);
    for (const Clock& clock : {told.by_warp, told.heard}) {
        if (!clock || std::find(mail.heard.begin(), mail.heard.end(), clock) != mail.heard.end()) continue;
        raise(*mail.telling, clock);
        mail.heard.push_back(clock);
    }
    for (const std::size_t n : {told.place, told.place + count / 2}) (*mail.telling)[n] = std::max((*mail.telling)[n], told.tick);
}
static Ticks& own(Clock& clock) {
    if (clock.use_count() > 1) clock = std::make_shared<Ticks>(*clock);
    return const_cast<Ticks&>(*clock);  // which was not made constant, and nobody else has
}
static Clock& gathered(Warp& warp) {
    Clock last;
    for (Fiber* lane : warp.lanes) {
        if (!lane->heard) continue;
        if (lane->heard != last) warp.clock = later(warp.clock, lane->heard);
        last = lane->heard;
    }
    for (Fiber* lane : warp.lanes) lane->heard = nullptr;
    return warp.clock;
}
static void meet(const Warp& warp, Ticks& all, bool of_reads_alone) {
    const std::size_t count = all.size() / 2;
    uint32_t latest = 0;
    for (const Fiber* lane : warp.lanes) latest = std::max(latest, lane->tick);
    for (Fiber* lane : warp.lanes) {
        lane->tick = all[lane->place + count] = latest + 1;
        if (!of_reads_alone) all[lane->place] = latest + 1;
    }
}
// Results of all lanes depend on what each has read; nothing else is ordered.
static void meet_by_values(Warp& warp) { meet(warp, own(gathered(warp)), true); }
static void meet(Warp& warp) { meet(warp, own(gathered(warp)), false); }
static void meet(const std::vector<Warp*>& warps) {
    const auto all = std::make_shared<Ticks>(warps[0]->clock->size());
    Clock last;
    for (Warp* warp : warps) {
        if (gathered(*warp) != last) raise(*all, warp->clock);
        last = warp->clock;
    }
    for (Warp* warp : warps) meet(*warp, *all, false);
    for (Warp* warp : warps) warp->clock = all;
}
static std::vector<Warp*> warps_of(Block& block) {
    std::vector<Warp*> warps;
    for (Warp& warp : block.warps) warps.push_back(&warp);
    return warps;
}
}  // namespace minrnn_host
