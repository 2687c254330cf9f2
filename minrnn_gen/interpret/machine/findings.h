// Findings: what a kernel did wrong, with the code, the block, the thread and the step at which it happened.
#pragma once
#include <cstdarg>
#include <cstdio>
#include "state.h"

namespace minrnn_host {
constexpr int FINDINGS_MOST = 16;
// Kinds of findings (the second: the asynchronous proxy accesses what no fence shows it), and what threads wait for other than barriers.
static const char *const DIVERGENCE = "divergence", *const PROXY = "proxy", *const MBARRIER_PHASE = "an mbarrier phase", *const STORE = "a store";

struct Finding { char kind[32]; char text[400]; uint64_t pc, other_pc; uint32_t block, thread, step; };
static std::vector<Finding> findings;
static std::size_t unconfirmed;

static uint64_t code_offset(const void* pc) { return pc ? static_cast<const unsigned char*>(pc) - code_begin : 0; }
__attribute__((format(printf, 5, 6))) static bool
report(const char* kind, uint64_t pc, uint64_t other_pc, const Fiber* fiber, const char* format, ...) {
    for (const Finding& earlier : findings) {
        // One report for each pair of instructions, whichever threads execute them.
        if (earlier.pc == pc && earlier.other_pc == other_pc && !std::strcmp(earlier.kind, kind)) return false;
    }
    Finding finding = {};
    std::snprintf(finding.kind, sizeof finding.kind, "%s", kind);
    va_list values;
    va_start(values, format);
    std::vsnprintf(finding.text, sizeof finding.text, format, values);
    va_end(values);
    finding.pc = pc;
    finding.other_pc = other_pc;
    finding.block = fiber ? fiber->block->number : 0;
    finding.thread = fiber ? fiber->thread : 0;
    finding.step = steps;
    findings.push_back(finding);
    // Two instructions may be of one line: the reader of line tables decides.
    unconfirmed += other_pc && !std::strcmp(kind, DIVERGENCE);
    if (findings.size() - unconfirmed >= FINDINGS_MOST) is_over = true;
    return true;
}
}  // namespace minrnn_host
