"""Programs of `trip.c` for callers in C: their header and addresses, and programs of launches on this processor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from minrnn_gen.native import trip
from minrnn_gen.run.cpu.trace import LaunchOperation

_NAME = b"minrnn_gen.native.program"


def is_there() -> bool:
    """Say whether the package was installed with its C part."""
    return trip.LIBRARY is not None


def header() -> str:
    """Return the text of program.h, from which the programs here are compiled too."""
    return next(source for source in trip.SOURCES if source.name == "program.h").read_text(encoding="utf-8")


def host_program(launches: Sequence[LaunchOperation]) -> object:
    """Return launches on this processor as a program."""
    assert trip.LIBRARY is not None
    program: object = trip.LIBRARY.program((0,) * 7, tuple(launch.in_c() for launch in launches))
    return program


def address_of(program: object) -> int:
    """Return the address of a program, valid as long as the program is held."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return int(pointer_of(program, _NAME))
