// Who runs: a fiber goes on until it waits, or lets the others go on.
#pragma once
#include "findings.h"

namespace minrnn_host {
// Of whom a function of the machine is called.
#define CALLER (__builtin_return_address(0))

static __attribute__((noinline)) void leave() {
    if (MINRNN_STAY(current->here)) jump(scheduler);
}
// What cannot go on: the launch is over.
[[noreturn]] static void abandon() {
    is_over = true;
    jump(scheduler);
}
static void wait_in(Waiting& waiting, const char* what, const void* at = nullptr) {
    current->waits_for = what;
    current->waits_at = at;
    waiting.fibers.push_back(current);
    leave();
    current->waits_for = nullptr;
}
static void release(Waiting& waiting) {
    runnable.insert(runnable.end(), waiting.fibers.begin(), waiting.fibers.end());
    waiting.fibers.clear();
}
static void let_others_run() {
    runnable.push_back(current);
    leave();
}
}  // namespace minrnn_host
