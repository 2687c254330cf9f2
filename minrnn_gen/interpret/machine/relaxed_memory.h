// Relaxed memory between blocks: a store buffer, in which stores wait to become visible, loads that poll, and counters that order both.
#pragma once
#include "race_detector.h"

namespace minrnn_host {
// A thread that repeats a load so often while memory stays the same polls until it changes: a value that is there for good is
// loaded once, or once for each iteration of a loop that writes something.
constexpr unsigned POLLS_MOST = 16;

// Stores become visible in any order, but to one address in that of the program; as under partial store order (SPARC PSO).
static void drain_store(std::size_t which) {
    for (std::size_t earlier = 0; earlier < which; ++earlier) if (store_buffer[earlier].to == store_buffer[which].to) which = earlier;
    const BufferedStore& store = store_buffer[which];
    memory_changes += std::memcmp(store.to, store.value, store.bytes) != 0;
    std::memcpy(store.to, store.value, store.bytes);
    store_buffer.erase(store_buffer.begin() + std::ptrdiff_t(which));
}
static void buffer_store(void* to, const void* value, int bytes, const void* caller) {
    check_access(to, bytes, bytes, RELAXED_WRITE, caller);
    BufferedStore store = {static_cast<unsigned char*>(to), {}, bytes, current->id, current->tick};
    std::memcpy(store.value, value, bytes);
    store_buffer.push_back(store);
}
void store_relaxed(void* to, const void* value, int bytes) { buffer_store(to, value, bytes, CALLER); }
void store_piece(void* to, const unsigned (&word)[4]) {
    check_access(word, sizeof word, sizeof word[0], READ, CALLER);     // it may be in shared memory, and is read here
    buffer_store(to, word, sizeof word, CALLER);
}
static void record_poll(const void* address, const void* caller) {
    Polling& polling = current->polling;
    if (polling.since != memory_changes) {
        polling = {};
        polling.since = memory_changes;
    }
    if (!(polling.loads & (polling.loads - 1))) {
        polling.address = address;
        polling.pc = caller;
        polling.repeats = 0;
    } else {
        polling.repeats += address == polling.address;
    }
    ++polling.loads;
    polling.is_spinning |= polling.repeats >= POLLS_MOST;
}
static bool spins_without_progress(const Fiber& fiber) { return fiber.polling.is_spinning && fiber.polling.since == memory_changes; }
static void poll(void* value, const void* from, int bytes, const void* caller) {
    check_access(from, bytes, bytes, RELAXED_READ, caller);
    yield();
    for (std::size_t n = 0; n < store_buffer.size(); ++n) {
        if (store_buffer[n].by == current->id && store_buffer[n].to == from) drain_store(n--);  // a thread sees its own stores at once
    }
    record_poll(from, caller);
    std::memcpy(value, from, bytes);
}
void load_relaxed(void* value, const void* from, int bytes) { poll(value, from, bytes, CALLER); }
unsigned atomic_add(unsigned* to, unsigned value) {
    check_access(to, sizeof *to, sizeof *to, RELAXED_WRITE, CALLER);
    ++steps;
    if (value) ++memory_changes;
    else record_poll(to, CALLER);
    const unsigned before = *to;
    *to = before + value;
    return before;
}
// What happens before a release becomes visible: the thread's own stores, and those that barriers order before it. Others stay.
static void drain_ordered_stores() {
    std::size_t kept = 0;
    for (const BufferedStore& store : store_buffer) {
        if (!happens_before(store.by, store.tick, false, *current)) {
            store_buffer[kept++] = store;
            continue;
        }
        memory_changes += std::memcmp(store.to, store.value, store.bytes) != 0;
        std::memcpy(store.to, store.value, store.bytes);
    }
    store_buffer.resize(kept);
}
static Counter& counter_of_cluster(const void* counter) { return counters[{counter, current->block->cluster->first_block}]; }
void add_release(unsigned* counter) {
    check_access(counter, sizeof *counter, sizeof *counter, RELAXED_WRITE, CALLER);
    ++steps;
    drain_ordered_stores();
    Counter& releases = counter_of_cluster(counter);
    releases.last = event_now(CALLER);
    const Released released = release(*current);
    const auto clock = std::make_shared<VectorClock>(*released.warp_clock);
    join(*clock, released.acquired);
    join(*clock, releases.clock);
    for (const std::size_t n : {released.clock_index, released.clock_index + clock->size() / 2}) (*clock)[n] = released.tick;
    releases.clock = clock;
    ++*counter;
    ++memory_changes;
}
unsigned load_acquire(const unsigned* counter) {
    unsigned value;
    poll(&value, counter, sizeof value, CALLER);
    current->acquires_unfenced = true;
    current->warp->acquired_by[counter] |= 1u << current->thread % LANES;
    // Clocks span a cluster: releases of others order what is accessed relaxed, by becoming visible late.
    const Counter& releases = counter_of_cluster(counter);
    if (releases.clock && !happens_before(releases.last.id, releases.last.tick, false, *current)) acquire(*current, releases.clock);
    return value;
}
unsigned long long nanoseconds() { return 0; }  // deadlocks are found without a clock
void give_up(const char* awaited, long long iteration) {
    report("deadlock", code_offset(CALLER), 0, current, "gives up waiting for %s in iteration %lld", awaited, iteration);
    abort_launch();
}
}  // namespace minrnn_host
