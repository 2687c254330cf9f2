// Mbarriers of a block: arrivals of threads, and transactions that complete asynchronously.
#pragma once
#include "race_detector.h"

namespace minrnn_host {
constexpr unsigned ARRIVALS_MOST = (1u << 20) - 1;      // PTX ISA: size and contents of mbarrier object
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
    mbarrier.pending_arrivals = mbarrier.arrivals;
    ++mbarrier.phase;
    mbarrier.phase_clock = mbarrier.pending_clock;
    mbarrier.pending_clock = nullptr;
    mbarrier.joined_clocks.clear();
    wake_all(mbarrier);
}
// `bytes` of the current phase have arrived, asynchronously.
static void complete_transaction(Mbarrier& mbarrier, unsigned bytes, const Released& released) {
    mbarrier.tx_count -= bytes;
    release_into(mbarrier, released);
    complete_phase(mbarrier);
}
void mbarrier_init(void* address, unsigned arrivals) {
    check_access(address, 8, 8, WRITE, CALLER);
    if (arrivals - 1 >= ARRIVALS_MOST) {
        report("mbarrier", code_offset(CALLER), 0, current, "initializes an mbarrier for %u arrivals; it takes 1 to %u", arrivals, ARRIVALS_MOST);
        abort_launch();
    }
    Block& block = *current->block;
    Mbarrier& mbarrier = block.mbarriers[address];
    const Event& store = mbarrier.early_store;
    if (store.id) report_race("initializes", "stores asynchronously to", *block.region, address, store.id, code_offset(CALLER), store.pc);
    mbarrier.initialization = event_now(CALLER);
    mbarrier.arrivals = mbarrier.pending_arrivals = int(arrivals);
    // What the hardware keeps there is opaque: a kernel that takes it for something else computes with it.
    constexpr int OPAQUE_BYTE = 0x5a;
    std::memset(address, OPAQUE_BYTE, sizeof(uint64_t));
}
static void arrive_by(const Fiber* by, Mbarrier& mbarrier, unsigned bytes, const Released& released, uint64_t pc) {
    if (!mbarrier.pending_arrivals) {
        if (mbarrier.arrivals == 1) report("mbarrier", pc, 0, by, "arrives twice on an mbarrier in one phase");
        else report("mbarrier", pc, 0, by, "arrives on an mbarrier, whose phase has its %d arrivals", mbarrier.arrivals);
        abort_launch();
    }
    --mbarrier.pending_arrivals;
    mbarrier.tx_count += bytes;
    release_into(mbarrier, released);
    complete_phase(mbarrier);
}
static void arrive(void* address, unsigned bytes, const void* caller) {
    ++steps;
    Mbarrier& mbarrier = own_mbarrier(address, "arrives on", caller);
    arrive_by(current, mbarrier, bytes, release(*current), code_offset(caller));
}
void mbarrier_arrive(void* address) { arrive(address, 0, CALLER); }
void mbarrier_arrive_expect_tx(void* address, unsigned bytes) { arrive(address, bytes, CALLER); }
void mbarrier_wait(void* address, int phase) {
    ++steps;
    yield();
    Mbarrier& mbarrier = own_mbarrier(address, "waits on", CALLER);
    // A thread asks for the parity again and again: one that comes late may find that of the phase behind the next.
    while ((mbarrier.phase & 1) == (phase & 1)) wait_in(mbarrier, MBARRIER_PHASE, CALLER);
    acquire(*current, mbarrier.phase_clock);
}
}  // namespace minrnn_host
