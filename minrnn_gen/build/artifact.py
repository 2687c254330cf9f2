"""One kernel as it came from the compiler, into the cache and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minrnn_gen.build.nvrtc import KernelResources
from minrnn_gen.build.store import Entry, Store
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import CellShape


@dataclass(frozen=True)
class BuiltKernel:
    """One kernel as it came from the compiler or the cache.

    `cubin` and `resources` are None where no NVRTC is installed. `dropped` lists the candidates that broke their promise.
    `chosen` is why it was taken, where it was measured rather than predicted.
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


def built_from(request: Mapping[str, Any], entry: Entry, seconds: float) -> BuiltKernel:
    """Return the kernel of a request that `put_kernel` wrote and of the entry it points to."""
    plan = KernelPlan.from_json(request["plan"])
    return BuiltKernel(
        plan=plan,
        cell=cell_shape_from(request["cell"]),
        source=entry.files[f"{plan.entry}.cu"].decode(),
        digest=entry.key,
        cubin=entry.files[f"{plan.entry}.cubin"],
        resources=tuple(KernelResources(**kernel) for kernel in entry.manifest["resources"]),
        dropped=tuple(request["dropped"]),
        cached=True,
        seconds=seconds,
        folder=entry.folder,
        chosen=request.get("chosen", ""),
    )


def put_kernel(store: Store, key: str, built: BuiltKernel, toolchain: str | None) -> BuiltKernel:
    """Put a compiled kernel into the store under its digest and the request `key`, and return it with its folder there."""
    if built.cubin is None or built.resources is None:
        return built
    plan = built.plan
    files = {f"{plan.entry}.cu": built.source.encode(), f"{plan.entry}.cubin": built.cubin}
    manifest = {
        "model": plan.model,
        "pass": plan.kernel_pass,
        "hidden_size": plan.hidden_size,
        "precision": plan.precision,
        "gpu": plan.gpu,
        "arch": plan.arch,
        "toolchain": toolchain,
        "resources": [asdict(kernel) for kernel in built.resources],
    }
    entry = store.put(built.digest, files, manifest)
    request = {"content": built.digest, "plan": plan.to_json(), "cell": asdict(built.cell), "dropped": list(built.dropped)}
    # Where nothing was measured it is not said, so that such a request is the same with and without measuring.
    request |= {"chosen": built.chosen} if built.chosen else {}
    store.put_request(key, request)
    return replace(built, folder=entry.folder)


def cell_shape_from(data: Mapping[str, Any]) -> CellShape:
    """Read back what `dataclasses.asdict` gave of a cell's shape."""
    names = ("gates", "recurrent_gates", "states", "parameters", "saved_values", "recomputed_values")
    return CellShape(**{**data, **{name: tuple(data[name]) for name in names}})
