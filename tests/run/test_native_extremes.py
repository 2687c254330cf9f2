"""Integers of any size that come from Python into C are refused or taken, and nothing in between overflows."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.native_part import hatch_build
from support.patience import within

ROOT = Path(__file__).resolve().parents[2]
# Of gcc and of clang: undefined behaviour ends the process, without a library of the sanitizer's.
TRAPS = ("-fsanitize-undefined-trap-on-error", "-fno-sanitize=function -fsanitize-trap=undefined")
EXTREMES = (-(2**100), -(2**63), -(2**63) + 1, -(2**31), -2, -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 2, 2**63 - 1, 2**64 - 1)
ADDRESSES = (-(2**63), -1, 0, 2**62, 2**63 - 1)


def operations(function: int) -> Iterator[tuple[Any, ...]]:
    """Return operations of each kind, in which one integer after the other is extreme."""
    patches = ((0, 0, 8, 1, 16, 4),)
    plain = (
        (0, function, 1, 32, 0, False, bytes(16), patches),
        (1, (1, 1, 1, 0, 0), (0, 0, 1, 0, 0), (0, 0, 1, 1, 0), (0, 0, 1, 0, 0), 0, 0, False, False, (-1, 0, 0)),
        (2, 0, 8, 0, 16),
        (3, 0, 0, 1, 0, 1, 1, 8),
        (4, function, bytes(16), patches, 0, 8),
    )

    def changed(value: Any, extreme: int) -> Iterator[Any]:
        if isinstance(value, tuple):
            for place, part in enumerate(value):
                yield from ((*value[:place], other, *value[place + 1 :]) for other in changed(part, extreme))
        elif type(value) is int:
            yield extreme

    for operation, extreme in itertools.product(plain, EXTREMES):
        for body in changed(operation[1:], extreme):
            # No kernel lies at any other address, and a copy of so many gates does not end.
            if (operation[0] in (0, 4) and body[0] != function) or (operation[0] == 3 and not 0 <= body[4] < 2):
                continue
            yield (operation[0], *body)


def run_all(path: str) -> None:
    """Make a program of each operation and run it, with functions that do nothing, on extreme addresses."""
    loader = importlib.machinery.ExtensionFileLoader("minrnn_gen.native._trip", path)
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    part = importlib.util.module_from_spec(spec)
    loader.exec_module(part)
    nothing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    function = ctypes.cast(nothing, ctypes.c_void_p).value
    assert function is not None
    taken = refused = 0
    for operation in operations(function):
        try:
            program = part.program((function,) * 7, (operation,))
        except (ValueError, OverflowError):
            refused += 1
            continue
        for addresses in itertools.product(ADDRESSES, repeat=2):
            try:
                part.run(program, [*addresses], 0, 0, 0)
                taken += 1
            except ValueError:  # fewer arrays than a slot asks for
                break
    assert taken > 1000 and refused > 100, (taken, refused)
    print("whole")


def test_no_integer_from_python_overflows_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, target = hatch_build(), tmp_path / "_trip.abi3.so"
    for trap in TRAPS:
        monkeypatch.setenv("CC", f"cc -fsanitize=undefined {trap}")
        if not (why_not := build.why_not(ROOT / build.SOURCE, target)):
            break
    else:
        pytest.skip(why_not)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    ran = subprocess.run(
        [sys.executable, __file__, str(target)], capture_output=True, text=True, timeout=within(300), check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "whole\n"), f"a signal is undefined behaviour: {ran.stderr}"


if __name__ == "__main__":
    run_all(sys.argv[1])
