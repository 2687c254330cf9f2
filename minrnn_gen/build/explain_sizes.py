"""Kernels of a pass for all sizes in words: the choice for a call, with its reason, and the grid of all choices."""

from __future__ import annotations

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.explain import variables_in_words
from minrnn_gen.plan.kernel_plan import Specialization, total_us
from minrnn_gen.plan.problem import KernelPass, Problem, Sizes
from minrnn_gen.plan.size_classes import SizeClasses, SizedKernel, predicted_us, rows_in_memory

# The places of the grid that are shown: every fourth power of two, as a page has room for.
SHOWN_BATCHES = tuple(4**power for power in range(7))
SHOWN_TIMES = tuple(4**power for power in range(11))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def explain_sizes(builder: Builder, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> str:
    """Return why a call of these sizes gets its kernel: each prediction, and that of the best kernel for these sizes alone."""
    classes = builder.classes(kernel_pass, specialization)
    key = builder.key_of(kernel_pass, specialization, sizes)
    problem = builder.problem_of(classes.cell, key)
    chosen, own = classes.sizes.choose(problem), builder.solve(key)
    own_us = float(total_us(own.family.predicted_us(own.problem, own.candidates[0])))
    lines = [f"sizes: batch {sizes.batch}, time {key.sizes.time}, as predicted, in us"]
    predicted = [(predicted_us(problem, kernel), kernel) for kernel in classes.sizes.kernels]
    for us, kernel in sorted(predicted, key=lambda pair: pair[0]):
        mark = "  <- runs" if kernel is chosen else ""
        lines.append(f"  {us:10.2f}  {_words(kernel)}{mark}")
    lines.append(f"  {own_us:10.2f}  the best for these sizes alone: {variables_in_words(own.candidates[0])}")
    if chosen.is_measured:
        lines.append("  it was measured as the fastest near these sizes, which counts for more than a prediction")
    return "\n".join(lines)


def explain_classes(builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> str:
    """Return the kernels of a pass, and a table of the sizes that each serves."""
    classes = builder.classes(kernel_pass, specialization)
    problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization))
    letters = dict(zip(map(id, classes.sizes.kernels), LETTERS, strict=False))
    lines = [
        f"{problem.cell.name}, hidden_size {problem.hidden_size}, {problem.precision.name}, layout {problem.layout}: "
        f"{kernel_pass} for all sizes, rows aligned to {specialization.alignment_bytes} bytes",
        *(f"  {letters[id(kernel)]}  {_words(kernel)}" for kernel in classes.sizes.kernels),
        f"  every size is within {100 * classes.sizes.predicted_loss:.1f} % of its best kernel, as predicted",
        "",
        *_table(problem, classes.sizes, letters),
    ]
    return "\n".join(lines)


def _table(problem: Problem, classes: SizeClasses, letters: dict[int, str]) -> list[str]:
    times = SHOWN_TIMES[:1] if problem.kernel_pass == "step" else SHOWN_TIMES
    width = len(str(times[-1])) + 1
    lines = [f"{'batch':>8}  {'time':<4}" + "".join(f"{time:>{width}}" for time in times)]
    rows_most = rows_in_memory(problem)
    for batch in SHOWN_BATCHES:
        # Sizes that exceed every memory are left out.
        row = [letters[id(classes.choose(problem.at(batch, time)))] if batch * time <= rows_most else "" for time in times]
        lines.append(f"{batch:>8}      " + "".join(f"{letter:>{width}}" for letter in row).rstrip())
    return lines


def _words(kernel: SizedKernel) -> str:
    why = "measured" if kernel.is_measured else "planned"
    sizes = f"batch {kernel.sizes.batch}, time {kernel.sizes.time}"
    return f"{kernel.family}, {why} for {sizes}: {variables_in_words(kernel.variables)}"
