"""The kernels with which a backward ends, compiled once for an architecture and a precision, whatever the cell."""

from __future__ import annotations

import threading

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.store import digest, package_digest
from minrnn_gen.codegen.gradients import GRADIENTS
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.precision import precision_of

_NAME = f"{GRADIENTS}.cubin"
# By architecture and dtypes; None where there is no compiler.
_cubins: dict[tuple[str, str, str, bool], bytes | None] = {}
_lock = threading.Lock()


class GradientCubin:
    """The cubin of these kernels for the GPU and the precision of a builder; may be used from several threads."""

    def __init__(self, builder: Builder) -> None:
        precision, profile = precision_of(builder.spec.precision), builder.target.profile
        self.arch = f"sm_{profile.compute_capability.replace('.', '')}"
        self._key = (self.arch, precision.storage_dtype, precision.arithmetic_dtype, profile.has_bf16_arithmetic)
        self._store = builder.store

    def find(self) -> bytes | None:
        """Return the cubin; None without a compiler, or while another thread, started here, compiles it."""
        if self._key not in _cubins and _lock.acquire(blocking=False):
            try:
                is_there = self._key in _cubins or self._make(compiles=False)
            finally:
                _lock.release()
            if not is_there:
                self.build_ahead()
        return _cubins.get(self._key)

    @property
    def is_made(self) -> bool:
        """Whether the result of `find` is final."""
        return self._key in _cubins

    def build_ahead(self) -> None:
        """Start another thread that loads the cubin from the store or compiles it."""
        if not self.is_made:
            threading.Thread(target=self.build, name=f"minrnn_gen {GRADIENTS}").start()

    def build(self) -> None:
        """Compile the cubin, unless it is made."""
        with _lock:
            if self._key not in _cubins:
                self._make(compiles=True)

    def _make(self, compiles: bool) -> bool:
        """Load the cubin from the store, else compile it; say whether it is made."""
        entry = self._store.find(self._entry_key, lambda entry: entry.files[_NAME])
        if entry is None and compiles:
            from minrnn_gen.build.nvrtc import compile_source
            from minrnn_gen.codegen.render import Gradients, Types, render_gradients

            plan = Gradients(Types(*self._key))
            try:
                cubin = compile_source(render_gradients(plan), plan).cubin
            except ToolchainMissing:
                _cubins[self._key] = None
                return True
            manifest = {"model": GRADIENTS, "pass": "backward", "arch": self.arch}
            entry = self._store.put(self._entry_key, {_NAME: cubin}, manifest)
        if entry is not None:
            _cubins[self._key] = entry.files[_NAME]
        return entry is not None

    @property
    def _entry_key(self) -> str:
        """The key in the store, from everything that decides the text: rendering the text takes longer than a lookup."""
        text = (package_folder("templates") / "export" / "cuda_gradients.cu.j2").read_bytes()
        return digest(package_digest(), text, *map(str, self._key), toolchain_version() or "")
