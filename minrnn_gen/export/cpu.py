"""Export for the CPU: the native code of a spec as C, and calls that run it, printed from their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.codegen.c_names import with_prefix
from minrnn_gen.codegen.cpu_source import CpuPass, NativePlan, cpu_source, pool_source
from minrnn_gen.export.emit_c import Printer, called_in, joined, number_in_c
from minrnn_gen.export.host_calls import HostCalls
from minrnn_gen.export.source import ExportSource, left_out_of, rendered
from minrnn_gen.export.widened import wide_code, widened
from minrnn_gen.program import data
from minrnn_gen.program.data import At
from minrnn_gen.program.number import Decisions
from minrnn_gen.run.cpu.native import NativeKernels
from minrnn_gen.run.cpu.threads import MULTIPLY_ADDS_LEAST, Schedule


class HostPrinter(Printer):
    """The functions of an export for the CPU.

    A launch sets only those members of a structure that differ from the previous launch.
    """

    takes_numbers = False

    def __init__(self, source: ExportSource, plans: Mapping[CpuPass, NativePlan]) -> None:
        super().__init__(source)
        self._plans = plans

    def saved(self, calls: HostCalls) -> str:
        """Return the body that lays out the arrays that a forward keeps for a backward."""
        lines = [*self._rooms(calls.saved(), "room")]
        return self.with_symbols(lines, self.head if lines else ())

    def schedule(self, paths: tuple[tuple[Decisions, Schedule], ...]) -> str:
        """Return the body that says how threads share a call."""
        lines = [
            (decisions, [f"schedule.{name} = {number_in_c(number)};" for name, number in schedule._asdict().items()])
            for decisions, schedule in paths
        ]
        return self.with_symbols([*joined(lines), "return schedule;"], ("struct Schedule schedule;",))

    def _path(self, operations: tuple[Any, ...]) -> Iterator[str]:
        before: dict[str, str] = {}
        for operation in operations:
            if not isinstance(operation, data.Launch):
                yield self._operation(operation)
                continue
            kernel_pass: Any = operation.kernel.key
            for field, argument in zip(self._plans[kernel_pass].fields, operation.arguments, strict=True):
                text = self._source(argument)
                if text != before.get(field.name, "0"):
                    before[field.name] = text
                    yield f"launch.{field.name} = {f'POINTER({text})' if isinstance(argument, At) else text};"
            yield f"launch_{kernel_pass}(run, &launch);"


@dataclass(frozen=True)
class HostCode:
    """Context of the template of NAME.c for the CPU in addition to the interface: bodies of functions.

    `schedules` and `programs` are those of the passes; `rooms_most`: the most rooms of a pass.
    """

    saved: str
    schedules: Mapping[CpuPass, str]
    programs: Mapping[CpuPass, str]
    rooms_most: int

    @property
    def calls(self) -> frozenset[str]:
        """Functions that the bodies call."""
        return called_in([self.saved, *self.schedules.values(), *self.programs.values()])


def cpu_export(name: str, native: NativeKernels, training: bool, embedding: Embedding | None = None) -> ExportSource:
    """Return the export of a spec, whose calls `native` serves; `embedding` maps these calls to native's own."""
    spec = native.builder.spec
    source = ExportSource(
        name,
        "cpu",
        native.interface,
        ("forward", "backward") if training else ("forward",),
        kept_states=native.plan("backward").kept_states if training else (),
        left_out=left_out_of(native.interface),
        takes_logarithms=spec.scan_arithmetic == "log",
    )
    return widened(source, name, embedding)


def cpu_code(source: ExportSource, header: tuple[str, ...], native: NativeKernels) -> str:
    """Return NAME.c: the threads, the passes, and the functions of NAME.h."""
    plans: dict[CpuPass, NativePlan] = {"forward": native.plan("forward")}
    if source.has_backward:
        plans["backward"] = native.plan("backward")
    code = _printed(HostCalls(source, plans, native.clip), HostPrinter(source, plans))
    texts = {kernel_pass: cpu_source(plan) for kernel_pass, plan in plans.items()}
    if source.interface.input_size or source.accumulates:
        texts["forward"] += rendered("cpu_products.c.j2", (), plan=source, least=MULTIPLY_ADDS_LEAST)
    texts = {kernel_pass: with_prefix(text, f"{kernel_pass}_") for kernel_pass, text in texts.items()}
    threads = with_prefix(pool_source(), "threads_")
    return rendered("cpu.c.j2", header, plan=source, wide=wide_code(source), code=code, threads_text=threads, texts=texts)


def _printed(calls: HostCalls, printer: HostPrinter) -> HostCode:
    described = {"forward": calls.forward, "backward": calls.backward}
    programs = {kernel_pass: printer.body(described[kernel_pass]()) for kernel_pass in calls.plans}
    schedules = {kernel_pass: printer.schedule(calls.schedule(kernel_pass)) for kernel_pass in calls.plans}
    saved = printer.saved(calls) if calls.source.has_backward else ""
    return HostCode(saved, schedules, programs, len(printer.rooms))
