"""Findings of the emulated machine: errors of a kernel that ran on a CPU, in one sentence each."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minrnn_gen.errors import MinrnnError


class RawFinding(ctypes.Structure):
    """`Finding` of machine/findings.h."""

    _fields_ = (
        ("kind", ctypes.c_char * 32),
        ("text", ctypes.c_char * 400),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("block", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Finding:
    """One error of a kernel: its kind, what happened, and where.

    `lines` of the kernel's text: the instruction's first, then those of the calls that it is inlined in. `other_lines`: the
    lines of the access that it races with. `seed` reproduces the error.
    """

    kind: str
    what: str
    kernel: str
    lines: tuple[int, ...]
    other_lines: tuple[int, ...]
    block: int
    thread: int
    step: int
    seed: int

    def __str__(self) -> str:
        where = f"{self.kernel}.cu, line {call_chain(self.lines)}"
        other = f" (other access: line {call_chain(self.other_lines)})" if self.other_lines else ""
        thread = f"thread {self.thread} of block {self.block}"
        return f"{self.kind}: {where}: {thread} {self.what}{other}, at step {self.step} of seed {self.seed}"


class KernelMisbehaved(MinrnnError):
    """An emulated kernel made an error; `findings` has all of them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(f"{findings[0]}{more}")
        self.findings = tuple(findings)


def resolved(raw: Sequence[RawFinding], library: Path, kernel: str, seed: int) -> tuple[Finding, ...]:
    """Return findings with the lines of the kernel's text for their instructions in `library`."""
    # A return address points past the call: the line is that of the byte before.
    offsets = sorted({pc - 1 for finding in raw for pc in (finding.pc, finding.other_pc) if pc})
    lines = dict(zip(offsets, lines_of(library, offsets), strict=True)) if offsets else {}
    findings = (
        Finding(
            finding.kind.decode(),
            finding.text.decode(errors="replace"),
            kernel,
            lines.get(finding.pc - 1, ()),
            lines.get(finding.other_pc - 1, ()),
            finding.block,
            finding.thread,
            finding.step,
            seed,
        )
        for finding in raw
    )
    # One line may be several instructions.
    return tuple(
        finding
        for finding in findings
        if finding.kind != "divergence" or not finding.other_lines or finding.lines != finding.other_lines
    )


def lines_of(library: Path, offsets: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the lines of the kernel's text for each instruction, from the innermost inlined function outwards."""
    program = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if program is None:
        return [() for _ in offsets]
    command = [program, "--addresses", "--inlines", f"--exe={library}", *map(hex, offsets)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    chains: list[tuple[int, ...]] = []
    for line in answer.splitlines():
        if line.startswith("0x"):
            chains.append(())
        elif "kernel.cu:" in line:
            number = line.rpartition("kernel.cu:")[2].split()[0]
            chains[-1] += (int(number),) if number.isdigit() else ()
    return chains if len(chains) == len(offsets) else [() for _ in offsets]


def call_chain(lines: tuple[int, ...]) -> str:
    """Return the lines of an instruction and of the calls that it is inlined in, in words."""
    return " from ".join(map(str, lines[:3])) or "unknown"
