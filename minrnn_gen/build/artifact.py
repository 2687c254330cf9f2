"""One compiled kernel, written to the cache and read back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minrnn_gen.build.entry import Entry
from minrnn_gen.build.nvrtc import OPTIONS, KernelResources, toolchain_version
from minrnn_gen.build.sealing import UNREADABLE
from minrnn_gen.build.store import Store, digest
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import CellShape, KernelKey, PhaseShape


@dataclass(frozen=True, repr=False)
class BuiltKernel:
    """One kernel as it came from the compiler or the cache.

    `cubin` and `resources` are None where no NVRTC is installed. `dropped` lists the candidates that broke their promise.
    `chosen` is the reason for the choice where the prediction alone is none: it was measured, or the kernel spills.
    """

    plan: KernelPlan
    cell: CellShape
    source: str
    digest: str
    cubin: bytes | None
    resources: tuple[KernelResources, ...] | None
    dropped: tuple[str, ...]
    cached: bool
    seconds: float
    folder: Path | None
    chosen: str = ""

    def __repr__(self) -> str:
        """Return one line: the texts are attributes."""
        plan, cubin = self.plan, f"cubin of {len(self.cubin):,} bytes" if self.cubin else "not compiled"
        return f"BuiltKernel({plan.title}, for {plan.problem.gpu}: {self.source.count(chr(10)):,} lines of CUDA, {cubin})"

    def _repr_html_(self) -> str:
        from minrnn_gen.build.overview import overview
        from minrnn_gen.plan.summary import html_table

        return html_table({**dict(self.plan.summary), **dict(overview(self.plan, self.cell))}.items())


def kernel_digest(source: str, arch: str) -> str:
    """Return the key of a compiled text: of the text, the compiler's options, the architecture and the compiler."""
    return digest(source, " ".join(OPTIONS), arch, toolchain_version() or "")


def find_kernel(store: Store, request_key: str, key: KernelKey) -> BuiltKernel | None:
    """Return the kernel that `put_kernel` stored under the request `request_key`, or None.

    A request that does not lead to the kernel `key` is damaged, and so is an entry of another text.
    """
    started = time.perf_counter()
    request = store.find_request(request_key)
    if request is None:
        return None
    try:
        plan = KernelPlan.from_json(request["plan"])
        if KernelKey.of(plan) != key:
            raise ValueError(f"of another kernel, {plan.problem.kernel_pass}")
        cell, dropped, chosen = cell_shape_from(request["cell"]), tuple(request["dropped"]), request.get("chosen", "")
        entry = store.find(request["content"], lambda entry: _demand_kernel_of(plan, entry))
    except UNREADABLE as reason:
        store.discard_request(request_key, reason)
        return None
    if entry is None:
        return None
    return BuiltKernel(
        plan=plan,
        cell=cell,
        source=entry.files[f"{plan.entry}.cu"].decode(),
        digest=entry.key,
        cubin=entry.files[f"{plan.entry}.cubin"],
        resources=_resources(entry),
        dropped=dropped,
        cached=True,
        seconds=time.perf_counter() - started,
        folder=entry.folder,
        chosen=chosen,
    )


def _demand_kernel_of(plan: KernelPlan, entry: Entry) -> None:
    """Raise one of `UNREADABLE` for an entry that is not the compiled text of its own key, or not of the plan."""
    _ = entry.files[f"{plan.entry}.cubin"], _resources(entry)
    if kernel_digest(entry.files[f"{plan.entry}.cu"].decode(), plan.problem.arch) != entry.key:
        raise ValueError(f"{plan.entry}.cu is the text of another key")


def _resources(entry: Entry) -> tuple[KernelResources, ...]:
    return tuple(KernelResources(**kernel) for kernel in entry.manifest["resources"])


def put_kernel(store: Store, key: str, built: BuiltKernel, toolchain: str | None) -> BuiltKernel:
    """Put a compiled kernel into the store under its digest and the request `key`, and return it with its folder there."""
    if built.cubin is None or built.resources is None:
        return built
    plan = built.plan
    files = {f"{plan.entry}.cu": built.source.encode(), f"{plan.entry}.cubin": built.cubin}
    manifest = {
        "model": plan.problem.model,
        "pass": plan.problem.kernel_pass,
        "hidden_size": plan.problem.hidden_size,
        "precision": plan.problem.precision,
        "gpu": plan.problem.gpu,
        "arch": plan.problem.arch,
        "toolchain": toolchain,
        "resources": [asdict(kernel) for kernel in built.resources],
    }
    entry = store.put(built.digest, files, manifest)
    request = {"content": built.digest, "plan": plan.to_json(), "cell": asdict(built.cell), "dropped": list(built.dropped)}
    # Omitted without a measurement, so that such a request is the same with and without measuring.
    request |= {"chosen": built.chosen} if built.chosen else {}
    store.put_request(key, request)
    return replace(built, folder=entry.folder)


def cell_shape_from(data: Mapping[str, Any]) -> CellShape:
    """Read back a cell's shape from `dataclasses.asdict`."""
    names = (
        *("gates", "recurrent_gates", "states", "parameters", "saved_values", "recomputed_values"),
        *("vector_states", "vector_parameters", "shared", "means", "inputs", "varying_counts"),
    )
    nested = {name: tuple(map(tuple, data[name])) for name in ("rounds", "waits", "block_diagonal")}
    nested |= {"phases": tuple(PhaseShape(*phase) for phase in data["phases"])}
    return CellShape(**{**data, **{name: tuple(data[name]) for name in names}, **nested})
