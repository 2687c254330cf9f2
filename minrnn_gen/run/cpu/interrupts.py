"""Signals during native code: a call of the main thread checks them ten times a second, and ends where a handler raises."""

from __future__ import annotations

import ctypes
import threading


def _address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


_RELEASE, _ACQUIRE, _PENDING = map(_address, ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_CheckSignals"))


def interpreter() -> tuple[int, int, int]:
    """Return `release`, `acquire` and `pending` of a kernel's call on this thread; only the main thread has signals."""
    is_main = threading.get_ident() == threading.main_thread().ident
    return _RELEASE, _ACQUIRE, _PENDING if is_main else 0
