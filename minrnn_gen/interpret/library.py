"""A kernel compiled for the host, launched as on a GPU."""

from __future__ import annotations

import ctypes
import functools
import struct
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minrnn_gen.build.store import Store
from minrnn_gen.codegen.signature import suffixes_of
from minrnn_gen.interpret.findings import Finding, RawFinding, resolved
from minrnn_gen.interpret.toolchain import compiled
from minrnn_gen.plan.kernel_plan import KernelPlan


@dataclass(frozen=True)
class Memory:
    """An array that a kernel may touch: its address, and whether it has values before the launch."""

    name: str
    address: int
    size_bytes: int
    is_given: bool


@dataclass(frozen=True)
class EmulatedKernel:
    """The kernels of one plan on the host; one launch at a time, others wait."""

    plan: KernelPlan
    _library: ctypes.CDLL = field(repr=False)
    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def launch(
        self, blocks: int, arguments: Sequence[Any], seed: int, memory: Iterable[Memory] = (), part: str = ""
    ) -> tuple[Finding, ...]:
        """Run a grid until it ends or cannot go on, and return the findings.

        `arguments` are integers (pointers as addresses), or floats, Python's or NumPy's. Without `memory` the kernel may touch
        any address, and only shared memory is watched.
        """
        library, entry = self._library, f"{self.plan.symbol}{part}".encode()
        expected = library.minrnn_arguments(entry)
        assert len(arguments) == expected, f"{len(arguments)} arguments are given, {expected} are expected"
        words = (ctypes.c_longlong * len(arguments)).from_buffer_copy(b"".join(map(_packed, arguments)) or bytes(8))
        variables = self.plan.variables
        with self._lock:
            library.minrnn_forget_arrays()
            for region in memory:
                library.minrnn_add_array(region.name.encode(), region.address, region.size_bytes, region.is_given)
            count = library.minrnn_launch(
                entry,
                blocks,
                self.plan.launch.threads,
                variables.get("cluster_blocks", 1),
                self.plan.is_cooperative,
                self.plan.budget.shared_bytes,
                words,
                seed,
            )
            raw = [RawFinding.from_buffer_copy(library.minrnn_finding(index).contents) for index in range(count)]
        return resolved(raw, self.path, self.plan.entry, seed)


def emulated_kernel(source: str, plan: KernelPlan, store: Store) -> EmulatedKernel:
    """Return a plan's kernel, its unchanged text compiled for the host.

    Raises ToolchainMissing without a C++ compiler, CompileFailed for a text that it refuses.
    """
    entries = [f"{plan.symbol}{part}" for part in suffixes_of(plan.entry)]
    content = compiled(source, entries, plan.problem.storage_dtype == "bfloat16", store)
    # Loaded from a file of its own, so that every kernel has its own machine and the store may drop its entry meanwhile.
    with tempfile.NamedTemporaryFile(dir=_folder().name, suffix=".so", delete=False) as file:
        file.write(content)
    path = Path(file.name)
    library = ctypes.CDLL(str(path))
    word, pointer = ctypes.c_ulonglong, ctypes.c_void_p
    library.minrnn_add_array.argtypes = (ctypes.c_char_p, pointer, word, ctypes.c_int)
    unsigned = ctypes.c_uint
    library.minrnn_launch.argtypes = (
        ctypes.c_char_p, unsigned, unsigned, unsigned, ctypes.c_int, word, ctypes.POINTER(ctypes.c_longlong), word,
    )  # fmt: skip
    library.minrnn_finding.restype = ctypes.POINTER(RawFinding)
    return EmulatedKernel(plan, library, path)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the libraries that this process loads, deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="minrnn_gen_", ignore_cleanup_errors=True)


def _packed(argument: Any) -> bytes:
    if isinstance(argument, float) or getattr(getattr(argument, "dtype", None), "kind", "") == "f":
        return struct.pack("d", argument)
    return struct.pack("q", int(argument)) if int(argument) < 1 << 63 else struct.pack("Q", int(argument))
