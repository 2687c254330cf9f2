"""Export for the CPU: the native code of a spec as C."""

from __future__ import annotations

from minrnn_gen.codegen.cpu_vectors import CHUNK_STEPS
from minrnn_gen.export.source import ExportSource, cpu_text
from minrnn_gen.run.cpu import threads
from minrnn_gen.run.cpu.native import NativeKernels


def cpu_export(name: str, native: NativeKernels, training: bool) -> ExportSource:
    """Return what is exported of a spec."""
    interface = native.interface
    left_out: tuple[str, ...] = ()
    if training and native.builder.cell.arguments:
        training = False
        left_out += ("a backward through rounds of products cannot be exported for the cpu; it can for cuda",)
    if len(interface.runs_reversed) > 1:
        left_out += ("a single step of a bidirectional spec cannot be exported, since it runs one way",)
    passes: tuple[str, ...] = ("forward",)
    kept: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    if training:
        plan = native.plan("backward")
        passes, read, kept = ("forward", "backward"), plan.saved_states, plan.kept_states
    is_wide = interface.precision.storage_dtype == interface.precision.arithmetic_dtype
    reads_lines = interface.heads == 1 and interface.head_dim % threads.PANEL_UNITS == 0 and is_wide
    limits = {
        "multiply_adds_least": threads.MULTIPLY_ADDS_LEAST,
        "step_multiply_adds_least": threads.STEP_MULTIPLY_ADDS_LEAST,
        "pointwise_multiply_adds": threads.POINTWISE_MULTIPLY_ADDS,
        "core_cache_bytes": threads.CORE_CACHE_BYTES,
        "rows_at_once": threads.ROWS_AT_ONCE,
        "rows_read_least_forward": threads.ROWS_READ_LEAST["forward"],
        "rows_read_least_backward": threads.ROWS_READ_LEAST["backward"],
        "backward_always_packs": not reads_lines,
        "chunk_steps": CHUNK_STEPS,
    }
    spec = native.builder.spec
    return ExportSource(
        name,
        "cpu",
        interface,
        passes,
        spec.recurrent_gradient_clip,
        kept,
        read,
        limits,
        left_out,
        takes_logarithms=spec.scan_arithmetic == "log",
    )


def cpu_code(source: ExportSource, header: tuple[str, ...], native: NativeKernels) -> str:
    """Return NAME.c."""
    return cpu_text(source, header, native.plan("forward"), native.plan("backward") if source.has_backward else None)
