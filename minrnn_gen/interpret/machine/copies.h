// Copies that arrive late (cp.async).
#pragma once
#include "accesses.h"

namespace minrnn_host {
void copy_async(void* to, const void* from, int bytes) {
    access(from, bytes, bytes, READ, CALLER);
    access(to, bytes, bytes, BEGUN, CALLER);
    Copy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, below(2) == 0, uint32_t(place_in_code(CALLER))};
    if (copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
    current->groups.back().push_back(copy);
}
void copy_async_commit() { current->groups.emplace_back(); }
void copy_async_wait(int pending) {
    ++steps;
    let_others_run();
    for (; int(current->groups.size()) - 1 > pending; current->groups.erase(current->groups.begin())) {
        for (const Copy& copy : current->groups.front()) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            Region* region = region_of(copy.to);
            if (!region) continue;
            ++changes;
            // Who read it meanwhile was told so; who reads it from now on has to know of this wait.
            arrived(*region, copy.to, copy.bytes, current->tick);
        }
    }
}
}  // namespace minrnn_host
