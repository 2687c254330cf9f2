"""Kernels exported for GPUs run on a CPU: their text by the emulated machine, below a driver and a cuBLAS without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.exported_launches import OTHER_KERNELS, hash_of

from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.codegen.signature import names_of, signature, suffixes_of
from minrnn_gen.export.cuda import cuda_export
from minrnn_gen.export.cuda_code import CudaCode, ExportedGpu
from minrnn_gen.export.folder import targets_of
from minrnn_gen.export.source import MOVES, MOVES_SLOTS, ExportSource
from minrnn_gen.interpret.toolchain import compiled
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes


def exported_of(
    kernel: Kernel, sizes: Sequence[tuple[int, int]], gpus: Sequence[str], without: tuple[str, ...] = ()
) -> tuple[ExportSource, CudaCode]:
    """Return what NAME.h and NAME.c of an export of sizes for GPUs are made of."""
    serving, embedding = kernel.embedded or kernel, getattr(kernel.executor, "embedding", None)
    targets, pairs = targets_of(serving.builder, gpus), tuple(Sizes(*pair) for pair in sizes)
    source, code = cuda_export(
        "rnn_cell", serving.interface, serving.builder, targets, pairs, partial=True, without=without, embedding=embedding
    )
    return source.served, code


def emulated_kernels(folder: Path, kernel: Kernel, code: CudaCode) -> Path:
    """Compile the kernels of an export for the host into a folder, each by the hash of its cubin, and return the folder."""
    to, builder = folder / "kernels", (kernel.embedded or kernel).builder
    to.mkdir()
    is_bfloat16 = kernel.interface.precision.storage_dtype == "bfloat16"
    for exported in code.kernels:
        built, plan = exported.built, exported.plan
        names = names_of(builder.lowered_for(plan.problem.kernel_pass))
        has_float = plan.problem.arithmetic_dtype == "float32"
        floats = [
            at
            for at, one in enumerate(signature(plan, names, suffixes_of(plan.entry)[0]))
            if one.ctype == "compute_t" and has_float
        ]
        assert built.cubin is not None
        library = compiled(built.source, exported.entries, is_bfloat16, builder.store)
        _write(to, built.cubin, library, exported.cluster_blocks, floats)
    for gpu in code.gpus:
        if gpu.gradients is not None:
            entries = (*OTHER_KERNELS, *(MOVES if code.moves else ()), *(MOVES_SLOTS if code.has_steps else ()))
            library = compiled(render_gradients(_gradients_of(kernel, gpu, code)), entries, is_bfloat16, builder.store)
            _write(to, code.images[gpu.gradients], library, 1, [])
    return to


def _write(to: Path, cubin: bytes, library: bytes, cluster_blocks: int, floats: Sequence[int]) -> None:
    (to / f"{hash_of(cubin)}.so").write_bytes(library)
    (to / f"{hash_of(cubin)}.txt").write_text(" ".join(map(str, [cluster_blocks, *floats])))


def _gradients_of(kernel: Kernel, gpu: ExportedGpu, code: CudaCode) -> Gradients:
    profile, precision = gpu.target.profile, kernel.interface.precision
    types = Types(profile.arch, precision.storage_dtype, precision.arithmetic_dtype, profile.has_bf16_arithmetic)
    return Gradients(types, moves=code.moves, slots=code.has_steps)
