// Relaxed memory between blocks: a store buffer, in which stores wait to become visible, and loads that poll.
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
void store_relaxed(void* to, const void* value, int bytes) {
    check_access(to, bytes, bytes, RELAXED_WRITE, CALLER);
    BufferedStore store = {static_cast<unsigned char*>(to), {}, bytes, current};
    std::memcpy(store.value, value, bytes);
    store_buffer.push_back(store);
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
void load_relaxed(void* value, const void* from, int bytes) {
    check_access(from, bytes, bytes, RELAXED_READ, CALLER);
    yield();
    for (std::size_t n = 0; n < store_buffer.size(); ++n) {
        if (store_buffer[n].by == current && store_buffer[n].to == from) drain_store(n--);  // a thread sees its own stores at once
    }
    record_poll(from, CALLER);
    std::memcpy(value, from, bytes);
}
unsigned atomic_add(unsigned* to, unsigned value) {
    check_access(to, sizeof *to, sizeof *to, RELAXED_WRITE, CALLER);
    ++steps;
    if (value) ++memory_changes;
    else record_poll(to, CALLER);
    const unsigned before = *to;
    *to = before + value;
    return before;
}
unsigned long long nanoseconds() { return 0; }  // deadlocks are found without a clock
void give_up(const char* awaited, long long iteration) {
    report("deadlock", code_offset(CALLER), 0, current, "gives up waiting for %s in iteration %lld", awaited, iteration);
    abort_launch();
}
}  // namespace minrnn_host
