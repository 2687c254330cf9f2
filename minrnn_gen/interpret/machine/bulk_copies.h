// Bulk copies (cp.async.bulk) from global to shared memory, by the asynchronous proxy: each arrives whole, and late.
#pragma once
#include "mbarriers.h"

namespace minrnn_host {
constexpr std::size_t BULK_UNIT_BYTES = 16;

// Both sides of a copy, before it is issued.
static void check_bulk(const unsigned char* address, std::size_t bytes, const Region* region, const char* does, uint64_t pc) {
    if (!region || !region->has(address) || !region->has(address + bytes - 1)) {
        report("out of bounds", pc, 0, current, "%s %zu bytes in bulk at %s", does, bytes, near_region(address).c_str());
        abort_launch();
    }
    if (reinterpret_cast<std::uintptr_t>(address) % BULK_UNIT_BYTES || bytes % BULK_UNIT_BYTES) {
        report("misaligned", pc, 0, current, "%s %zu bytes in bulk at %s; address and size have to be multiples of %zu", does, bytes,
               byte_of(*region, address).c_str(), BULK_UNIT_BYTES);
        abort_launch();
    }
}
void bulk_copy(void* to_shared, const void* from_global, unsigned bytes, void* mbarrier) {
    ++steps;
    Block& block = *current->block;
    const uint64_t pc = code_offset(CALLER);
    BulkCopy copy = {&block, static_cast<unsigned char*>(to_shared), static_cast<const unsigned char*>(from_global), bytes, mbarrier, current, pc, {}};
    own_mbarrier(mbarrier, "copies in bulk for", CALLER);
    if (!bytes) return;
    check_bulk(copy.to, bytes, block.region.get(), "writes", pc);
    if (watches_arrays) check_bulk(copy.from, bytes, region_of(copy.from), "reads", pc);
    if (current->acquires_unfenced) {
        report(PROXY, pc, 0, current, "copies in bulk behind an acquire of its own, and no fence_async_proxy is between them");
    }
    check_acquires(pc);
    check_cells(*block.region, copy.to, bytes, PROXY_WRITE, pc);
    copy.released = release(*current);
    bulk_copies.push_back(copy);
}
void fence_async_proxy() {
    current->fence_tick = ++current->tick;
    current->acquires_unfenced = false;
}
static void deliver_bulk_copy() {
    std::swap(bulk_copies[random_below(unsigned(bulk_copies.size()))], bulk_copies.back());
    const BulkCopy copy = bulk_copies.back();
    bulk_copies.pop_back();
    if (!copy.block->fibers_left) {
        report("copy", copy.pc, 0, copy.by, "copies in bulk to block %u, which has ended", copy.block->number);
        is_over = true;
        return;
    }
    if (watches_arrays) {
        // Its source is read now, as by the thread that issued it.
        current = copy.by;
        check_cells(*region_of(copy.from), copy.from, copy.bytes, RELAXED_READ, copy.pc);
        current = nullptr;
    }
    std::memcpy(copy.to, copy.from, copy.bytes);
    ++memory_changes;
    Region& region = *copy.block->region;
    complete_write(region, copy.to, copy.bytes, region.cells[(copy.to - region.begin) / CELL_BYTES].write_tick);
    complete_transaction(copy.block->mbarriers[copy.mbarrier], copy.bytes, copy.released);
}
}  // namespace minrnn_host
