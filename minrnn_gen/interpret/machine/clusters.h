// Clusters: their barrier, and remote stores (st.async) that arrive late.
#pragma once
#include "mbarriers.h"

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
    complete_transaction(mbarrier, store.bytes, store.released);
}
}  // namespace minrnn_host
