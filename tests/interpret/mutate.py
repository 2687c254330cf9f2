"""Weakens kernels' texts one place at a time, and says which of these faults nobody notices: `make mutate`.

A place is a barrier, a wait, or what tells a mailbox what comes; a fault is noticed by a finding, or by a wrong result.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from interpreted_cases import faulty, kernel_of

from minrnn_gen.errors import CompileFailed
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.trial_inputs import Inputs, Trial, inputs_of
from minrnn_gen.interpret.verify import results_of, share_of
from minrnn_gen.precision import error_allowed

SEEDS = 4
WAITS = re.compile(
    r"\b(?:__syncthreads|__syncwarp|synchronize_cluster|wait_copy_groups<[^;()]*>|wait_for_mail|expect_bytes|close_copy_group)"
    r"\((?:[^;{}]|\(\))*\);"
)
SUBJECTS: tuple[tuple[dict[str, Any], tuple[Trial, ...]], ...] = (
    ({"model": "min_gru", "hidden_size": 40}, (Trial(1, 1100),)),
    ({"model": "min_gru", "hidden_size": 6, "layout": "BDT"}, (Trial(1, 6000),)),
    ({"model": "lstm", "hidden_size": 64, "precision": "bf16", "wanted": {"cluster_blocks": 2}}, (Trial(3, 12),)),
)


def places(text: str) -> Iterator[tuple[int, int]]:
    """Yield where what can be taken out begins and ends, but for where it is defined."""
    for match in WAITS.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not re.search(r"//|\bvoid\b|asm|minrnn_host::$", line):
            yield match.span()


def is_noticed(kernel: InterpretedKernel, kernel_pass: str, inputs: list[Inputs], expected: list[dict[str, Any]]) -> bool:
    slack = 4 * error_allowed(kernel.contract.precision)
    for seed in range(SEEDS):
        for given, right in zip(inputs, expected, strict=True):
            try:
                with kernel.seeded(seed), np.errstate(all="ignore"):
                    found = results_of(kernel, kernel_pass, given)
            except (KernelMisbehaved, CompileFailed):
                return True
            if not all(share_of(found[name], one, slack) <= 1 for name, one in right.items()):
                return True
    return False


def main() -> int:
    noticed = total = 0
    for spec, trials in SUBJECTS:
        kernel = kernel_of(**spec)
        inputs = [inputs_of(kernel.contract, trial) for trial in trials]
        for kernel_pass in ("forward", "backward"):
            expected = [results_of(kernel, kernel_pass, one) for one in inputs]
            text = next(built.source for built in reversed(kernel.built) if built.plan.kernel_pass == kernel_pass)
            for begin, end in places(text):
                started = time.perf_counter()
                change = {text: text[:begin] + ";" + text[end:]}
                mutant = faulty(kernel_of(**spec), lambda its, change=change: change.get(its, its))
                ok = is_noticed(mutant, kernel_pass, inputs, expected)
                noticed, total = noticed + ok, total + 1
                where = f"{spec['model']} {kernel_pass}, line {text.count(chr(10), 0, begin) + 1}: {text[begin:end]}"
                seconds = time.perf_counter() - started
                print(f"{'noticed ' if ok else 'SURVIVES'}  {where}  ({seconds:.1f} s)", flush=True)
    print(f"{noticed} of {total} are noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
