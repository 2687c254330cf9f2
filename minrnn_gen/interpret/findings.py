"""What went wrong in a kernel that ran on the host, in one sentence each."""

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
        ("at", ctypes.c_uint64),
        ("other_at", ctypes.c_uint64),
        ("block", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind, what happened, and where.

    `lines` are those of the kernel's text, the place itself first, then the places it was called from; `other_lines` of the
    access that it collides with. `seed` repeats it.
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
        where = f"{self.kernel}.cu, line {_called(self.lines)}"
        other = f" (there in line {_called(self.other_lines)})" if self.other_lines else ""
        who = f"thread {self.thread} of block {self.block}"
        return f"{self.kind}: {where}: {who} {self.what}{other}, at step {self.step} of seed {self.seed}"


class KernelMisbehaved(MinrnnError):
    """A kernel that ran on the host did what it must not; `findings` has all of it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(f"{findings[0]}{more}")
        self.findings = tuple(findings)


def resolved(raw: Sequence[RawFinding], library: Path, kernel: str, seed: int) -> tuple[Finding, ...]:
    """Return findings with the lines of the kernel's text that their places in `library` come from."""
    # A return address is behind the call: the line is that of the byte before.
    places = sorted({place - 1 for one in raw for place in (one.at, one.other_at) if place})
    lines = dict(zip(places, _lines(library, places), strict=True)) if places else {}
    found = (
        Finding(
            one.kind.decode(),
            one.text.decode(errors="replace"),
            kernel,
            lines.get(one.at - 1, ()),
            lines.get(one.other_at - 1, ()),
            one.block,
            one.thread,
            one.step,
            seed,
        )
        for one in raw
    )
    # One place in the text may be several in the code.
    return tuple(one for one in found if one.kind != "parted" or not one.other_lines or one.lines != one.other_lines)


def _lines(library: Path, places: Sequence[int]) -> list[tuple[int, ...]]:
    """Return, for each place, the lines in the kernel's text, from the innermost function that is inlined there outwards."""
    program = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if program is None:
        return [() for _ in places]
    command = [program, "--addresses", "--inlines", f"--exe={library}", *map(hex, places)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: list[tuple[int, ...]] = []
    for line in answer.splitlines():
        if line.startswith("0x"):
            found.append(())
        elif "kernel.cu:" in line:
            number = line.rpartition("kernel.cu:")[2].split()[0]
            found[-1] += (int(number),) if number.isdigit() else ()
    return found if len(found) == len(places) else [() for _ in places]


def _called(lines: tuple[int, ...]) -> str:
    return " from ".join(map(str, lines[:3])) or "unknown"
