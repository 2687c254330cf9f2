"""`make banks KIND=channels`: where the lanes of a warp meet in a bank of shared memory, by the kernels on the host.

Runs forward and backward of each kind of kernel whose name contains the word, and prints how many waves the accesses to shared
memory take, the least that as many could, and the lines of the kernel where they take more.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support.kernel_kinds import KINDS, Call, Kind, made, results_of, times_of
from waves import Access, Served, served

from minrnn_gen.interpret import toolchain
from minrnn_gen.interpret.findings import call_chain, lines_of
from minrnn_gen.interpret.library import EmulatedKernel

RECORDS, WRITES = "MINRNN_RECORDED_ACCESSES", 256
STEPS_MOST, SHOWN = 300, 5
GIVEN = frozenset({"bias", "state", "dstate"})


def main() -> int:
    """Print a table for each kernel."""
    parser = argparse.ArgumentParser(prog="make banks", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="kinds of kernels whose names contain this")
    word = parser.parse_args().word
    # Part of what a machine is found by in the store: other tests have one of their own.
    toolchain.MACHINE_OPTIONS = (*toolchain.MACHINE_OPTIONS, f"-D{RECORDS}")
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "accesses"
        os.environ[RECORDS] = str(records)
        for kind in KINDS:
            if word in kind.name and not kind.is_raw:
                _show(kind, records)
    return 0


def _show(kind: Kind, records: Path) -> None:
    kernel = made(kind).kernel
    launched: list[EmulatedKernel] = []
    launch = EmulatedKernel.launch

    def recorded(self: EmulatedKernel, *arguments: Any, **keys: Any) -> Any:
        records.write_bytes(b"")
        findings = launch(self, *arguments, **keys)
        if self not in launched:
            launched.append(self)
            ctypes.CDLL(None).fflush(None)
            _print(kind.name, self, np.fromfile(records, np.uint32).reshape(-1, 4).tolist())
        return findings

    EmulatedKernel.launch = recorded  # type: ignore[method-assign]
    try:
        time = 4 if kind.has_R else min(max(times_of(kernel.plan)), STEPS_MOST)
        results_of(kernel, Call(kernel.plan.variables.get("batch_tile", 1), time, 0.0, GIVEN).inputs(kernel))
    finally:
        EmulatedKernel.launch = launch  # type: ignore[method-assign]


def _print(name: str, kernel: EmulatedKernel, records: list[list[int]]) -> None:
    codes = sorted({code for code, *_ in records})
    lines = dict(zip(codes, lines_of(kernel.path, codes), strict=True))
    accesses = [Access(code, thread, byte, size & (WRITES - 1), bool(size & WRITES)) for code, thread, byte, size in records]
    found = served(accesses, lines)
    waves, least = (sum(getattr(one, of) for one in found.values()) for of in ("waves", "least"))
    print(f"{name}, {kernel.plan.entry}: {waves:,} waves, {least:,} at least ({waves / max(least, 1):.2f})", flush=True)
    worst = sorted(found.items(), key=lambda item: -item[1].excess)[:SHOWN]
    for (chain, writes), taken in worst:
        if taken.excess:
            print(f"    line {call_chain(chain)} {'writes' if writes else 'reads'}: {_of_one(taken)}")


def _of_one(taken: Served) -> str:
    return f"{taken.waves / taken.times:.1f} waves for {taken.least / taken.times:.1f}, {taken.times:,} times"


if __name__ == "__main__":
    sys.exit(main())
