// Memory that blocks tell each other through: stores of whole units arrive late, and who asks for one in vain waits.
#pragma once
#include "accesses.h"

namespace minrnn_host {
// Who loads a unit so often while nothing changes loops until it changes: what is there for good is loaded once, or by each turn
// of a loop that writes something.
constexpr unsigned ASKS_IN_VAIN = 16;

// Stores arrive late, and in any order but at one place; whoever loads lets the others run.
static void arrive_in_memory(std::size_t which) {
    for (std::size_t earlier = 0; earlier < which; ++earlier) if (stores[earlier].to == stores[which].to) which = earlier;
    const Store& store = stores[which];
    changes += std::memcmp(store.to, store.unit, store.bytes) != 0;
    std::memcpy(store.to, store.unit, store.bytes);
    stores.erase(stores.begin() + std::ptrdiff_t(which));
}
void store_whole(void* to, const void* unit, int bytes) {
    access(to, bytes, bytes, WRITE_WHOLE, CALLER);
    Store store = {static_cast<unsigned char*>(to), {}, bytes, current};
    std::memcpy(store.unit, unit, bytes);
    stores.push_back(store);
}
static void ask(const void* unit, const void* caller) {
    Asked& asked = current->asked;
    if (asked.since != changes) {
        asked = {};
        asked.since = changes;
    }
    if (!(asked.units & (asked.units - 1))) {
        asked.unit = unit;
        asked.at = caller;
        asked.again = 0;
    } else {
        asked.again += unit == asked.unit;
    }
    ++asked.units;
    asked.is_in_vain |= asked.again >= ASKS_IN_VAIN;
}
static bool asks_in_vain(const Fiber& fiber) { return fiber.asked.is_in_vain && fiber.asked.since == changes; }
void load_whole(void* unit, const void* from, int bytes) {
    access(from, bytes, bytes, READ_WHOLE, CALLER);
    let_others_run();
    for (std::size_t n = 0; n < stores.size(); ++n) {
        if (stores[n].by == current && stores[n].to == from) arrive_in_memory(n--);  // one's own are seen at once
    }
    ask(from, CALLER);
    std::memcpy(unit, from, bytes);
}
unsigned add_whole(unsigned* to, unsigned value) {
    access(to, sizeof *to, sizeof *to, WRITE_WHOLE, CALLER);
    ++steps;
    if (value) ++changes;
    else ask(to, CALLER);
    const unsigned before = *to;
    *to = before + value;
    return before;
}
unsigned long long nanoseconds() { return 0; }  // who waits in vain is found without a clock
void give_up(const char* awaited, long long turn) {
    found("deadlock", place_in_code(CALLER), 0, current, "gives up waiting for %s in turn %lld", awaited, turn);
    abandon();
}
}  // namespace minrnn_host
