"""A plan in words: the decision, the memory map, the slack of every constraint, the runners-up and the rejected."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.overview import overview
from minrnn_gen.errors import INSTALL_CUDA
from minrnn_gen.plan.kernel_plan import SEQUENTIAL_TERMS, KernelPlan
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.plan.summary import largest_term, term_in_words

# The instructions that multiply R, by KernelPlan.matrix_product.
PRODUCTS = {
    "mma_16bit": "tensor cores",
    "tf32x3": "tensor cores, three products in tf32 for each of fp32",
    "tf32": "tensor cores, one product in tf32",
    "fma": "fused multiply-adds",
}


def explain(built: BuiltKernel, note: str = "", memory_bytes: int | None = None) -> str:
    """Return the explanation of one built kernel as plain text.

    `note` says how the GPU was chosen; where arrays exceed `memory_bytes`, those of the GPU, a row warns.
    """
    plan = built.plan
    sections = [
        _decision(built, note, memory_bytes),
        _resources(built),
        _shared_map(plan),
        _prediction(plan),
        _margins(plan),
        _alternatives(plan),
        _rejected(built),
    ]
    return "\n\n".join(section for section in sections if section)


def in_one_line(built: BuiltKernel) -> str:
    """Return the calls that a kernel serves, and why, as one line of a log."""
    plan, problem = built.plan, built.plan.problem
    heads = f", {problem.heads} heads" if problem.heads > 1 else ""
    calls = f"{problem.model} {problem.hidden_size}{heads}, {problem.precision}, {problem.layout}: {problem.kernel_pass}"
    aligned = problem.specialization.alignment_bytes < WIDEST_COPY_BYTES
    which = "".join(f", {word}" for word in (*([_alignment(plan)] if aligned else ()), *_kinds_of_calls(plan)))
    sizes = f"planned for batch {problem.batch}, time {problem.time}"
    most = term_in_words(largest_term(plan.prediction.predicted_us))
    predicted = f"{plan.predicted_total_us:,.1f} us as predicted, most of it {most}"
    why = "; ".join(filter(None, (built.chosen, plan.prediction.passed_over, predicted)))
    came = "from the cache" if built.cached else "compiled" if built.cubin else "not compiled"
    chosen = variables_in_words(plan.variables)
    return f"minrnn-gen: {calls}{which}, {sizes}, on {problem.gpu}: {plan.symbol} of {plan.template} ({chosen}), {came}; {why}"


def variables_in_words(variables: Mapping[str, int]) -> str:
    """Return the variables of a candidate, each with its value."""
    return ", ".join(f"{name} {value}" for name, value in variables.items())


def _decision(built: BuiltKernel, note: str, memory_bytes: int | None) -> str:
    plan, why = built.plan, built.chosen
    problem, launch = plan.problem, plan.launch
    chosen = variables_in_words(plan.variables)
    return "\n".join(
        (
            f"{problem.model}, hidden_size {problem.hidden_size}, {problem.precision}, "
            f"layout {problem.layout}: {problem.kernel_pass}",
            f"  gpu        {plan.problem.gpu} ({plan.problem.arch}){note}",
            f"  template   {plan.template}",
            *_build(plan),
            *((f"  strategy   {strategy}",) if (strategy := strategy_in_words(plan)) else ()),
            f"  calls      {_specialization(plan)}",
            f"  sizes      planned for batch {plan.problem.batch}, time {plan.problem.time}; valid for all",
            f"  chosen     {chosen}",
            *((f"  because    {why}",) if why else ()),
            f"  block      {launch.threads} threads, {launch.channels_per_block} channels; "
            f"{plan.budget.blocks_per_sm} blocks per SM",
            *_values("saved      ", plan.problem.saved_values),
            *_values("recomputed ", plan.problem.recomputed_values),
            *(f"  {label:11s}{text}" for label, text in overview(plan, built.cell, memory_bytes)),
        )
    )


def _build(plan: KernelPlan) -> tuple[str, ...]:
    return ("  build      debug (MINRNN_DEBUG=1): every wait is bounded",) if plan.waits_are_bounded else ()


def strategy_in_words(plan: KernelPlan) -> str:
    """Return how a cell other than a scan runs its steps, and why a dense cell does not run them in one launch."""
    match plan.strategy:
        case "persistent":
            by = PRODUCTS[plan.problem.matrix_product]
            return f"persistent: all steps in one launch, the recurrent matrix on the chip, multiplied by {by}"
        case "projected":
            inputs = plan.problem.specialization.input_size
            return f"one launch: the product of {inputs} inputs with the weight, and the scan after it"
        case "decode" if plan.launch.partition.get("grid_blocks"):
            return (
                "decode: one step in one launch, in which the blocks of a head wait for each other; "
                "on rows of states a forward of one step serves instead where it is one launch"
            )
        case "decode":
            return "decode: one step in one launch, the recurrent matrix read once by all SMs together"
        case "stepwise" if plan.problem.kernel_pass == "step":
            return f"one step as a product and a pointwise kernel: {plan.prediction.passed_over}"
        case "stepwise":
            return f"step by step, not persistent: {plan.prediction.passed_over}"
        case "serial" if n := plan.launch.partition.get("state_size"):
            lanes = plan.variables["lanes"]
            shared = "one lane has" if lanes == 1 else f"{lanes} lanes share"
            return f"step by step: {shared} the {n} values of a channel, in registers for all steps"
        case "coupled":
            return "scan of maps: coupled states are composed over lanes, warps and blocks, then each thread runs its steps"
        case "serial":
            why = f"; {plan.prediction.passed_over}" if plan.prediction.passed_over else ""
            return f"step by step: a thread takes all steps of its channels{why}"
        case "cooperative" if segments := plan.variables.get("segments"):
            return f"a scan in time, whatever the cell: all blocks share it, each in {segments} segments, which are taken twice"
        case _:
            return ""


def _values(label: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return (f"  {label}{', '.join(names)}",) if names else ()


def _specialization(plan: KernelPlan) -> str:
    copies = plan.launch.copies_are_asynchronous and plan.launch.partition.get("copied_bytes", 1) > 0
    kind = (
        ("asynchronous copies",)
        if copies
        else ("plain copies",)
        if plan.budget.shared_bytes > 0 and "segments" not in plan.variables
        else ()
    )
    return ", ".join((_alignment(plan), *kind, *_kinds_of_calls(plan)))


def _alignment(plan: KernelPlan) -> str:
    return f"rows aligned to {plan.problem.specialization.alignment_bytes} bytes"


def _kinds_of_calls(plan: KernelPlan) -> list[str]:
    """Return in words which calls a kernel serves that a plain one doesn't."""
    specialization = plan.problem.specialization
    words = {
        "reverse": specialization.reverse,
        "resets": specialization.resets,
        f"states out in {specialization.states_out} dtype": specialization.states_out != "none",
        "packed sequences": specialization.packed,
        f"states in slots, in {specialization.pool} dtype": specialization.pool != "none",
        "drafts that are run again": specialization.replays,
    }
    return [word for word, holds in words.items() if holds]


def _resources(built: BuiltKernel) -> str:
    budget = built.plan.budget
    promised = f"{budget.registers_per_thread} (about {budget.registers_estimated})"
    lines = ["resources (plan / compiler)"]
    reported = built.resources or ()
    for kernel in reported:
        lines += [
            f"  {kernel.name}",
            f"    registers per thread  {promised} / {kernel.registers}",
            f"    shared bytes          {budget.shared_bytes} / {kernel.shared_bytes}",
            f"    spilled bytes         0 / {kernel.spill_bytes}",
        ]
    if not reported:
        lines.append(f"  not compiled: NVRTC is not installed; {INSTALL_CUDA}")
    return "\n".join(lines)


def _shared_map(plan: KernelPlan) -> str:
    if not plan.budget.shared_map:
        return ""
    lines = ["shared memory of a block"]
    offset = 0
    for name, size in plan.budget.shared_map.items():
        lines.append(f"  {offset:8d} .. {offset + size:8d}  {name}, {size} bytes")
        offset += size
    return "\n".join(lines)


def _prediction(plan: KernelPlan) -> str:
    sequential = " and ".join(name for name in plan.prediction.predicted_us if name in SEQUENTIAL_TERMS)
    how = f"all overlap but {sequential}" if plan.prediction.predicted_us.keys() - SEQUENTIAL_TERMS else "added up"
    lines = [f"predicted time for batch {plan.problem.batch}, time {plan.problem.time} (microseconds; {how})"]
    lines += [f"  {us:10.1f}  {name}" for name, us in plan.prediction.predicted_us.items()]
    rates = "every rate of the GPU was measured"
    if plan.prediction.assumed_rates:
        assumed = ", ".join(plan.prediction.assumed_rates)
        rates = f"not measured on this GPU: {assumed}; 'minrnn-gen calibrate' measures them on the GPU at hand"
    return "\n".join([*lines, f"  {plan.predicted_total_us:10.1f}  total", f"  {rates}"])


def _margins(plan: KernelPlan) -> str:
    lines = ["constraints (used of limit)"]
    lines += [
        f"  {margin.constraint:26s} {margin.used:10g} of {margin.limit:10g} {margin.unit}".rstrip()
        for margin in plan.prediction.margins
    ]
    return "\n".join(lines)


def _alternatives(plan: KernelPlan) -> str:
    lines = [f"runners-up (of {plan.prediction.candidate_count} feasible candidates)"]
    for other in plan.prediction.runners_up:
        lines.append(f"  {other.predicted_us:10.1f} us  {variables_in_words(other.variables)}")
    return "\n".join(lines) if plan.prediction.runners_up else ""


def _rejected(built: BuiltKernel) -> str:
    lines = ["rejected (by the first constraint that fails)"]
    lines += [f"  {count:8d}  {name}" for name, count in built.plan.prediction.rejected.items() if count]
    lines += [f"  after compiling: {reason}" for reason in built.dropped]
    return "\n".join(lines) if len(lines) > 1 else ""
