// cp.async: copies that arrive when they are issued, or when a thread waits for their group.
#pragma once
#include "race_detector.h"

namespace minrnn_host {
void copy_async(void* to, const void* from, int bytes) {
    check_access(from, bytes, bytes, READ, CALLER);
    check_access(to, bytes, bytes, ASYNC_WRITE, CALLER);
    AsyncCopy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, random_below(2) == 0, uint32_t(code_offset(CALLER))};
    if (copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
    current->copy_groups.back().push_back(copy);
}
void copy_async_commit() { current->copy_groups.emplace_back(); }
void copy_async_wait(int pending) {
    ++steps;
    yield();
    for (; int(current->copy_groups.size()) - 1 > pending; current->copy_groups.erase(current->copy_groups.begin())) {
        for (const AsyncCopy& copy : current->copy_groups.front()) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            Region* region = region_of(copy.to);
            if (!region) continue;
            ++memory_changes;
            // A read in flight was reported; a read from now on has to come after this wait.
            complete_write(*region, copy.to, copy.bytes, current->tick);
        }
    }
}
}  // namespace minrnn_host
