"""Compiled kernels as tables for people and as entries of a JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minrnn_gen.build import BuiltKernel

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def kernel_entries(built: tuple[BuiltKernel, ...]) -> list[dict[str, Any]]:
    """Return what the compiler reported of each kernel beside what its plan promised."""
    return [
        {
            "name": kernel.name,
            "pass": one.plan.kernel_pass,
            "digest": one.digest,
            "registers": kernel.registers,
            "registers_expected": one.plan.registers_per_thread,
            "registers_estimated": one.plan.registers_estimated,
            "shared_bytes": kernel.shared_bytes,
            "shared_bytes_expected": one.plan.shared_bytes,
            "spill_bytes": kernel.spill_bytes,
        }
        for one in built
        for kernel in one.resources or ()
    ]


def title(built: BuiltKernel) -> Text:
    """Return the line that says what was compiled for what."""
    from rich.text import Text

    plan = built.plan
    return Text.assemble(
        (plan.model, "bold"),
        f", hidden_size {plan.hidden_size}, {plan.precision}, layout {plan.layout}, for ",
        (plan.gpu, "bold"),
        f" ({plan.arch})",
    )


def facts(rows: list[tuple[str, str]]) -> Table:
    """Return labelled sentences, one below the other."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in rows:
        table.add_row(label, text)
    return table


def decision(built: BuiltKernel) -> list[tuple[str, str]]:
    """Return the rows that say what the solver chose, and from what."""
    plan = built.plan
    chosen = ", ".join(f"{name} {value}" for name, value in plan.variables.items())
    rejected = sum(plan.rejected.values())
    rows = [
        ("decision", chosen),
        ("", f"best predicted of {plan.candidate_count:,} candidates that fit; {rejected:,} do not"),
    ]
    if built.dropped:
        rows.append(("", f"{len(built.dropped)} better predicted ones broke their promise when compiled"))
    return rows


def resources(built: tuple[BuiltKernel, ...]) -> Table:
    """Return the resources the compiler reported, each beside what the plan promised."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    for heading in ("registers per thread", "shared memory per block, bytes", "spilled, bytes"):
        table.add_column(heading, justify="right")
    for one in built:
        for kernel in one.resources or ():
            table.add_row(
                kernel.name,
                f"{kernel.registers} of {one.plan.registers_per_thread}",
                f"{kernel.shared_bytes:,} of {one.plan.shared_bytes:,}",
                f"{kernel.spill_bytes}",
            )
    return table


def origin(built: tuple[BuiltKernel, ...], seconds: float) -> str:
    """Say whether the kernels were compiled or found, and how long that took."""
    return f"from the cache in {seconds:.2f} s" if all(one.cached for one in built) else f"compiled in {seconds:.2f} s"
