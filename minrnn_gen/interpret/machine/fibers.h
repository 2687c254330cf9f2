// Fibers: one runs until it waits, or yields to the others.
#pragma once
#include "findings.h"

namespace minrnn_host {
// The code that called a function of the machine.
#define CALLER (__builtin_return_address(0))

static __attribute__((noinline)) void suspend() {
    if (MINRNN_SAVE_CONTEXT(current->context)) switch_to(scheduler);
}
// End the launch: this fiber cannot go on.
[[noreturn]] static void abort_launch() {
    is_over = true;
    switch_to(scheduler);
}
static void wait_in(WaitQueue& queue, const char* what, const void* pc = nullptr) {
    current->waits_for = what;
    current->waits_pc = pc;
    queue.fibers.push_back(current);
    suspend();
    current->waits_for = nullptr;
}
static void wake_all(WaitQueue& queue) {
    runnable.insert(runnable.end(), queue.fibers.begin(), queue.fibers.end());
    queue.fibers.clear();
}
static void yield() {
    runnable.push_back(current);
    suspend();
}
}  // namespace minrnn_host
