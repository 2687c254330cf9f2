"""The handler of XLA's custom calls in C, where there is a compiler: it runs calls that were published, without Python.

It is compiled against the header that jaxlib ships, when a program is first compiled, and kept in the store. It passes
unpublished calls, and everything else it cannot do, to the handler in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from minrnn_gen.build.ffi_handler import handler_library, why_no_handler
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.errors import CompileFailed, ToolchainMissing
from minrnn_gen.run.cpu import c_program

# The device of host memory.
ON_HOST = -1
_WHERE = {"cpu": 0, "CUDA": 1}
_SOURCE = Path(__file__).with_name("handler.c")
LOG = logging.getLogger("minrnn_gen")


class Layout(NamedTuple):
    """Layout of a call's buffers: how many `slots`, those of operands and results, and those in a workspace, with offsets.

    Addresses of buffers are multiples of `alignment` bytes.
    """

    slots: int
    operand_slots: tuple[int, ...]
    result_slots: tuple[int, ...]
    scratch: tuple[tuple[int, int], ...] = ()
    workspace_bytes: int = 0
    alignment: int = 1

    def check(self) -> None:
        """Raise ValueError for numbers that C cannot compute with: it checks none of them."""
        slots = (*self.operand_slots, *self.result_slots, *(slot for slot, _ in self.scratch))
        sizes = (self.workspace_bytes, *(offset for _, offset in self.scratch))
        if not all(0 <= slot < self.slots for slot in slots) or not 0 <= self.slots < 2**31:
            raise ValueError(f"a buffer has a slot of {slots}; allowed: 0 to {min(self.slots, 2**31) - 1}")
        if not all(0 <= size < 2**62 for size in sizes) or not 1 <= self.alignment < 2**31:
            raise ValueError(f"sizes are {sizes}, aligned to {self.alignment}; allowed: 0 to 2**62, aligned to 1 byte or more")


class _Call(ctypes.Structure):
    """Call of handler.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("digest", "device")),
        *((name, ctypes.c_void_p) for name in ("program", "handle")),
        *((name, ctypes.c_int64) for name in ("slots", "operand_count", "result_count", "scratch_count")),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "alignment")),
        *((name, ctypes.c_void_p) for name in ("operand_slots", "result_slots", "scratch_slots", "scratch_offsets", "next")),
    )


@dataclass(frozen=True)
class CHandler:
    """The loaded library, and the memory that its calls point to."""

    library: Any
    _held: list[Any] = field(default_factory=list)

    def address(self, platform: str, python: int | None) -> int | None:
        """Return the address of a platform's handler, which passes the calls that it cannot run to a handler in Python."""
        self.library.set_python(_WHERE[platform], python)
        handle = self.library.handle_on_host if platform == "cpu" else self.library.handle_on_device
        return ctypes.cast(handle, ctypes.c_void_p).value

    def publish(self, digest: int, device: int, layout: Layout, program: object, handle: int = 0) -> None:
        """Run a call here from now on: a `program` of trip.c, with a handle of cuBLAS where it multiplies."""
        layout.check()
        scratch_slots, offsets = zip(*layout.scratch, strict=True) if layout.scratch else ((), ())
        arrays = [_integers(values) for values in (layout.operand_slots, layout.result_slots, scratch_slots, offsets)]
        call = _Call(
            digest,
            device,
            c_program.address_of(program),
            handle or None,
            layout.slots,
            *(len(values) for values in (layout.operand_slots, layout.result_slots, layout.scratch)),
            layout.workspace_bytes,
            layout.alignment,
            *(ctypes.addressof(array) for array in arrays),
            None,
        )
        self._held.extend((call, arrays, program))
        self.library.publish(ctypes.byref(call))

    def withdraw_all(self) -> None:
        """Let Python run all calls again."""
        self.library.withdraw_all()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let Python run all calls within."""
        self.library.set_paused(1)
        try:
            yield
        finally:
            self.library.set_paused(0)

    @property
    def served(self) -> int:
        """The number of calls that ran here."""
        return int(self.library.served_count())


def why_no_c_handler() -> str:
    """Return why XLA's custom calls run in Python here, as a part of a sentence; nothing where they may run in C."""
    return why_no_handler() or ("" if c_program.is_there() else "the package was installed without its C part")


@functools.cache
def c_handler() -> CHandler | None:
    """Return the handler in C, compiled the first time; None where calls run in Python."""
    if why_no_c_handler():
        return None
    text = _SOURCE.read_text(encoding="utf-8").replace('#include "program.h"\n', c_program.header())
    try:
        library = handler_library(text, Store(cache_folder()))
    except (CompileFailed, ToolchainMissing) as failed:
        LOG.warning("%s; calls of XLA run in Python", failed)
        return None
    library.set_python.argtypes, library.set_python.restype = (ctypes.c_int, ctypes.c_void_p), None
    library.set_paused.argtypes, library.set_paused.restype = (ctypes.c_int,), None
    library.publish.argtypes, library.publish.restype = (ctypes.c_void_p,), None
    library.withdraw_all.argtypes, library.withdraw_all.restype = (), None
    library.served_count.argtypes, library.served_count.restype = (), ctypes.c_int64
    return CHandler(library)


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(1, len(values)))(*values)
