// Clusters: their barrier, and mbarriers with remote stores (st.async) that arrive late.
#pragma once
#include "race_detector.h"

namespace minrnn_host {
unsigned cluster_rank() { return current->block->rank; }
void cluster_sync() {
    Cluster& cluster = *current->block->cluster;
    ++steps;
    if (++cluster.barrier.arrived < int(cluster.fibers.size())) return wait_in(cluster.barrier, "the barrier of its cluster", CALLER);
    cluster.barrier.arrived = 0;
    std::vector<Warp*> warps;
    for (const auto& block : cluster.blocks) for (Warp& warp : block->warps) warps.push_back(&warp);
    order_all(warps);
    wake_all(cluster.barrier);
    yield();
}
static Event event_now(const void* caller) { return {current->id, current->tick, code_offset(caller)}; }
// `does` to an mbarrier what its initialization has to happen before.
static void check_initialization(const Block& block, const void* address, const Mbarrier& mbarrier, const char* does, uint64_t pc) {
    const Event& initialization = mbarrier.initialization;
    if (!happens_before(initialization.id, initialization.tick, false, *current)) {
        report_race(does, "initializes", *block.region, address, initialization.id, pc, initialization.pc);
    }
}
static Mbarrier& own_mbarrier(void* address, const char* does, const void* caller) {
    Block& block = *current->block;
    Mbarrier& mbarrier = block.mbarriers[address];
    if (!mbarrier.is_initialized()) {
        report("mbarrier", code_offset(caller), 0, current, "%s an uninitialized mbarrier of block %u", does, block.number);
        abort_launch();
    }
    check_initialization(block, address, mbarrier, does, code_offset(caller));
    return mbarrier;
}
static void complete_phase(Mbarrier& mbarrier) {
    if (mbarrier.pending_arrivals || mbarrier.tx_count) return;
    mbarrier.pending_arrivals = 1;
    ++mbarrier.phase;
    mbarrier.phase_clock = mbarrier.pending_clock;
    mbarrier.pending_clock = nullptr;
    mbarrier.joined_clocks.clear();
    wake_all(mbarrier);
}
void mbarrier_init(void* address) {
    check_access(address, 8, 8, WRITE, CALLER);
    Block& block = *current->block;
    Mbarrier& mbarrier = block.mbarriers[address];
    const Event& store = mbarrier.early_store;
    if (store.id) report_race("initializes", "stores asynchronously to", *block.region, address, store.id, code_offset(CALLER), store.pc);
    mbarrier.initialization = event_now(CALLER);
}
void mbarrier_arrive_expect_tx(void* address, unsigned bytes) {
    ++steps;
    Mbarrier& mbarrier = own_mbarrier(address, "arrives on", CALLER);
    if (!mbarrier.pending_arrivals) {
        report("mbarrier", code_offset(CALLER), 0, current, "arrives twice on an mbarrier in one phase");
        abort_launch();
    }
    --mbarrier.pending_arrivals;
    mbarrier.tx_count += bytes;
    release_into(mbarrier, release(*current));
    complete_phase(mbarrier);
}
void mbarrier_wait(void* address, int phase) {
    ++steps;
    yield();
    Mbarrier& mbarrier = own_mbarrier(address, "waits on", CALLER);
    if ((mbarrier.phase & 1) == (phase & 1)) wait_in(mbarrier, MBARRIER_PHASE, CALLER);
    acquire(*current, mbarrier.phase_clock);
}
void st_async_bytes(void* to, void* mbarrier, unsigned rank, const void* value, int bytes) {
    ++steps;
    Block& sender = *current->block;
    if (rank >= sender.cluster->blocks.size()) {
        report("out of bounds", code_offset(CALLER), 0, current, "stores asynchronously to block %u of a cluster of %zu", rank, sender.cluster->blocks.size());
        abort_launch();
    }
    Block& receiver = *sender.cluster->blocks[rank];
    const long long offset = static_cast<unsigned char*>(to) - sender.shared;
    if (offset < 0 || offset + bytes > (long long)(shared_size) || offset % bytes) {
        report("out of bounds", code_offset(CALLER), 0, current, "stores %d bytes asynchronously at %s", bytes, near_region(to).c_str());
        abort_launch();
    }
    RemoteStore store = {&receiver, receiver.shared + offset, receiver.shared + (static_cast<unsigned char*>(mbarrier) - sender.shared), {}, bytes, current, code_offset(CALLER), {}};
    std::memcpy(store.value, value, bytes);
    Mbarrier& remote = receiver.mbarriers[store.mbarrier];
    if (remote.is_initialized()) check_initialization(receiver, store.mbarrier, remote, "stores asynchronously to", store.pc);
    else if (!remote.early_store.id) remote.early_store = event_now(CALLER);
    check_cells(*receiver.region, store.to, bytes, ASYNC_WRITE, store.pc);
    store.released = release(*current);
    remote_stores.push_back(store);
}
static void deliver_remote_store(bool may_wait) {
    std::swap(remote_stores[random_below(unsigned(remote_stores.size()))], remote_stores.back());
    const RemoteStore store = remote_stores.back();
    remote_stores.pop_back();
    Mbarrier& mbarrier = store.block->mbarriers[store.mbarrier];
    if (!store.block->fibers_left || !mbarrier.is_initialized()) {
        // A thread may initialize the mbarrier yet, which is a race then.
        if (store.block->fibers_left && may_wait) return remote_stores.push_back(store);
        report("mbarrier", store.pc, 0, store.by, "stores asynchronously to block %u, which %s", store.block->number,
               store.block->fibers_left ? "has not initialized the mbarrier" : "has ended");
        is_over = true;
        return;
    }
    std::memcpy(store.to, store.value, store.bytes);
    ++memory_changes;
    Region& region = *store.block->region;
    complete_write(region, store.to, store.bytes, region.cells[(store.to - region.begin) / CELL_BYTES].write_tick);
    mbarrier.tx_count -= store.bytes;
    release_into(mbarrier, store.released);
    complete_phase(mbarrier);
}
}  // namespace minrnn_host
