// cp.async: copies that arrive when they are issued, when a thread waits for their group, or before they arrive on an mbarrier.
#pragma once
#include "mbarriers.h"

namespace minrnn_host {
static void issue_copy(void* to, const void* from, int bytes, Access of_source, const void* caller) {
    check_access(from, bytes, bytes, of_source, caller);
    check_access(to, bytes, bytes, ASYNC_WRITE, caller);
    AsyncCopy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, random_below(2) == 0, uint32_t(code_offset(caller))};
    if (copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
    current->copy_groups.back().push_back(copy);
}
void copy_async(void* to, const void* from, int bytes) { issue_copy(to, from, bytes, READ, CALLER); }
// What other blocks stored becomes visible late, and is then read.
void fetch_piece(void* to, const void* from) {
    check_acquires(code_offset(CALLER));
    issue_copy(to, from, 16, RELAXED_READ, CALLER);
}
static void complete_copy(Block& block, const AsyncCopy& copy, uint32_t tick) {
    if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
    ++memory_changes;
    // A read in flight was reported; a read from now on has to come after the wait, or the arrival.
    if (block.region->has(copy.to)) complete_write(*block.region, copy.to, copy.bytes, tick);
}
void copy_async_commit() { current->copy_groups.emplace_back(); }
void copy_async_wait(int pending) {
    ++steps;
    yield();
    for (; int(current->copy_groups.size()) - 1 > pending; current->copy_groups.erase(current->copy_groups.begin())) {
        for (const AsyncCopy& copy : current->copy_groups.front()) complete_copy(*current->block, copy, current->tick);
    }
}
void mbarrier_arrive_when_copied(void* address) {
    ++steps;
    own_mbarrier(address, "arrives on", CALLER);
    AsyncArrival arrival = {current->block, {}, address, current, code_offset(CALLER), {}};
    for (const auto& group : current->copy_groups) arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
    current->copy_groups.assign(1, {});
    arrival.released = release(*current);
    async_arrivals.push_back(arrival);
}
static void deliver_async_arrival() {
    std::swap(async_arrivals[random_below(unsigned(async_arrivals.size()))], async_arrivals.back());
    const AsyncArrival arrival = async_arrivals.back();
    async_arrivals.pop_back();
    if (!arrival.block->fibers_left) {
        report("copy", arrival.pc, 0, arrival.by, "has copies in flight to block %u, which has ended", arrival.block->number);
        is_over = true;
        return;
    }
    for (const AsyncCopy& copy : arrival.copies) {
        complete_copy(*arrival.block, copy, arrival.block->region->cells[(copy.to - arrival.block->region->begin) / CELL_BYTES].write_tick);
    }
    arrive_by(arrival.by, arrival.block->mbarriers[arrival.mbarrier], 0, arrival.released, arrival.pc);
}
}  // namespace minrnn_host
