"""Small problems whose kernels together have every line of the templates, and what comes out of them where nothing is wrong."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy
from support.drafts import NOTES, OF_DRAFTS, OF_LONG_DRAFTS, drafted, placed
from support.dual_cells import MOVED_GRU, MOVED_LRU, MOVED_SRU, MOVED_TWO
from support.halves import take_halves
from support.input_cells import GAP_OF_ROUNDS, GAPS, HIGHWAY, NORMED
from support.last_steps import unlike_final_state
from support.norm_cells import BY_PARTS, GATES_TOGETHER, MIXED_LISTS, OF_BOTH, OF_PARTS, OF_ROUNDS
from support.pools import CALLS, SLOTS, OnPool, on_pool
from support.round_cells import DEEP, OF_TWO_STATES, PRODUCT_ALONE, RESET_BEFORE
from support.tangents_apart import ask_for_tangents, halves_of_gates, results_apart, without_gap
from support.unasked import leave_out_vectors

from minrnn_gen.build.joined_choice import JoinedChoice
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.store import Store
from minrnn_gen.call import pool_checks
from minrnn_gen.call.array import new_numpy, wrap_numpy
from minrnn_gen.call.interface import RUNS_REVERSED
from minrnn_gen.call.pieces import Piece
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import STEP, STEP_SIGNATURE
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.interpret.backend import WARP_FALLS_BEHIND
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.cases import DENSE_STEPS, PIECE_STEPS, SLOW, Case, Inputs, inputs_of
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.library import Memory
from minrnn_gen.interpret.verify import forward_of, inference_of, leaves, share_of, step_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import ASSUMED_TIME, KernelKey, KernelPass, Sizes
from minrnn_gen.plan.problem import Problem as KernelProblem
from minrnn_gen.plan.scan import projected
from minrnn_gen.plan.solver import Solution
from minrnn_gen.precision import PrecisionName, error_allowed, precision_of, remembered_error
from minrnn_gen.program.number import Number
from minrnn_gen.raw_scan import filters_cpu, filters_device
from minrnn_gen.raw_scan.filter_kernels import filter_spec
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES, RESULTS, shape_of
from minrnn_gen.raw_scan.kernels import RawSpec
from minrnn_gen.run.dense.launch import CALL_BYTES
from minrnn_gen.run.layers.dropout import Dropout, scale_of
from minrnn_gen.run.layers.stack import StackResult
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.workload import OF_BACKWARD

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class WantedProjection(ProjectionChoice):
    """Wherever there is a kernel, or nowhere."""

    is_wanted: bool = True

    def serves(self, problem: KernelProblem) -> Number:
        return projected.is_feasible(problem) if self.is_wanted else 0


@dataclass(frozen=True)
class WantedBuilder(EmulatedBuilder):
    """Builds, of each pass, the candidate with most of the variables wanted, and of these the one with the fewest threads."""

    wanted: tuple[tuple[str, int], ...] = ()
    joins: bool = False

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel as for long sequences, whatever the sizes."""
        return self.key_of(
            kernel_pass, specialization, Sizes(self.hinted_sizes.batch, max(self.hinted_sizes.time, ASSUMED_TIME))
        )

    @property
    def projection(self) -> ProjectionChoice:
        """In the kernel of the scan where its variables are wanted, whatever the sizes."""
        return WantedProjection("channel_warpgroups" in dict(self.wanted))

    @property
    def joined(self) -> JoinedChoice:
        """Wherever products can share an operand, where it `joins`."""
        return JoinedChoice(is_everywhere=self.joins)

    def solve(self, key: KernelKey) -> Solution:
        """Return the candidates of the family that has most of the variables wanted, of several the preferred one's."""
        return solution_wanted(self.solutions(key), dict(self.wanted))

    def chosen(self, key: KernelKey) -> tuple[Solution, int]:
        """Return the candidate with most of them."""
        solution = self.solve(key)
        return solution, most_wanted(solution, dict(self.wanted))


def solution_wanted(solutions: Iterable[Solution], wanted: Mapping[str, int]) -> Solution:
    """Return the candidates of the family that has most of the variables wanted, then of the values, else of the first one."""

    def having(solution: Solution) -> tuple[int, int]:
        there = {item for candidate in solution.candidates for item in candidate.items()}
        return len(wanted.keys() & solution.candidates[0].keys()), len(wanted.items() & there)

    return max(solutions, key=having)


def most_wanted(solution: Solution, wanted: Mapping[str, int]) -> int:
    """Return the rank of the candidate with most of the variables wanted, and of these the one with the fewest threads."""
    # Which blocks work together matters most.
    weight = {
        "lookback": 10,
        "cluster_blocks": 10,
        "grid_blocks": 10,
        "split_k_blocks": 10,
        "split_k_warps": 3,
        "split_k_warpgroups": 3,
    }
    having = [sum(weight.get(name, 1) for name, _ in wanted.items() & candidate.items()) for candidate in solution.candidates]
    best = [rank for rank, count in enumerate(having) if count == max(having)][:24]
    plans = {rank: solution.plan(rank) for rank in best}
    return min(best, key=lambda rank: _block_work(plans[rank]))


def _block_work(plan: KernelPlan) -> int:
    return plan.launch.threads * plan.variables.get("cluster_blocks", 1) * max(plan.launch.tile_steps, 1)


@dataclass(frozen=True)
class Problem:
    """One call of one pass of one kernel; `wanted` are variables of its plan."""

    name: str
    spec: tuple[tuple[str, Any], ...]
    wanted: tuple[tuple[str, int], ...]
    kernel_pass: str
    # A call is "long", of more than two rounds of tiles; or of two "whole" ones, where a sequence ends with the first; or, of a
    # dense cell, a "whole" tile of sequences, where one ends halfway, and x is NaN "beyond", or where most of the steps that
    # all have are without a reset ("whole resets"), or a tile more without steps ("empty resets"); or it is of a "part" of a
    # second tile, half of it and a step; or it has "resets", less than two rounds, and sequences that end early or have no
    # steps; or it is "bare", without what may be left out; or "mixed", with vectors of float32 beside 16-bit storage; or R is
    # NaN, with resets before every step ("cut"), of all gates or of all but the last ("cut first"); or in "pieces": every row
    # begins at a multiple of 16 bytes; or time is in "halves", each a launch, of one sequence or of a "whole" tile; or it asks
    # for "all" states; or the states of one sequence begin as "nan", every bit of them set; or it is of whole "tiles" of two
    # sequences, whose states may be "slow" to change; or sequences, one of them without steps, are "packed" one behind the
    # other; or a warp of each block comes "late"; or gradients of parameters with n values are "unasked" for; or tangents of
    # gates lie "apart", in an array without a gradient or with one that is "asked" for; or states begin at no vector's place
    # ("odd"), or inputs S.* of a sequence do ("odd rows"); or x is STRIDED, or GROWING has a channel of zeros. Of a filter it
    # is "long", or of "whole" steps of threads, or of one "row", or of a "step", or of "groups" of tiles; or a channel has
    # "zeros" and poles beyond 1, or "grows". Of a pool it is one of support.pools, of a form there; states may be "narrow", or
    # padding has the slot after the last one ("beyond"). Of drafts it is rounds of them, of lengths or in a "narrow" cache, or
    # of several tiles ("long"), or inputs S.* of a step begin at no vector's place ("odd steps"), or a call of the kernel that
    # notes them.
    call: str

    def __str__(self) -> str:
        return f"{self.name}, {self.kernel_pass}, {self.call}"


# The passes of the kernels of a call, where it is of several.
PASSES_OF = {"backward": (*OF_BACKWARD, "joined"), "pool": ("step", "slots"), "draft": ("step", "slots", "drafts")}


@dataclass
class Prepared:
    """A problem with its inputs, its kernel as it stands, and what is expected of it."""

    problem: Problem
    kernel: InterpretedKernel
    inputs: Inputs
    expected: Arrays
    saved: Any
    texts: dict[str, KernelPlan]
    seconds: float
    slack: float
    on_pool: OnPool | None = None

    @property
    def plans(self) -> list[KernelPlan]:
        """The plans of the kernels of the pass itself."""
        its_pass = self.problem.kernel_pass
        passes = PASSES_OF.get(its_pass, (its_pass,))
        return [plan for plan in self.texts.values() if plan.problem.kernel_pass in passes or its_pass == "step"]

    def render(self, plan: KernelPlan) -> str:
        """Render the kernel of a plan from the templates as they are now."""
        from minrnn_gen.codegen.render import render

        builder = self.kernel.builder
        return render(plan, builder.lowered_for(plan.problem.kernel_pass), ())  # type: ignore[arg-type]

    def run(self, seed: int, others: Mapping[str, str]) -> str:
        """Run the call, with others in place of some texts; return what is wrong, empty where nothing is."""
        try:
            results = self.results_with(seed, others)
        except KernelMisbehaved as found:
            return str(found.findings[0])
        pairs = (_but_for_nan(results[name], one) for name, one in self.expected.items())
        share = numpy.max([share_of(*both, self.slack) for both in pairs])
        if not share <= 1:
            return f"wrong: {share:.3g} times the error allowed"
        if self.problem.kernel_pass != "forward" or self.problem.call in ("all", "packed", "zeros of memory"):
            return ""
        unlike = unlike_final_state(self.kernel, self.inputs.forward, results)
        return f"wrong: {unlike}" if unlike else ""

    def results_with(self, seed: int, others: Mapping[str, str]) -> Arrays:
        """Run the call, with others in place of some texts; raises KernelMisbehaved."""

        def other(text: str, plan: KernelPlan) -> str:
            self.texts[text] = plan
            return others.get(text, text)

        self.kernel.backend.substitute = other
        late = LATE_WARP * WARP_FALLS_BEHIND if self.problem.call.endswith("late") else 0
        with self.kernel.seeded(seed + late), numpy.errstate(all="ignore"):
            return self.results(self.kernel, self.inputs, self.saved)

    def results(self, kernel: Kernel, inputs: Inputs, saved: Any = None) -> dict[str, Any]:
        """Return every array that the pass gives."""
        its_pass = self.problem.kernel_pass
        if self.problem.call == "zeros of memory":
            return _on_zeros(kernel, self.problem)
        if self.on_pool:
            if kernel is not self.kernel:
                return self.on_pool.expected(kernel, inputs.forward)
            with patch.object(pool_checks, "check_values"):  # as on a GPU, where slots are not read back
                return self.on_pool.results(kernel)
        if its_pass == "draft":
            return _on_cache(kernel, inputs.forward, self.problem.call)
        if its_pass == "step":
            return dict(step_of(kernel, inputs))
        if its_pass == "dropout":
            return {"y": _dropped(kernel, inputs.dy)}
        if its_pass in FILTER_PASSES:
            return _filtered(kernel, inputs.dy, its_pass, self.problem.call)
        if self.problem.call.startswith("apart") and isinstance(kernel, InterpretedKernel):
            forward, gradients = results_apart(kernel, inputs)
            if "asked" in self.problem.call:
                gradients = {**gradients, "x": without_gap(kernel.interface, gradients["x"])}
            return dict(forward if its_pass == "forward" else leaves(gradients))
        if its_pass == "forward":
            if self.problem.call == "all":
                y, states = kernel(**inputs.forward, all_states=True)
                return {"y": y, **states}
            keeps = self.problem.call == "long" and kernel.spec.training
            return dict(forward_of(kernel, inputs)[0] if keeps else inference_of(kernel, inputs))
        if saved is None:
            _, _, saved = kernel.forward(**inputs.forward)
        gradients = dict(leaves(kernel.backward(saved, inputs.dy, inputs.dstate or None)))
        if self.problem.call == "unasked":
            for name in kernel.interface.vector_parameters:
                del gradients[f"parameters {name}"]
        if self.problem.call == "apart":
            gradients["x"], _ = halves_of_gates(kernel.interface, gradients["x"])
        return gradients


STORE = Path(tempfile.gettempdir()) / "minrnn-mutate-store"


def prepare(problem: Problem) -> Prepared:
    """Plan, compile and run a problem as it stands; raises AssertionError where something is wrong with it."""
    spec = _spec_of({"gpu": "h200", "precision": "fp32", **dict(problem.spec)})
    joins = problem.name.startswith("joined")
    builder = WantedBuilder(spec, target_of(spec), Store(STORE), wanted=problem.wanted, joins=joins)
    specialization = replace(builder.hinted_specialization, reverse=RUNS_REVERSED[spec.direction][0])
    kernel = InterpretedKernel(builder, (builder.build(builder.choose("forward", specialization, builder.hinted_sizes)),))
    is_complex = precision_of(spec.precision).storage_dtype.startswith("complex")
    exact_spec = _spec_of(spec.model_dump() | {"precision": "complex128" if is_complex else "fp64", "functions": None})
    exact = Kernel(replace(builder, spec=exact_spec), kernel.built)
    plan = (
        builder.build(builder.choose("backward", specialization, builder.hinted_sizes)).plan
        if problem.kernel_pass == "backward"
        else kernel.plan
    )
    case, pool = _case_of(problem, plan), _pool_of(problem, kernel)
    inputs = inputs_of(kernel.interface, case, SLOW if "slow" in problem.call else 0.0)
    if pool:
        inputs = Inputs(pool.plain, inputs.dy, {}, {})
    if problem.call.startswith("halves"):
        take_halves(kernel)
    if problem.call == "apart asked":
        ask_for_tangents(kernel)
    if problem.call == "unasked":
        leave_out_vectors(kernel)
    inputs = _varied(_each(inputs, _with_imaginary) if is_complex else inputs, problem.call, case)
    precision = kernel.interface.precision.with_functions(spec.functions)
    slack = error_allowed(precision) + remembered_error(precision, spec.scan_arithmetic)
    made = Prepared(problem, kernel, inputs, {}, None, {}, 0.0, slack, pool)
    with numpy.errstate(all="ignore"):
        precise = _each(inputs, _in_complex128) if is_complex else inputs.in_float64()
        made.expected = made.results(exact, precise)
        if problem.kernel_pass == "backward":
            _, _, made.saved = kernel.forward(**inputs.forward)
    wrong = made.run(1, {})
    assert not wrong, f"{problem}: {wrong}"
    started = time.perf_counter()
    made.run(2, {})
    made.seconds = time.perf_counter() - started
    return made


def _on_zeros(kernel: Kernel, problem: Problem) -> dict[str, Any]:
    """Run steps as they are enqueued before their graph is captured, on a call that is zero; they have no results."""
    if isinstance(kernel, InterpretedKernel):
        builder, call = kernel.builder, numpy.zeros(CALL_BYTES, numpy.uint8)
        step = kernel.backend.load(builder.choose(problem.kernel_pass, builder.hinted_specialization, builder.hinted_sizes))
        memory = [Memory("call", call.ctypes.data, call.nbytes, is_given=True)]
        for index in range(4):
            arguments = pack(STEP_SIGNATURE, {"call": call.ctypes.data, "step_in_chunk": index})
            if findings := step.launch(2, arguments, kernel.backend.next_seed(), memory, STEP):
                raise KernelMisbehaved(findings)
    return {"none": numpy.zeros(0)}


def _on_cache(kernel: Kernel, forward: Any, call: str) -> dict[str, Any]:
    """Return the results of drafts of a cache, or of the kernel that notes them."""
    is_emulated = isinstance(kernel, InterpretedKernel)
    if call in NOTES:
        return placed(call, kernel if is_emulated else None)
    dtype = kernel.interface.precision.storage_dtype if is_emulated and "narrow" in call else None
    if call.endswith("odd steps"):
        forward = {**forward, "shared": _each(forward["shared"], _in_longer_steps)}
    return drafted(kernel, forward, 3, "lengths" in call, dtype)


def _dropped(kernel: Kernel, source: Any) -> Any:
    """Return what dropout makes of a piece of time of `source`, with zeros around it."""
    time, target = source.shape[1], numpy.zeros_like(source)
    mask, piece = numpy.random.default_rng(0).random(source.shape) >= DROPPED, Piece(1, time - 2, time)
    if isinstance(kernel, InterpretedKernel):
        dropout = Dropout(*(wrap_numpy(array, "an array") for array in (source, mask, target)), DROPPED)
        recorder = kernel.backend.begin(dropout.source, None, (dropout.source, dropout.mask, dropout.target))
        dropout.piece("bth", piece).run(recorder)
        recorder.finish(StackResult(()), None)
    else:
        target[:, 1:-1] = numpy.where(mask, source * scale_of(DROPPED), 0)[:, 1:-1]
    return target


def _filtered(kernel: Kernel, x: Any, kernel_pass: Any, call: str) -> dict[str, Any]:
    """Return the results of a filter of `x` with coefficients of each channel; sums over tiles are added up."""
    if call == "row":
        x = x[:, :1].copy()
    (rows, channels, _), order = x.shape, len(kernel.states)
    random = numpy.random.default_rng(0)
    poles = random.uniform(-0.8, 0.8, (channels, order))
    if call == "groups":
        # A state is seen many tiles later.
        poles[:, 0] = 0.9999, 0.9998
    if call == "grows":
        # Finite in a row, infinite after the steps of a tile.
        poles[0] = 8
    state = random.standard_normal((rows, channels, order))
    if call == "zeros":
        # A power of these is infinite after the steps of a tile.
        poles[0], x, state[:, 0] = 4.0, x.copy(), 0
        x[:, 0] = 0
    a = numpy.stack([numpy.poly(of_channel) for of_channel in poles])
    passed = {"x": x, "b": random.standard_normal(a.shape), "a": a}
    given = None if call == "bare" else state
    if kernel_pass == "filter":
        passed |= {"zi": given}
    else:
        passed |= {"y": numpy.flip(x, 0).copy(), "dy": numpy.flip(x, -1).copy(), "dzf": given}
    arrays = {name: None if array is None else wrap_numpy(array, name) for name, array in passed.items()}
    if isinstance(kernel, InterpretedKernel):
        recorder = kernel.backend.begin(arrays["x"], None, arrays.values())
        written = recorder.finish(filters_device.run(kernel_pass, arrays, recorder), None).result
    else:
        like = arrays["x"]
        written = RESULTS[kernel_pass].mapped(lambda kind: new_numpy(*shape_of(kind, like, order), None))
        filters_cpu.PASSES[kernel_pass](arrays, *written)
        written = written.mapped(lambda array: array.owner)
    summed = (array.sum(2) if array.ndim == x.ndim + 1 else array for array in written)
    return dict(zip(written._fields, summed, strict=True))


def _pool_of(problem: Problem, kernel: Kernel) -> OnPool | None:
    """Return the call of a problem on a pool, with indices of both dtypes and some distance, None of any other problem."""
    if problem.kernel_pass != "pool":
        return None
    kind, _, call = problem.call.partition(": ")
    form, number = kind.split()[-1], list(CALLS).index(call)
    made = on_pool(kernel, call, (numpy.int32, numpy.int64)[number % 2], 1 + number % 3, form, "narrow" in kind)
    if "beyond" in kind:
        made.arrays["slots"][~made.is_live] = SLOTS
    return made


def _case_of(problem: Problem, plan: KernelPlan) -> Case:
    if problem.kernel_pass in FILTER_PASSES:
        return FILTER_CASES[problem.call]
    if problem.kernel_pass == "dropout":
        return Case(3, DROPOUT_STEPS)
    if problem.kernel_pass == "pool":
        return Case(1, 1)
    if problem.kernel_pass == "draft":
        return OF_LONG_DRAFTS if problem.call.startswith("long") else OF_DRAFTS
    has_resets = "resets" in problem.call
    if plan.family == "dense":
        tile = plan.variables.get("batch_tile", 2)
        if problem.call in ("packed", "whole", "whole bare", "halves whole", "beyond"):
            return Case(tile + (problem.call == "packed"), DENSE_STEPS)
        if problem.call == "whole resets":
            return Case(tile, STEPS_AROUND_RESETS, True)
        return Case(tile + 1, DENSE_STEPS, True) if has_resets else Case(1, DENSE_STEPS)
    if problem.call.startswith("tiles"):
        return Case(2, 4 * projected.TILE_STEPS)
    if problem.call == "growing zeros":
        return Case(1, plan.launch.tile_steps)  # of one block, which needs no powers of tiles: all of these are infinite
    if problem.call == "pieces":
        return Case(1, 2 * plan.launch.tile_steps + PIECE_STEPS)
    if problem.call == "pieces resets":
        return Case(3, plan.launch.tile_steps + PIECE_STEPS, True)
    tiles = (
        plan.launch.tile_steps
        * max(plan.launch.group_tiles, 1)
        * plan.variables.get("cluster_blocks", 1)
        * (2 if plan.strategy == "cooperative" else 1)  # some blocks have one tile more than others
        * max(1, plan.variables.get("time_warps_walked", 1))
    )
    whole = max(tiles, 2)
    if problem.call == "packed":
        return Case(3, whole + 1)
    if problem.call == "part":
        return Case(1, whole + whole // 2 + 1)
    if problem.call == "whole":
        return Case(2, 2 * whole)
    if has_resets:
        return Case(3, whole + whole // 2 - 1, True)
    return Case(2 if problem.call == "odd rows" else 1, 2 * whole + 1)


def _packed(given: Any) -> Any:
    return given.reshape(1, -1, *given.shape[2:])


def _varied(inputs: Inputs, call: str, case: Case) -> Inputs:
    if call == "packed":
        total, first = case.batch * case.time, case.time // 2
        ends = numpy.array([0, first, first, *numpy.linspace(first, total, case.batch - 1, dtype=numpy.int64)[1:]])
        forward = {**inputs.forward, "x": _packed(inputs.forward["x"]), "cu_seqlens": ends}
        if "shared" in forward:
            forward["shared"] = {name: _packed(values) for name, values in forward["shared"].items()}
        return replace(inputs, forward=forward, dy=_packed(inputs.dy))
    if call in STRIDED:
        return replace(inputs, forward={**inputs.forward, "x": STRIDED[call](inputs.forward["x"])})
    if call == "growing zeros":
        return replace(inputs, forward=_with_growing_zeros(inputs.forward))
    if call.startswith("nan"):
        state = {name: _with_nan(one) for name, one in inputs.forward["state"].items()}
        return replace(inputs, forward={**inputs.forward, "state": state})
    if call == "odd":
        return replace(inputs, step={**inputs.step, "state": _each(inputs.step["state"], _at_odd_place)})
    if call == "odd rows":
        return replace(inputs, step={**inputs.step, "shared": _each(inputs.step["shared"], _in_longer_rows)})
    if call.startswith("cut"):
        forward = {**inputs.forward, "resets": numpy.ones_like(inputs.forward["resets"]), "R": inputs.forward["R"].copy()}
        forward["R"][: -1 if "first" in call else None] = numpy.nan
        return replace(inputs, forward=forward)
    if call.endswith("bare"):
        left_out = ("bias", "recurrent_bias", "state")
        forward, step = (
            {name: one for name, one in each.items() if name not in left_out} for each in (inputs.forward, inputs.step)
        )
        return Inputs(forward, inputs.dy, {}, step)
    if call == "resets slow":
        # Most tiles have none.
        resets = numpy.zeros_like(inputs.forward["resets"])
        resets[:, case.time // 3] = True
        return replace(inputs, forward={**inputs.forward, "resets": resets})
    if call == "whole resets":
        resets = numpy.zeros_like(inputs.forward["resets"])
        for first, step in enumerate(RESET_STEPS):
            resets[first :: len(RESET_STEPS), step] = True
        lengths = case.time - numpy.arange(case.batch) % 2
        return replace(inputs, forward={**inputs.forward, "resets": resets, "lengths": lengths})
    if "resets" in call and case.batch > 2:
        lengths = inputs.forward["lengths"].copy()
        lengths[1] = 0
        if call.startswith("empty"):
            lengths[-1] = 0  # a tile of its own
        if call.startswith("pieces"):
            lengths[0] = case.time - 3  # within a piece, and not in the first tile
        return Inputs({**inputs.forward, "lengths": lengths}, inputs.dy, inputs.dstate, inputs.step)
    if call in ("whole", "beyond"):
        lengths = numpy.array([case.time // 2] + [case.time] * (case.batch - 1))
        x = inputs.forward["x"].copy()
        if call == "beyond":
            x[0, case.time // 2 :] = numpy.nan
        return Inputs({**inputs.forward, "x": x, "lengths": lengths}, inputs.dy, inputs.dstate, inputs.step)
    if call.endswith("mixed"):
        forward, step = ({name: _wider(name, one) for name, one in each.items()} for each in (inputs.forward, inputs.step))
        return Inputs(forward, inputs.dy, inputs.dstate, step)
    return inputs


def _spec_of(given: dict[str, Any]) -> Spec:
    return RawSpec(**given) if given["precision"].startswith("complex") else load_spec(given)


def _each(given: Any, do: Callable[[Any], Any]) -> Any:
    """Return inputs with every array replaced."""
    if isinstance(given, Inputs):
        return Inputs(*(_each(one, do) for one in (given.forward, given.dy, given.dstate, given.step)))
    return {name: _each(one, do) for name, one in given.items()} if isinstance(given, dict) else do(given)


def _with_imaginary(given: Any) -> Any:
    if given.dtype.kind != "c":
        return given
    # The first channel's have no real part.
    made = given + (1j * given[..., ::-1] / 2).astype(given.dtype)
    made[..., 0] = 1j * given[..., 0]
    return made


def _in_complex128(given: Any) -> Any:
    return given.astype(numpy.complex128) if given.dtype.kind == "c" else given


def _but_for_nan(*given: Any) -> tuple[Any, Any]:
    """Return the numbers of a result and of what is expected, 0 where both are NaN; of complex ones both parts."""
    result, expected = (
        _in_complex128(one).view(numpy.float64) if one.dtype.kind == "c" else one.astype(numpy.float64) for one in given
    )
    both = numpy.isnan(result) & numpy.isnan(expected)
    return numpy.where(both, 0, result), numpy.where(both, 0, expected)


def _with_nan(state: Any) -> Any:
    """Return a state whose last sequence is NaN with every bit set, the one that rounding could carry beyond."""
    state = state.copy()
    state[-1].view(numpy.uint8)[...] = 0xFF
    return state


def _at_odd_place(given: Any) -> Any:
    """Return an array that begins one value behind a multiple of 16 bytes."""
    room = numpy.empty(given.nbytes + 32, numpy.uint8)
    first = -room.ctypes.data % 16 + given.itemsize
    moved = room[first : first + given.nbytes].view(given.dtype).reshape(given.shape)
    moved[...] = given
    return moved


def _in_longer_rows(given: Any) -> Any:
    """Return an array whose rows have a value more between them."""
    rows = numpy.empty((*given.shape[:-1], given.shape[-1] + 1), given.dtype)
    rows[..., :-1] = given
    return rows[..., :-1]


def _in_longer_steps(given: Any) -> Any:
    """Return an array [sequence, step, .., n] whose steps have a value more between them, and whose sequences stay aligned."""
    steps = numpy.empty((given.shape[0], 16, *given.shape[2:-1], given.shape[-1] + 1), given.dtype)
    steps[:, : given.shape[1], ..., :-1] = given
    return steps[:, : given.shape[1], ..., :-1]


def _with_gaps(x: Any) -> Any:
    """Return x [batch, time, gates, channels] with a gate more between its steps."""
    steps = numpy.empty((*x.shape[:2], x.shape[2] + 1, x.shape[3]), x.dtype)
    steps[:, :, :-1] = x
    return steps[:, :, :-1]


def _in_planes(x: Any) -> Any:
    """Return x [batch, time, gates, channels] whose gates are in memory one after the other, its steps as before."""
    batch, time, gates, channels = x.shape
    planes = numpy.empty((gates, batch, time, gates, channels), x.dtype)
    planes[:, :, :, 0] = numpy.moveaxis(x, 2, 0)
    return numpy.moveaxis(planes[:, :, :, 0], 0, 2)


def _by_direction(x: Any) -> Any:
    """Return x [batch, time, directions, gates, channels] whose directions are in memory one after the other."""
    return numpy.moveaxis(numpy.ascontiguousarray(numpy.moveaxis(x, 2, 0)), 0, 2)


def _with_growing_zeros(forward: dict[str, Any]) -> dict[str, Any]:
    """Return a call of GROWING whose first channel has states of zero and a pole whose powers float32 has not, but float64."""
    changed = {name: _each(forward[name], numpy.copy) for name in ("x", "bias", "state", "parameters")}
    for zeros in (changed["x"], changed["bias"], *changed["state"].values()):
        zeros[..., 0] = 0
    poles, turns = changed["parameters"].values()
    poles[0], turns[0] = 1, 0
    poles[1:], turns[1:] = -0.1, turns[1:] / 2
    return {**forward, **changed}


# Calls whose x has other strides, by what makes it so.
STRIDED: dict[str, Callable[[Any], Any]] = {"gaps": _with_gaps, "planes": _in_planes, "by direction": _by_direction}


def _wider(name: str, given: Any) -> Any:
    if name == "parameters":
        return {key: one.astype(numpy.float32) for key, one in given.items()}
    return given.astype(numpy.float32) if name in ("bias", "recurrent_bias") else given


# Variables of plans that are as small as they may be.
CHANNELS = {
    "steps_per_lane": 2, "channel_lanes": 16, "channels_per_lane": 2,
    "stages": 2, "lookback": 0, "cluster_blocks": 1, "time_warps": 1,
}  # fmt: skip
# All blocks on the same stretch of time.
COOPERATIVE = {"lag": 1, "time_warps": 4, "steps_per_lane": 4, "channels_per_lane": 2, "stages": 3}
# A diagonal cell whose threads each take all of time.
SERIAL = {"threads": 32}
# Time of a diagonal cell that blocks and their segments share.
DIVIDED = {"threads": 64, "channels_per_lane": 1, "stages": 2, "segments": 4}
# The first warp of the second warpgroup, from 1 on.
LATE_WARP = 5
# Steps before which some sequences of a whole tile are reset, one alone and two in a row, with others around them.
RESET_STEPS, STEPS_AROUND_RESETS = (2, 5, 6), 10
# A scan in one kernel with its projection, of more chunks than there are stages.
PROJECTED = {"channel_warpgroups": 2, "stages": 2}
INPUTS: dict[str, Any] = {"precision": "bf16", "hidden_size": 128, "input_size": 192}
TIME = {"warps": 2, "time_warps": 1, "steps_per_lane": 2, "stages": 2, "lookback": 0}
DENSE = {
    "cluster_blocks": 1, "grid_blocks": 1, "split_k_warps": 1, "batch_tile": 2, "stages": 2, "row_warps": 2,
    "products_per_tile": 1,
}  # fmt: skip
# Two products of each unit in a tile of the forward.
PAIRS = {"products_per_tile": 2, "batch_tile": 4}
TWO_WARPS, CLUSTER, GRID, TICKETS = {"time_warps": 2}, {"cluster_blocks": 2}, {"grid_blocks": 2}, {"lookback": 1}
# Of products by warpgroups.
# Of few inputs, which no vector of the widest copies ends with.
JOINED: dict[str, Any] = {"input_size": 12}
LARGE = {
    "cluster_blocks": 1, "split_k_blocks": 1, "row_tiles": 1, "split_k_warpgroups": 1, "column_groups": 1, "batch_tile": 8,
    "streams_matrix": 0,
}  # fmt: skip
STREAMED = LARGE | {"streams_matrix": 1}
A100, B200 = {"gpu": "a100"}, {"gpu": "b200"}
HALVES, FOUR_TILES, BLOCKS_THAT_SUM = {"split_k_warpgroups": 2}, {"row_tiles": 4}, {"split_k_blocks": 2}
TWO_THAT_SUM, FOUR_THAT_SUM = {"cluster_blocks": 2, "split_k_blocks": 2}, {"cluster_blocks": 4, "split_k_blocks": 4}

# Warps that share the cells, of two sequences each.
SHARED_CELLS = {"row_warps": 1, "split_k_warps": 2, "batch_tile": 4}
FOUR_BLOCKS, WIDE = {"cluster_blocks": 4}, {"hidden_size": 64}
ONCE = {"fp32_product": "tf32"}
# Each lane has more loads from the others than are under way at once.
FIVE = {"grid_blocks": 5, "row_warps": 1, "batch_tile": 8}

# Hidden sizes fill no tile.
GRU: dict[str, Any] = {"model": "min_gru", "hidden_size": 40}
BDT: dict[str, Any] = {"model": "min_gru", "hidden_size": 3, "layout": "BDT"}
LSTM: dict[str, Any] = {"model": "lstm", "hidden_size": 40, "precision": "bf16"}
RESET_FIRST: dict[str, Any] = {"model": RESET_BEFORE, "hidden_size": 40, "precision": "bf16"}
LONG = {"batch": 1, "time": 65536}
BF16, FP16, FP64, REVERSE = {"precision": "bf16"}, {"precision": "fp16"}, {"precision": "fp64"}, {"direction": "reverse"}
LOG = {"model": "min_gru_log", "scan_arithmetic": "log"}
# The steps of one state keep all of it, as what is no step does, and add something; those of the other may add nothing.
SUM: dict[str, Any] = {
    "model": {
        "name": "sums",
        "equations": "s[t] = s[t-1] + sigmoid(W.a)\nh[t] = sigmoid(W.b) * h[t-1] + relu(W.a)",
        "output": "s[t] + h[t]",
    },
    "scan_arithmetic": "log",
}
# Of complex numbers there is the raw scan's cell alone.
COMPLEX: dict[str, Any] = {
    "model": {"name": "scan", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]},
    "precision": "complex64",
}
# A dense cell with a parameter.
LEAKY: dict[str, Any] = {
    "model": {
        "name": "leaky",
        "parameters": ["leak"],
        "equations": "z = sigmoid(W.z + R.z)\nn = tanh(W.n + R.n)\nh[t] = sigmoid(leak) * z * h[t-1] + (1 - z) * n",
    },
    "hidden_size": 24,
}

# A dense cell of two products, one of which is no sum with a gate.
TWO_PRODUCTS: dict[str, Any] = {
    "model": {"name": "two_products", "equations": "z = sigmoid(W.z + R.z)\nh[t] = z * h[t-1] + (1 - z) * tanh(W.n * R.n)"},
}

# Cells with n values per channel: of one state, and of a state with n and one without, coupled by a sum.
SELECTIVE = {"model": "selective", "hidden_size": 20, "state_size": 6}
WHOLE_TIME = {"time_parts": 1}
# Rows of 16 bytes, and halves of a lane's values that are.
COPYING = {"model": "selective", "hidden_size": 32, "state_size": 16}
BOTH_KINDS: dict[str, Any] = {
    "model": {
        "name": "both_kinds",
        "states": {"g": 1, "h": "n"},
        "shared": ["b"],
        "parameters": {"u": "n", "v": 1},
        "equations": "k = sigmoid(W.f)\ng[t] = k * g[t-1] + (1 - k) * sum(h[t-1]) * v\nh[t] = k * h[t-1] + W.x * S.b + u",
        "output": "sum(h[t] * S.b) + g[t]",
    },
    "state_size": 3,
}
# A scan whose steps add little, the logarithm of a number close to 1.
LITTLE: dict[str, Any] = {
    "model": {"name": "little", "equations": "h[t] = sigmoid(W.f) * h[t-1] + softplus(W.n - 8)"},
    "hidden_size": 20,
}
# A scan of two gates with a parameter.
TRACKING: dict[str, Any] = {
    "model": {
        "name": "tracking",
        "parameters": ["rate"],
        "equations": "z = sigmoid(rate) * sigmoid(W.z)\nh[t] = (1 - z) * h[t-1] + z * W.n",
    },
}
# A diagonal cell whose backward sums nothing, where there is no bias.
LEAKING: dict[str, Any] = {"model": {"name": "leaking", "equations": "h[t] = tanh(W.n + h[t-1])"}, "hidden_size": 20}

BOUNDED: dict[str, Any] = {
    "model": {"name": "bounded", "equations": "h[t] = max(min(W.n + h[t-1], 0.5), -0.5)"},
    "hidden_size": 20,
}
# Two states that depend on each other, so that the gradients of time divided among blocks are maps of 2 x 2.
ENTANGLED: dict[str, Any] = {
    "model": {"name": "entangled", "equations": "a[t] = tanh(W.a + b[t-1])\nb[t] = sigmoid(W.b) * b[t-1] + tanh(a[t-1])"},
    "hidden_size": 20,
}
# Steps whose map of gradients is mostly the identity, or adds nothing to a gradient.
SUMS_UP_TO: dict[str, Any] = {
    "model": {
        "name": "sums_up_to",
        "equations": "k = min(exp(W.k), 1)\na[t] = max(k * a[t-1] + W.a, -50)\nb[t] = min(k * b[t-1] + W.b, 50)",
        "output": "relu(W.o) * (tanh(a[t]) + tanh(b[t]))",
    },
    "hidden_size": 20,
}
# A scan whose y depends on the state before the step, and one whose gradients depend on two states before and after it.
LOOKING: dict[str, Any] = {
    "model": {
        "name": "looking",
        "equations": "z = sigmoid(W.z)\nh[t] = (1 - z) * h[t-1] + z * W.n",
        "output": "h[t] * h[t-1]",
    },
}
TWO_STATES: dict[str, Any] = {
    "model": {
        "name": "normalized",
        "equations": "f = sigmoid(W.f)\nc[t] = f * c[t-1] + (1 - f) * W.z\nn[t] = f * n[t-1] + 1 - f",
        "output": "c[t] / n[t]",
    },
}

# (name, spec, wanted, calls, passes)
# Coupled states: lanes along channels, or all of them along time.
COUPLED = {"channel_lanes": 8, "threads": 64, "stages": 4, "chunk_tiles": 1, "map_lanes": 1}
ALONG_TIME = COUPLED | {"channel_lanes": 1}
CHUNKS = {"chunk_tiles": 32}
MAP_LANES = {"map_lanes": 4}
# A block of three, which turns and shrinks, its delays, and a scan that reads them.
THREE_STATES: dict[str, Any] = {
    "model": {
        "name": "three_states",
        "states": ["a", "b", "c", "late", "later", "sum"],
        "equations": "f = sigmoid(W.f)\n"
        "a[t] = 0.5 * f * a[t-1] - 0.4 * b[t-1] + W.a\n"
        "b[t] = 0.4 * a[t-1] + 0.3 * c[t-1]\n"
        "c[t] = 0.6 * b[t-1] + 0.2 * a[t-1] + W.c\n"
        "late[t] = a[t-1]\n"
        "later[t] = late[t-1] * W.c\n"
        "sum[t] = 0.9 * sum[t-1] + tanh(c[t]) * later[t-1]",
        "output": "sum[t] + c[t]",
    },
    "hidden_size": 9,
}
# Four states of one map that changes with time.
FOUR_STATES: dict[str, Any] = {
    "model": {
        "name": "four_states",
        "states": ["a", "b", "c", "d"],
        "equations": "f = sigmoid(W.f)\n"
        "a[t] = 0.5 * f * a[t-1] - 0.4 * b[t-1] + 0.2 * d[t-1] + W.a\n"
        "b[t] = 0.4 * a[t-1] + 0.3 * c[t-1]\n"
        "c[t] = 0.6 * b[t-1] + 0.2 * a[t-1] + W.c\n"
        "d[t] = f * c[t-1] - 0.3 * a[t-1] + 0.2 * d[t-1]",
        "output": "a[t] + d[t]",
    },
    "hidden_size": 9,
}
# Two rounds of block-diagonal products, of whose blocks a block of a cluster has one or a part.
BLOCKS_OF_R: dict[str, Any] = {
    "model": {
        "name": "blocks_of_r",
        "gates": ["k"],
        "block_diagonal": {"d": 2, "z": 2, "n": 2},
        "recurrent_bias": True,
        "equations": """
            b    = tanh(R.d)
            a    = silu(R.a)
            k    = silu(W.k + b + R.e(a))
            z    = sigmoid(R.z(k) - 1)
            h[t] = z * tanh(R.n(z * k)) + (1 - z) * h[t-1]
        """,
    },
    "precision": "bf16",
}
# An operand of a round that is infinite where all its inputs are 0, as in padding.
LOGARITHMIC: dict[str, Any] = {
    "name": "logarithmic",
    "gates": ["z", "h"],
    "parameters": ["p"],
    "equations": """
        z    = sigmoid(W.z + R.z)
        h[t] = z * tanh(W.h + R.h(z * log(abs(p)))) + (1 - z) * h[t-1]
    """,
}
# Two states that turn, and may shrink slowly.
TURNING: dict[str, Any] = {
    "model": {
        "name": "turning",
        "equations": "f = sigmoid(W.f)\n"
        "a[t] = f * 0.8 * a[t-1] - f * 0.6 * b[t-1] + (1 - f) * W.a\n"
        "b[t] = f * 0.6 * a[t-1] + f * 0.8 * b[t-1]",
        "output": "a[t] + b[t]",
    },
    "hidden_size": 8,
}
# Two states that turn, with an input of each channel.
DRIVEN: dict[str, Any] = {
    "model": {
        "name": "driven",
        "inputs": ["push"],
        "equations": "f = 0.8 * sigmoid(W.f)\na[t] = f * a[t-1] - 0.5 * b[t-1] + X.push\nb[t] = 0.5 * a[t-1] + f * b[t-1]",
        "output": "a[t] * X.push + b[t]",
    },
}
# Two pairs of states whose maps are constant, the first of which may grow.
GROWING: dict[str, Any] = {
    "model": {
        "name": "growing",
        "parameters": ["p", "q"],
        "equations": "a[t] = exp(6 * p) * a[t-1] - q * b[t-1] + W.a\n"
        "b[t] = q * a[t-1] + exp(6 * p) * b[t-1]\n"
        "c[t] = 0.5 * c[t-1] - 0.4 * d[t-1] + W.c\n"
        "d[t] = 0.4 * c[t-1] + 0.5 * d[t-1]",
        "output": "a[t] + c[t]",
    },
    "hidden_size": 8,
}
# Two parts of a head instead of four.
HALF = {"norm_parts": 2}
BOTH: tuple[KernelPass, ...] = ("forward", "backward")
FORWARD: tuple[KernelPass, ...] = ("forward",)
BACKWARD: tuple[KernelPass, ...] = ("backward",)
# Kernels of one step, also where one of all steps is preferred.
BY_THREADS = {"threads": 64}
FAMILIES: dict[str, tuple[tuple[str, dict[str, Any], dict[str, int], str, tuple[KernelPass, ...]], ...]] = {
    "cooperative": (
        ("blocks", GRU, COOPERATIVE, "long resets bare", BOTH),
        ("lag", GRU, COOPERATIVE | {"lag": 2, "stages": 4}, "long", BOTH),
        ("columns one after another", GRU | {"hidden_size": 488}, COOPERATIVE, "long whole", BOTH),
        ("fp64", GRU | FP64 | {"hidden_size": 20}, COOPERATIVE, "long", BOTH),
        ("bf16 parameters", GRU | BF16 | {"model": "rg_lru"}, COOPERATIVE, "long mixed bare", BOTH),
        ("log", GRU | LOG | {"hidden_size": 33}, COOPERATIVE | {"channels_per_lane": 1}, "long resets", FORWARD),
        ("inputs", BF16 | {"model": HIGHWAY, "hidden_size": 20}, COOPERATIVE, "long resets", BOTH),
        ("packed", GRU, COOPERATIVE, "packed", BOTH),
        ("log sum", GRU | SUM, COOPERATIVE, "resets", FORWARD),
        ("reverse", GRU | REVERSE | {"model": "min_lstm"}, COOPERATIVE, "resets", BOTH),
        ("qrnn fp16", FP16 | {"model": "qrnn", "hidden_size": 24, "layout": "TBD"}, COOPERATIVE, "resets", BOTH),
        ("bf16", GRU | BF16, COOPERATIVE, "all nan nan-resets", FORWARD),
        ("nan", GRU, COOPERATIVE, "nan nan-resets", FORWARD),
        ("looking back", LOOKING | {"hidden_size": 20}, COOPERATIVE, "long resets", BOTH),
        ("two states", TWO_STATES | {"hidden_size": 20}, COOPERATIVE, "resets", BOTH),
        ("complex", COMPLEX | {"hidden_size": 20}, COOPERATIVE, "long resets", FORWARD),
    ),
    "projected": (
        ("kept steps", GRU | INPUTS, PROJECTED, "tiles tiles-slow tiles-bare", BOTH),
        ("three stages", GRU | INPUTS | FP16, PROJECTED | {"stages": 3}, "tiles tiles-slow", FORWARD),
        ("one chunk", GRU | INPUTS | {"hidden_size": 256, "input_size": 64}, PROJECTED, "tiles tiles-late", FORWARD),
        ("two stages", GRU | INPUTS, PROJECTED, "tiles-late", FORWARD),
        ("parameter", TRACKING | INPUTS, PROJECTED, "tiles tiles-mixed", BOTH),
        ("looking back", LOOKING | INPUTS, PROJECTED, "tiles", FORWARD),
        ("log", GRU | LOG | INPUTS, PROJECTED, "tiles tiles-slow", FORWARD),
    ),
    "channels": (
        ("one warp", GRU, CHANNELS, "long resets bare", BOTH),
        ("two warps", GRU, CHANNELS | TWO_WARPS, "long resets", BOTH),
        ("cluster", GRU, CHANNELS | CLUSTER, "long resets", BOTH),
        ("cluster of eight", GRU, CHANNELS | {"cluster_blocks": 8}, "resets", BOTH),
        ("cluster of two warps", GRU, CHANNELS | CLUSTER | TWO_WARPS, "long", BOTH),
        ("tickets", GRU | LONG, CHANNELS | TICKETS | TWO_WARPS, "long whole resets", BOTH),
        ("tickets fp64", GRU | LONG | FP64 | {"hidden_size": 20}, CHANNELS | TICKETS, "long", BOTH),
        ("bf16 parameters", GRU | BF16 | {"model": "rg_lru"}, CHANNELS | {"channel_lanes": 8}, "long mixed bare", BOTH),
        ("log", GRU | LOG | {"hidden_size": 33, "gpu": "t4"}, CHANNELS | {"channels_per_lane": 1}, "long resets", FORWARD),
        ("inputs", BF16 | {"model": HIGHWAY, "hidden_size": 20}, CHANNELS, "long resets", BOTH),
        ("packed", GRU, CHANNELS, "packed", BOTH),
        ("log sum", GRU | SUM, CHANNELS, "resets", FORWARD),
        ("little", LITTLE, CHANNELS, "bare", FORWARD),
        ("reverse", GRU | REVERSE | {"model": "min_lstm"}, CHANNELS, "resets", BOTH),
        ("qrnn fp16", FP16 | {"model": "qrnn", "hidden_size": 24, "layout": "TBD"}, CHANNELS, "resets", BOTH),
        ("bf16", GRU | BF16 | {"gpu": "t4"}, CHANNELS, "all nan nan-resets", FORWARD),
        ("nan", GRU, CHANNELS | TWO_WARPS, "nan nan-resets", FORWARD),
        ("looking back", LOOKING | {"hidden_size": 20}, CHANNELS, "long", BOTH),
        ("two states", TWO_STATES | {"hidden_size": 20}, CHANNELS, "resets", BOTH),
        ("complex", COMPLEX | {"hidden_size": 20}, CHANNELS, "long resets", FORWARD),
    ),
    "dual channels": (
        ("one warp", GRU | {"model": MOVED_GRU}, CHANNELS, "long resets bare apart", BOTH),
        ("gradients apart", GRU | {"model": MOVED_GRU}, CHANNELS, "apart-asked", BACKWARD),
        ("two warps", GRU | {"model": MOVED_LRU}, CHANNELS | TWO_WARPS, "long resets all", BOTH),
        ("cluster", GRU | {"model": MOVED_SRU, "hidden_size": 20}, CHANNELS | CLUSTER, "long resets", BOTH),
        ("cluster of two warps", GRU | {"model": MOVED_GRU}, CHANNELS | CLUSTER | TWO_WARPS, "long", BOTH),
        ("tickets", GRU | LONG | {"model": MOVED_GRU}, CHANNELS | TICKETS, "long whole resets", BOTH),
        ("tickets fp64", GRU | LONG | FP64 | {"model": MOVED_GRU, "hidden_size": 20}, CHANNELS | TICKETS, "long", BOTH),
        ("bf16 parameters", GRU | BF16 | {"model": MOVED_LRU}, CHANNELS | {"channel_lanes": 8}, "mixed", BOTH),
        ("packed", GRU | {"model": MOVED_GRU}, CHANNELS, "packed", BOTH),
        ("reverse", GRU | REVERSE | {"model": MOVED_TWO, "layout": "TBD"}, CHANNELS, "resets", BOTH),
    ),
    "dual time": (
        ("two columns", BDT | {"model": MOVED_GRU}, TIME, "long resets bare apart", BOTH),
        ("two warps", BDT | {"model": MOVED_SRU}, TIME | TWO_WARPS | {"warps": 1}, "long resets part", BOTH),
        ("tickets", BDT | LONG | {"model": MOVED_GRU}, TIME | TICKETS, "long resets", BOTH),
        ("vectors", BDT | BF16 | {"model": MOVED_LRU}, TIME | {"steps_per_lane": 8}, "pieces pieces-resets apart", BOTH),
        ("reverse fp64", BDT | REVERSE | FP64 | {"model": MOVED_TWO}, TIME, "resets all", BOTH),
    ),
    "time": (
        ("two columns", BDT, TIME, "long resets bare", BOTH),
        ("two warps", BDT, TIME | TWO_WARPS | {"warps": 1}, "long resets part", BOTH),
        ("tickets", BDT | LONG, TIME | TICKETS, "long whole resets", BOTH),
        ("vectors", BDT | BF16, TIME | {"steps_per_lane": 8}, "pieces pieces-resets", BOTH),
        ("parts of vectors", BDT | BF16, TIME | {"steps_per_lane": 2}, "pieces", BOTH),
        ("tickets of vectors", BDT | LONG, TIME | TICKETS | {"steps_per_lane": 8}, "long resets", BOTH),
        ("parameters", BDT | BF16 | {"model": "rg_lru"}, TIME | {"steps_per_lane": 8}, "mixed pieces", BOTH),
        ("reverse", BDT | REVERSE | {"model": "min_lstm"}, TIME, "resets", BOTH),
        ("two warps, reverse", BDT | REVERSE | {"model": "min_lstm"}, TIME | TWO_WARPS | {"warps": 1}, "resets part", BOTH),
        ("log", BDT | LOG, TIME, "long", FORWARD),
        ("bf16", BDT | BF16, TIME, "all nan-resets", FORWARD),
        ("two warps bf16", BDT | BF16, TIME | TWO_WARPS | {"warps": 1}, "resets bare", BOTH),
        ("looking back", BDT | LOOKING, TIME, "long", BOTH),
        ("two states", BDT | TWO_STATES, TIME, "resets", BOTH),
        ("complex", COMPLEX | {"hidden_size": 3, "layout": "BDT"}, TIME, "long resets", FORWARD),
        ("one channel", BDT | {"hidden_size": 1}, TIME, "whole", BOTH),
    ),
    "diagonal": (
        ("channels", BF16 | {"model": "ind_rnn", "hidden_size": 20}, SERIAL, "long resets bare mixed", BOTH),
        ("all", BF16 | {"model": "ind_rnn", "hidden_size": 20}, {}, "all nan-resets", FORWARD),
        ("time", BDT | {"model": "ind_rnn"}, SERIAL | {"stages": 4}, "long resets bare pieces pieces-resets", BOTH),
        ("reverse", BDT | REVERSE | {"model": "ind_rnn"}, SERIAL, "resets", BOTH),
        ("no parameter", LEAKING, SERIAL, "bare", BOTH),
        ("divided", BF16 | {"model": "ind_rnn", "hidden_size": 20}, DIVIDED, "long resets bare mixed", BACKWARD),
        ("divided time", BDT | {"model": "ind_rnn"}, DIVIDED, "long resets pieces", BACKWARD),
        ("divided, reverse", BDT | REVERSE | {"model": "ind_rnn"}, DIVIDED, "resets", BACKWARD),
        ("divided fp64", BOUNDED | FP64, DIVIDED, "resets", BACKWARD),
        ("divided states", ENTANGLED, DIVIDED, "long resets", BACKWARD),
        ("divided columns", ENTANGLED | {"hidden_size": 60, "batch": 64}, DIVIDED, "resets", BACKWARD),
        ("divided, packed", ENTANGLED | BF16, DIVIDED, "packed", BACKWARD),
        ("divided sums", SUMS_UP_TO, DIVIDED, "long resets", BACKWARD),
        ("bounded", BOUNDED | {"gpu": "t4"}, {}, "resets", FORWARD),
        ("bounded fp64", BOUNDED | FP64, {}, "resets", FORWARD),
    ),
    "coupled": (
        ("channels", GRU | {"model": "complex_lru", "hidden_size": 20}, COUPLED, "long resets bare", FORWARD),
        ("time", BDT | {"model": "holt"}, ALONG_TIME, "long whole resets pieces", FORWARD),
        ("stretches", BDT | {"model": "holt"}, ALONG_TIME | {"stages": 8}, "long resets pieces", FORWARD),
        ("stretches bf16", BDT | BF16 | REVERSE | {"model": "holt"}, ALONG_TIME | {"stages": 16}, "long whole", FORWARD),
        ("stretches of two gates", BDT | {"model": "complex_lru"}, ALONG_TIME | {"stages": 8}, "long", FORWARD),
        ("stretches of an input", BDT | DRIVEN, ALONG_TIME | {"stages": 8}, "long", FORWARD),
        ("slow channels", TURNING, COUPLED, "long-slow resets-slow", FORWARD),
        ("growing channel", GROWING, COUPLED, "growing-zeros", FORWARD),
        # Each block has columns of several tiles of channels.
        ("columns one after another", GRU | {"model": "complex_lru"}, COUPLED, "resets", FORWARD),
        # Blocks share the columns of shorter sequences.
        ("one channel", BDT | {"model": "holt", "hidden_size": 1}, ALONG_TIME, "resets whole", FORWARD),
        ("memory", BF16 | {"model": "conv_min_gru", "hidden_size": 20}, COUPLED, "long resets mixed all gaps planes", FORWARD),
        (
            "both directions",
            BF16 | {"model": "conv_min_gru", "hidden_size": 20, "direction": "bidirectional"},
            COUPLED,
            "by-direction",
            FORWARD,
        ),
        (
            "reverse",
            BF16 | REVERSE | {"model": "conv_min_gru", "hidden_size": 33},
            COUPLED | {"channel_lanes": 32},
            "long resets",
            FORWARD,
        ),
        ("reverse time", BDT | REVERSE | FP64 | {"model": "holt"}, ALONG_TIME | {"stages": 8}, "resets whole", FORWARD),
        ("three scans", THREE_STATES, COUPLED | {"stages": 2}, "long resets", FORWARD),
        ("lanes of a map", THREE_STATES, COUPLED | MAP_LANES | {"stages": 2}, "long resets", FORWARD),
        ("lanes of a map of four", FOUR_STATES, COUPLED | MAP_LANES | {"stages": 2}, "long whole", FORWARD),
        (
            "lanes of a map, one channel",
            BDT | REVERSE | FP64 | FOUR_STATES | {"hidden_size": 1},
            ALONG_TIME | MAP_LANES | {"stages": 1},
            "resets whole",
            FORWARD,
        ),
        ("nan", GRU | {"model": "complex_lru"}, COUPLED | {"channel_lanes": 16}, "nan nan-resets", FORWARD),
        ("chunks", GRU | {"model": "complex_lru", "hidden_size": 20}, COUPLED | CHUNKS, "long resets", FORWARD),
        ("chunks of doubles", BDT | {"model": "holt"}, ALONG_TIME | CHUNKS, "long resets", FORWARD),
        (
            "chunks of memory",
            BF16 | REVERSE | {"model": "conv_min_gru", "hidden_size": 20},
            COUPLED | CHUNKS,
            "long resets",
            FORWARD,
        ),
    ),
    "vectors": (
        (
            "channels",
            SELECTIVE | BF16,
            {"lanes": 2, "tile_steps": 4, "threads": 32} | WHOLE_TIME,
            "long resets bare mixed",
            BOTH,
        ),
        ("all", SELECTIVE | BF16, {"lanes": 4, "tile_steps": 4} | WHOLE_TIME, "all nan-resets", FORWARD),
        ("time", BDT | SELECTIVE | {"groups": 2}, {"lanes": 2, "tile_steps": 8} | WHOLE_TIME, "long resets bare pieces", BOTH),
        (
            "lanes",
            SELECTIVE | REVERSE | FP64 | {"state_size": 11},
            {"lanes": 8, "tile_steps": 4} | WHOLE_TIME,
            "long resets",
            BOTH,
        ),
        (
            "warps",
            SELECTIVE | {"hidden_size": 70},
            {"lanes": 1, "tile_steps": 4, "threads": 64} | WHOLE_TIME,
            "long packed",
            BOTH,
        ),
        (
            "fewer values than threads",
            SELECTIVE | {"hidden_size": 70, "state_size": 4},
            {"lanes": 1, "tile_steps": 4, "threads": 64} | WHOLE_TIME,
            "long",
            FORWARD,
        ),
        (
            "fewer values than threads in time",
            BDT | SELECTIVE | {"hidden_size": 70, "state_size": 4},
            {"lanes": 1, "tile_steps": 4, "threads": 64} | WHOLE_TIME,
            "long",
            FORWARD,
        ),
        (
            "no input that is shared",
            {"model": "s4d", "hidden_size": 6, "state_size": 4},
            {"tile_steps": 4} | WHOLE_TIME,
            "long bare",
            BOTH,
        ),
        (
            "both kinds of states",
            BOTH_KINDS | {"hidden_size": 10},
            {"lanes": 2, "tile_steps": 4} | WHOLE_TIME,
            "long all resets bare",
            BOTH,
        ),
        ("copies", COPYING, {"lanes": 2, "tile_steps": 4, "threads": 32} | WHOLE_TIME, "long resets", BOTH),
        (
            "copies of time",
            BDT | SELECTIVE | {"hidden_size": 16},
            {"lanes": 2, "tile_steps": 8} | WHOLE_TIME,
            "pieces pieces-resets",
            BOTH,
        ),
        ("parts", SELECTIVE, {"lanes": 2, "tile_steps": 4, "time_parts": 4}, "long resets", BOTH),
        # No bias and no parameter of one value: nothing is added up over time.
        (
            "nothing to add up",
            {"model": "gated_linear", "hidden_size": 20, "state_size": 6},
            {"lanes": 2, "tile_steps": 4} | WHOLE_TIME,
            "bare",
            BACKWARD,
        ),
        ("gradients left out", SELECTIVE, {"lanes": 2, "tile_steps": 4} | WHOLE_TIME, "unasked", BACKWARD),
        (
            "parts of products",
            {"model": "gated_linear", "hidden_size": 20, "state_size": 6},
            {"lanes": 2, "tile_steps": 4, "time_parts": 2},
            "long resets",
            ("forward",),
        ),
        ("parts that copy", COPYING, {"lanes": 2, "tile_steps": 4, "threads": 32, "time_parts": 2}, "long resets", BOTH),
    ),
    "recurrent": (
        ("block", LSTM | {"hidden_size": 24}, DENSE, "long resets bare mixed cut-resets", BOTH),
        ("halves", LSTM | {"hidden_size": 64}, DENSE | {"split_k_warps": 2}, "long resets", BOTH),
        ("cluster", LSTM, DENSE | CLUSTER, "long resets", BOTH),
        ("shared cells", LSTM | WIDE, DENSE | CLUSTER | SHARED_CELLS, "long resets", BOTH),
        (
            "shared cells of a block",
            FP16 | {"model": "gru"} | WIDE,
            DENSE | SHARED_CELLS | {"split_k_warps": 4, "batch_tile": 8},
            "resets",
            BOTH,
        ),
        ("shared cells of a grid", BF16 | {"model": "gru", "gpu": "a100"} | WIDE, DENSE | GRID | SHARED_CELLS, "resets", BOTH),
        ("sums", LSTM | WIDE, DENSE | SHARED_CELLS | FOUR_BLOCKS, "long resets cut-resets", ("backward",)),
        (
            "sums of eight columns",
            FP16 | {"model": "gru"} | WIDE,
            DENSE | SHARED_CELLS | FOUR_BLOCKS | {"batch_tile": 8},
            "resets",
            ("backward",),
        ),
        (
            "sums of eight blocks",
            LSTM | {"hidden_size": 128},
            DENSE | SHARED_CELLS | {"cluster_blocks": 8},
            "long",
            ("backward",),
        ),
        # Half of the warps have no cells.
        ("sums of few cells", LSTM | WIDE, DENSE | SHARED_CELLS | FOUR_BLOCKS | {"split_k_warps": 4}, "resets", ("backward",)),
        ("sums tf32", {"model": "gru"} | WIDE, DENSE | SHARED_CELLS | FOUR_BLOCKS, "resets", ("backward",)),
        ("sums fma", FP64 | {"model": "elman"} | WIDE, DENSE | SHARED_CELLS | FOUR_BLOCKS, "resets", ("backward",)),
        (
            "cluster of halves",
            BF16 | {"model": "gru", "hidden_size": 64},
            DENSE | CLUSTER | {"split_k_warps": 2},
            "long resets",
            BOTH,
        ),
        ("grid", LSTM | {"gpu": "a100"}, DENSE | GRID, "long resets", BOTH),
        ("grid fp32", {"model": "gru", "hidden_size": 40, "gpu": "a100"}, DENSE | GRID, "resets", BOTH),
        ("heads", FP16 | {"model": "slstm", "hidden_size": 24, "heads": 2}, DENSE, "resets bare", BOTH),
        ("tf32", {"model": "gru", "hidden_size": 40}, DENSE | CLUSTER, "long resets", BOTH),
        ("fma", FP64 | {"model": "gru", "hidden_size": 20}, DENSE, "long resets", BOTH),
        ("four columns", LSTM, DENSE | CLUSTER | {"batch_tile": 4}, "resets", BOTH),
        ("eight columns", LSTM, DENSE | {"batch_tile": 8}, "resets", BOTH),
        ("pairs of products", LSTM, DENSE | CLUSTER | PAIRS | {"row_warps": 3}, "long resets", ("forward",)),
        (
            "pairs of three products",
            FP16 | {"model": "gru", "hidden_size": 31},
            DENSE | PAIRS | {"row_warps": 4},
            "resets",
            ("forward",),
        ),
        ("pairs, eight columns", LSTM, DENSE | CLUSTER | PAIRS | {"row_warps": 3, "batch_tile": 8}, "resets", ("forward",)),
        (
            "pairs, shared",
            BF16 | {"model": "gru", "hidden_size": 32},
            DENSE | PAIRS | {"row_warps": 4, "batch_tile": 8, "split_k_warps": 2},
            "resets",
            ("forward",),
        ),
        ("reverse", BF16 | REVERSE | {"model": "elman", "hidden_size": 24}, DENSE, "resets", BOTH),
        ("shared", LSTM | {"hidden_size": 128}, DENSE | {"row_warps": 8, "batch_tile": 8}, "resets", BOTH),
        ("grid of five", {"model": "elman", "hidden_size": 72, "gpu": "a100"}, DENSE | FIVE, "resets", BOTH),
        ("odd units", LSTM | {"hidden_size": 25}, DENSE, "long resets", BOTH),
        ("packed", LSTM | {"hidden_size": 24}, DENSE, "packed", BOTH),
        ("parameter", LEAKY | BF16, DENSE, "long resets bare mixed", BOTH),
        ("parameter of a cluster", LEAKY | {"hidden_size": 40}, DENSE | CLUSTER, "resets", BOTH),
        (
            "grid of halves",
            BF16 | {"model": "gru", "hidden_size": 64, "gpu": "a100"},
            DENSE | GRID | {"split_k_warps": 2},
            "long",
            BOTH,
        ),
        ("grid of one warp", LSTM | {"hidden_size": 24, "gpu": "a100"}, DENSE | GRID | {"row_warps": 1}, "long resets", BOTH),
        ("grid of eight", LSTM | {"gpu": "a100"}, DENSE | GRID | {"batch_tile": 8}, "resets", BOTH),
        ("grid of four", LSTM | {"model": "gru", "gpu": "a100"}, DENSE | GRID | {"batch_tile": 4}, "resets", BOTH),
        ("tf32 split once", {"model": "gru", "hidden_size": 24}, DENSE | {"presplit_tf32": 1, "batch_tile": 4}, "resets", BOTH),
        ("tf32 of four", {"model": "elman", "hidden_size": 40}, DENSE | CLUSTER | {"batch_tile": 4}, "resets", BOTH),
        ("tf32 of eight", {"model": "elman", "hidden_size": 40}, DENSE | CLUSTER | {"batch_tile": 8}, "resets", BOTH),
        (
            "tf32 of halves",
            {"model": "lstm", "hidden_size": 64},
            DENSE | {"split_k_warps": 2, "batch_tile": 4},
            "long resets",
            BOTH,
        ),
        ("fma of four", FP64 | {"model": "elman", "hidden_size": 40}, DENSE | CLUSTER | {"batch_tile": 4}, "resets", BOTH),
        (
            "fma of eight",
            FP64 | {"model": "elman", "hidden_size": 20},
            DENSE | {"batch_tile": 8, "split_k_warps": 2},
            "resets",
            BOTH,
        ),
        (
            "clipped",
            BF16 | {"model": "gru", "hidden_size": 24, "recurrent_gradient_clip": 0.05},
            DENSE,
            "long resets",
            ("backward",),
        ),
        ("cluster, reverse", LSTM | REVERSE, DENSE | CLUSTER, "resets", BOTH),
        ("halves of a cluster", {"model": "gru", "hidden_size": 40}, DENSE | CLUSTER, "halves halves-bare", ("backward",)),
        ("halves of time", LEAKY | BF16, DENSE, "halves", ("backward",)),
        ("rounds of a block", BF16 | {"model": DEEP, "hidden_size": 24}, DENSE, "long resets halves", BOTH),
        ("rounds of a cluster", {"model": RESET_BEFORE, "hidden_size": 40}, DENSE | CLUSTER, "long resets", BOTH),
        ("rounds of a grid", FP16 | REVERSE | {"model": DEEP, "hidden_size": 24, "gpu": "a100"}, DENSE | GRID, "resets", BOTH),
        # Warps without cells.
        (
            "rounds of halves",
            BF16 | {"model": RESET_BEFORE, "hidden_size": 64},
            DENSE | CLUSTER | {"split_k_warps": 2},
            "resets",
            BOTH,
        ),
        (
            "rounds of halves of a grid",
            FP16 | {"model": RESET_BEFORE, "hidden_size": 64, "gpu": "a100"},
            DENSE | GRID | {"split_k_warps": 2},
            "resets",
            BOTH,
        ),
        (
            "rounds of halves of a block",
            BF16 | {"model": RESET_BEFORE, "hidden_size": 64},
            DENSE | {"row_warps": 4, "split_k_warps": 2},
            "resets",
            BOTH,
        ),
        (
            "rounds, clipped",
            FP64 | {"model": OF_TWO_STATES, "hidden_size": 24, "recurrent_gradient_clip": 0.05},
            DENSE,
            "resets",
            ("backward",),
        ),
        ("norms of a block", {"model": OF_ROUNDS, "hidden_size": 24}, DENSE, "long resets", BOTH),
        ("norms of a cluster", BF16 | {"model": GATES_TOGETHER, "hidden_size": 40}, DENSE | CLUSTER, "resets halves", BOTH),
        ("norms of a grid", FP16 | {"model": OF_ROUNDS, "hidden_size": 24, "gpu": "a100"}, DENSE | GRID, "resets", BOTH),
        (
            "norms of halves",
            BF16 | REVERSE | {"model": "layer_norm_lstm", "hidden_size": 64},
            DENSE | CLUSTER | {"split_k_warps": 2},
            "resets",
            BOTH,
        ),
        # Some blocks have no units; of a grid, lanes share the means of uneven numbers of blocks.
        (
            "norms of few units",
            {"model": GATES_TOGETHER, "hidden_size": 24},
            DENSE | FOUR_BLOCKS | {"row_warps": 1},
            "resets",
            BOTH,
        ),
        (
            "norms of nine blocks",
            {"model": MIXED_LISTS, "hidden_size": 144, "gpu": "a100"},
            DENSE | {"grid_blocks": 9, "row_warps": 1},
            "resets",
            BOTH,
        ),
        # Lanes share as many blocks, of which the last has fewer units.
        (
            "norms of ten blocks",
            {"model": MIXED_LISTS, "hidden_size": 152, "gpu": "a100"},
            DENSE | {"grid_blocks": 10, "row_warps": 1},
            "resets",
            FORWARD,
        ),
        # Means over parts of a head beside means over all: parts within a warp, several in a block, and blocks of a part.
        ("norms of parts", {"model": OF_PARTS, "hidden_size": 24}, DENSE, "long resets", BOTH),
        ("norms of odd parts", {"model": OF_PARTS, "hidden_size": 36}, DENSE, "resets", FORWARD),
        (
            "norms of parts of blocks",
            {"model": OF_PARTS, "hidden_size": 64},
            DENSE | CLUSTER | {"row_warps": 2},
            "resets",
            BOTH,
        ),
        ("norms of blocks of parts", BF16 | {"model": OF_PARTS | HALF, "hidden_size": 64}, DENSE | FOUR_BLOCKS, "resets", BOTH),
        (
            "norms of parts of a grid",
            FP16 | {"model": OF_PARTS | HALF, "hidden_size": 64, "gpu": "a100"},
            DENSE | {"grid_blocks": 4, "row_warps": 1},
            "resets",
            BOTH,
        ),
        ("inputs", BF16 | {"model": GAPS, "hidden_size": 40}, DENSE | CLUSTER, "long resets", BOTH),
        ("blocks of R", BLOCKS_OF_R | {"hidden_size": 32}, DENSE | CLUSTER | {"row_warps": 1}, "resets", BOTH),
        (
            "shared blocks of R",
            BLOCKS_OF_R | WIDE,
            DENSE | FOUR_BLOCKS | {"row_warps": 1, "split_k_warps": 2},
            "long resets",
            BOTH,
        ),
        (
            "halves of blocks of R",
            BLOCKS_OF_R | {"hidden_size": 32},
            DENSE | CLUSTER | SHARED_CELLS,
            "resets",
            BACKWARD,
        ),
        ("more blocks of R", BLOCKS_OF_R | WIDE, DENSE | FOUR_BLOCKS | {"row_warps": 1}, "resets", BACKWARD),
        ("pairs of blocks of R", BLOCKS_OF_R | {"hidden_size": 32}, DENSE | PAIRS | {"row_warps": 4}, "resets", FORWARD),
        ("tf32 once", ONCE | {"model": "gru", "hidden_size": 40}, DENSE | CLUSTER, "long resets", BOTH),
        ("tf32 once, odd units", ONCE | {"model": "elman", "hidden_size": 25}, DENSE, "resets", BOTH),
        ("tf32 once, shared", ONCE | {"model": "lstm", "hidden_size": 128}, DENSE | {"row_warps": 8}, "resets", BOTH),
    ),
    # Backwards whose products share an operand: rows of x and of the output before each step.
    "joined": (
        ("warps", LSTM | JOINED, DENSE, "long resets packed whole-bare mixed nan beyond cut-resets", BACKWARD),
        ("odd units", ONCE | JOINED | {"model": "elman", "hidden_size": 25}, DENSE, "long resets", BACKWARD),
        ("cluster", LSTM | JOINED | {"layout": "TBD"}, DENSE | CLUSTER, "resets mixed", BACKWARD),
        ("reverse", FP16 | REVERSE | JOINED | {"model": "slstm", "hidden_size": 24}, DENSE, "resets packed", BACKWARD),
        ("fp64", FP64 | JOINED | {"model": "lstm", "hidden_size": 12}, DENSE, "resets", BACKWARD),
        ("both directions", LSTM | JOINED | {"direction": "bidirectional"}, DENSE, "resets packed cut-resets", BACKWARD),
        ("warpgroups", LSTM | JOINED | {"hidden_size": 64}, LARGE, "long resets whole mixed cut-resets", BACKWARD),
        ("groups of columns", LSTM | JOINED, LARGE | {"column_groups": 2, "row_tiles": 2}, "resets", BACKWARD),
        ("one by one", FP16 | JOINED | {"model": "lstm", "hidden_size": 20}, BY_THREADS, "long resets", BACKWARD),
    ),
    "large": (
        ("four products", LSTM, LARGE | {"row_tiles": 2}, "long resets whole whole-resets bare mixed cut-resets", BOTH),
        ("three products", FP16 | {"model": "gru", "hidden_size": 24}, LARGE | {"batch_tile": 16}, "long resets whole", BOTH),
        ("two products", BF16 | TWO_PRODUCTS | {"hidden_size": 40}, LARGE, "long resets whole", BOTH),
        ("one product", FP16 | REVERSE | {"model": "elman", "hidden_size": 40}, LARGE, "long resets empty-resets", BOTH),
        ("tf32", ONCE | {"model": "gru", "hidden_size": 20}, LARGE, "long resets", BOTH),
        ("groups of columns", LSTM, LARGE | {"column_groups": 2, "row_tiles": 2}, "resets", BOTH),
        # A tile has all units of the head, or two tiles: rows of products, and of gates of one head, lie one after the other.
        ("joined rows", LSTM | {"hidden_size": 64}, LARGE, "long resets mixed", BACKWARD),
        ("joined rows of heads", LSTM | {"hidden_size": 128, "heads": 2}, LARGE, "resets", BACKWARD),
        (
            "joined rows of tiles",
            BF16 | TWO_PRODUCTS | {"hidden_size": 128},
            LARGE | {"row_tiles": 2, "batch_tile": 16},
            "long resets",
            BACKWARD,
        ),
        ("halves", ONCE | {"model": "elman", "hidden_size": 40}, LARGE | HALVES | {"batch_tile": 16}, "long resets", BOTH),
        (
            "cluster",
            BF16 | {"model": "elman", "hidden_size": 72},
            LARGE | TWO_THAT_SUM | {"batch_tile": 16},
            "long resets",
            BACKWARD,
        ),
        # A kernel that reads every value, so that shared memory is full.
        (
            "full cluster",
            BF16 | TWO_PRODUCTS | {"hidden_size": 72},
            LARGE | TWO_THAT_SUM | {"batch_tile": 16},
            "resets",
            BACKWARD,
        ),
        ("cluster of four", LSTM | {"hidden_size": 40}, LARGE | FOUR_THAT_SUM | {"batch_tile": 32}, "resets", BACKWARD),
        (
            "cluster of halves",
            ONCE | {"model": "lstm", "hidden_size": 24},
            LARGE | TWO_THAT_SUM | HALVES | {"batch_tile": 32},
            "resets",
            BACKWARD,
        ),
        ("shared", BF16 | {"model": "elman", "hidden_size": 200}, LARGE | FOUR_TILES | {"batch_tile": 32}, "resets", FORWARD),
        ("grid of sums", LSTM | {"hidden_size": 40}, LARGE | BLOCKS_THAT_SUM | {"batch_tile": 16}, "long resets", BOTH),
        (
            "grid of halves",
            ONCE | {"model": "elman", "hidden_size": 40},
            LARGE | BLOCKS_THAT_SUM | HALVES | {"batch_tile": 32},
            "resets",
            BOTH,
        ),
        ("shared backward", ONCE | {"model": "lstm", "hidden_size": 100}, LARGE, "long", BACKWARD),
        # The ring has no room for all chunks of two steps.
        ("short ring", ONCE | {"model": "elman", "hidden_size": 256}, LARGE | {"batch_tile": 128}, "long", FORWARD),
        ("heads", FP16 | {"model": "slstm", "hidden_size": 32, "heads": 2}, LARGE, "resets bare", BOTH),
        ("parameter", LEAKY | BF16, LARGE, "long resets bare mixed", BOTH),
        ("inputs", BF16 | {"model": GAPS, "hidden_size": 40}, LARGE, "long resets", BOTH),
        ("packed", LSTM | {"hidden_size": 24}, LARGE | FOUR_TILES, "packed", BOTH),
        ("all", LSTM | {"hidden_size": 24}, LARGE | FOUR_TILES, "all", FORWARD),
        (
            "clipped",
            BF16 | {"model": "gru", "hidden_size": 24, "recurrent_gradient_clip": 0.05},
            LARGE,
            "long resets whole whole-resets",
            BACKWARD,
        ),
        ("halves of time", FP16 | {"model": "gru", "hidden_size": 24}, LARGE, "halves halves-bare halves-whole", BACKWARD),
        ("streamed", LSTM, STREAMED | {"row_tiles": 2}, "long resets whole", BOTH),
        (
            "streamed in part",
            ONCE | {"model": "elman", "hidden_size": 256},
            STREAMED | FOUR_TILES | {"batch_tile": 32},
            "long",
            FORWARD,
        ),
        ("streamed sums", LSTM | {"hidden_size": 72}, STREAMED | BLOCKS_THAT_SUM | {"batch_tile": 16}, "resets", BOTH),
        (
            "streamed halves",
            ONCE | {"model": "elman", "hidden_size": 72},
            STREAMED | HALVES | {"batch_tile": 16},
            "resets",
            BOTH,
        ),
        ("streamed groups", LSTM, STREAMED | {"column_groups": 2}, "resets", BOTH),
        ("streamed heads", FP16 | {"model": "slstm", "hidden_size": 32, "heads": 2}, STREAMED, "resets", BOTH),
        # Products by mma.sync, with bulk copies and without.
        ("b200", LSTM | B200, LARGE | {"row_tiles": 2}, "long resets whole", BOTH),
        ("b200 odd tiles", FP16 | B200 | {"model": "gru", "hidden_size": 24}, LARGE | {"batch_tile": 24}, "resets", BOTH),
        ("b200 tf32", ONCE | B200 | {"model": "gru", "hidden_size": 20}, LARGE | {"batch_tile": 16}, "resets", BOTH),
        ("b200 shared", BF16 | B200 | {"model": "elman", "hidden_size": 200}, LARGE | FOUR_TILES, "resets", FORWARD),
        ("b200 cluster", BF16 | B200 | {"model": "elman", "hidden_size": 72}, LARGE | TWO_THAT_SUM, "resets", BACKWARD),
        ("b200 streamed", LSTM | B200, STREAMED, "resets", BOTH),
        ("b200 three of tf32", B200 | {"model": "gru", "hidden_size": 20}, LARGE | {"batch_tile": 16}, "resets", BOTH),
        ("a100", LSTM | A100, LARGE | {"row_tiles": 2}, "long resets whole", BOTH),
        ("a100 streamed", LSTM | A100 | {"hidden_size": 72}, STREAMED | BLOCKS_THAT_SUM, "resets", BOTH),
        ("a100 groups", A100 | {"model": "gru", "hidden_size": 20}, LARGE | {"column_groups": 2}, "resets", BOTH),
        ("three of tf32", {"model": "gru", "hidden_size": 20}, LARGE, "long resets", BOTH),
        ("three of tf32, shared", {"model": "lstm", "hidden_size": 100}, LARGE, "long", BOTH),
        ("three of tf32, streamed", {"model": "elman", "hidden_size": 72}, STREAMED | HALVES, "resets", BOTH),
        # Shared memory has no room for the values of all sequences.
        (
            "streamed in rounds",
            ONCE | {"model": "lstm", "hidden_size": 24},
            STREAMED | {"row_tiles": 2, "batch_tile": 192},
            "long resets",
            FORWARD,
        ),
        (
            "streamed in rounds, backward",
            BF16 | {"model": "gru", "hidden_size": 72},
            STREAMED | {"row_tiles": 2, "batch_tile": 64},
            "long resets",
            BACKWARD,
        ),
        (
            "rounds of warpgroups",
            RESET_FIRST,
            LARGE | {"row_tiles": 2},
            "long resets whole whole-resets bare mixed halves cut-first-resets",
            BOTH,
        ),
        (
            "rounds of five products",
            FP16 | REVERSE | {"model": DEEP, "hidden_size": 40},
            LARGE,
            "long resets whole-resets",
            BOTH,
        ),
        ("rounds, four of a tile", BF16 | {"model": PRODUCT_ALONE, "hidden_size": 24}, LARGE, "resets packed", BOTH),
        ("rounds of tf32", ONCE | {"model": RESET_BEFORE, "hidden_size": 20}, LARGE | {"column_groups": 2}, "resets", BOTH),
        ("rounds of three of tf32", {"model": DEEP, "hidden_size": 40}, LARGE | HALVES | {"batch_tile": 16}, "resets", BOTH),
        ("rounds of sums", RESET_FIRST, LARGE | BLOCKS_THAT_SUM | {"batch_tile": 16}, "long resets", BOTH),
        ("rounds in a cluster", RESET_FIRST, LARGE | TWO_THAT_SUM | {"batch_tile": 16}, "long resets", BACKWARD),
        ("rounds, streamed", RESET_FIRST, STREAMED | {"row_tiles": 2}, "long resets", BOTH),
        ("rounds of an input", BF16 | {"model": GAP_OF_ROUNDS, "hidden_size": 40}, LARGE, "resets all", FORWARD),
        ("rounds of an input, backward", BF16 | {"model": GAP_OF_ROUNDS, "hidden_size": 40}, LARGE, "resets", BACKWARD),
        ("a100 rounds", RESET_FIRST | A100, LARGE, "resets", BOTH),
        # Means over units: of many tiles and of two of a block, of shares of the sequences, and within rounds of products.
        (
            "norms of warpgroups",
            BF16 | {"model": GATES_TOGETHER, "hidden_size": 64},
            LARGE | {"row_tiles": 2},
            "long resets",
            FORWARD,
        ),
        ("norms of groups", FP16 | {"model": MIXED_LISTS, "hidden_size": 128}, LARGE | {"column_groups": 2}, "resets", FORWARD),
        (
            "norms of sums",
            ONCE | REVERSE | {"model": "layer_norm_lstm", "hidden_size": 32},
            LARGE | BLOCKS_THAT_SUM | {"batch_tile": 16},
            "resets",
            FORWARD,
        ),
        ("norms in rounds of warpgroups", BF16 | {"model": OF_ROUNDS, "hidden_size": 128}, LARGE, "long resets", FORWARD),
        (
            "rounds of warpgroups, clipped",
            FP16 | {"model": RESET_BEFORE, "hidden_size": 24, "recurrent_gradient_clip": 0.05},
            LARGE,
            "resets",
            BACKWARD,
        ),
        (
            "streamed cluster",
            BF16 | {"model": "elman", "hidden_size": 136},
            STREAMED | TWO_THAT_SUM | {"batch_tile": 16},
            "long",
            BACKWARD,
        ),
    ),
    "alternating": (
        ("fp64", FP64 | {"model": "lstm", "hidden_size": 128, "gpu": "t4"}, {}, "long resets bare cut-resets", BOTH),
        ("fp16", FP16 | REVERSE | {"model": "gru", "hidden_size": 24, "gpu": "t4"}, {}, "resets mixed", BOTH),
        ("parameter", LEAKY | FP16 | {"gpu": "t4"}, {}, "resets bare mixed all", BOTH),
        ("rounds", FP64 | {"model": DEEP, "hidden_size": 24, "gpu": "t4"}, {}, "long resets bare", BOTH),
        (
            "norms",
            {"model": GATES_TOGETHER, "hidden_size": 24, "heads": 2},
            BY_THREADS,
            "long bare resets cut-resets zeros-of-memory",
            BOTH,
        ),
        ("norms of inputs", {"model": NORMED, "hidden_size": 24}, BY_THREADS, "resets zeros-of-memory", BOTH),
        ("inputs", FP16 | {"model": GAPS, "hidden_size": 24, "gpu": "t4"}, {}, "resets", BOTH),
        ("norms over all", BF16 | {"model": OF_BOTH, "hidden_size": 70, "heads": 2}, BY_THREADS, "resets mixed", BOTH),
        (
            "norms, clipped",
            {"model": GATES_TOGETHER, "hidden_size": 24, "recurrent_gradient_clip": 0.05},
            BY_THREADS,
            "long",
            BOTH,
        ),
        ("norms in rounds", {"model": OF_ROUNDS, "hidden_size": 24}, BY_THREADS, "long resets", BOTH),
        ("norms in parts", {"model": OF_PARTS, "hidden_size": 24}, BY_THREADS, "resets", BOTH),
        ("norms in parts alone", BF16 | {"model": BY_PARTS, "hidden_size": 40}, BY_THREADS, "resets", BOTH),
        ("clipped", FP16 | {"model": "gru", "hidden_size": 24, "gpu": "t4", "recurrent_gradient_clip": 0.05}, {}, "long", BOTH),
    ),
}
STEPS: tuple[tuple[str, dict[str, Any], dict[str, int]], ...] = (
    ("step of a scan", {"model": "rg_lru", "hidden_size": 20, "precision": "bf16"}, {}),
    ("step of a diagonal", {"model": "ind_rnn", "hidden_size": 20}, {}),
    ("step of n values", SELECTIVE | {"precision": "bf16"}, {"lanes": 4}),
    ("step of chunks", SELECTIVE | {"state_size": 16}, {"lanes": 2}),
    ("step of both kinds of states", BOTH_KINDS | {"hidden_size": 10, "state_size": 5}, {"lanes": 2}),
    ("step", {"model": "lstm", "hidden_size": 24, "precision": "bf16"}, {"units": 2, "warps": 2, "batch_tile": 2}),
    ("step of four", {"model": "gru", "hidden_size": 40}, {"units": 4, "warps": 2, "batch_tile": 4}),
    ("step of one", {"model": "slstm", "hidden_size": 24, "heads": 2}, {"units": 1, "warps": 1, "batch_tile": 1}),
    ("step with units left", {"model": "gru", "hidden_size": 20}, {"units": 4, "warps": 2, "batch_tile": 2}),
    ("step of whole pieces", {"model": "gru", "hidden_size": 64}, {"units": 2, "warps": 1, "batch_tile": 1}),
    ("step with a parameter", LEAKY | {"hidden_size": 26}, {"units": 2, "warps": 2, "batch_tile": 2}),
    ("step with inputs", {"model": GAPS, "hidden_size": 20}, {"units": 4, "warps": 2, "batch_tile": 2}),
    ("step in rounds", {"model": "gru", "hidden_size": 150}, {"units": 1, "warps": 2, "batch_tile": 16, "stages": 1}),
    # Steps whose blocks wait for each other, in a layout that no kernel over time takes in one launch.
    (
        "rounds of products",
        BDT | FP16 | {"model": DEEP, "hidden_size": 66, "heads": 3},
        {"units": 2, "warps": 2, "batch_tile": 2, "stages": 1},
    ),
    ("rounds of one", BDT | FP64 | {"model": RESET_BEFORE, "hidden_size": 10}, {"units": 4, "warps": 4, "batch_tile": 4}),
    ("rounds of logarithms", BDT | {"model": LOGARITHMIC, "hidden_size": 10}, {"units": 4, "warps": 1, "batch_tile": 2}),
    (
        "norms between blocks",
        BDT | {"model": GATES_TOGETHER, "hidden_size": 27, "heads": 3},
        {"units": 1, "warps": 2, "batch_tile": 1},
    ),
    ("norms of one", BDT | {"model": "layer_norm_lstm", "hidden_size": 12}, {"units": 4, "warps": 4, "batch_tile": 1}),
    (
        "norms of parts between blocks",
        BDT | {"model": OF_PARTS | HALF, "hidden_size": 24},
        {"units": 2, "warps": 2, "batch_tile": 2},
    ),
    ("norms of parts in blocks", BDT | {"model": OF_PARTS, "hidden_size": 16}, {"units": 4, "warps": 2, "batch_tile": 2}),
    ("norms and rounds", BDT | BF16 | {"model": OF_ROUNDS, "hidden_size": 24}, {"units": 2, "warps": 2, "batch_tile": 4}),
)
# (name, spec, wanted, kinds of calls)
STEPS_ON_POOL, NARROW_STEPS, OVER_TIME = ("step", "beyond step"), ("step", "narrow step"), ("time", "lengths", "packed")
POOLS: tuple[tuple[str, dict[str, Any], dict[str, int], tuple[str, ...]], ...] = (
    ("scan", {"model": "min_gru", "hidden_size": 5}, {}, STEPS_ON_POOL),
    ("diagonal", BF16 | {"model": "ind_rnn", "hidden_size": 5}, {}, NARROW_STEPS),
    ("n values", SELECTIVE | FP16 | {"hidden_size": 6, "state_size": 5}, {"lanes": 4}, NARROW_STEPS),
    ("chunks", SELECTIVE | BF16 | {"hidden_size": 6, "state_size": 8}, {"lanes": 2}, NARROW_STEPS),
    ("chunks of 8", SELECTIVE | BF16 | {"hidden_size": 6, "state_size": 16}, {"lanes": 2}, NARROW_STEPS),
    ("n values of a warp", SELECTIVE | {"hidden_size": 16, "state_size": 4}, {"lanes": 2} | BY_THREADS, ("step",)),
    ("both kinds of states", BOTH_KINDS | {"hidden_size": 10, "state_size": 5}, {"lanes": 2}, STEPS_ON_POOL),
    ("dense", {"model": "lstm", "hidden_size": 12}, {"units": 2, "warps": 2, "batch_tile": 2}, STEPS_ON_POOL),
    ("units left", {"model": "gru", "hidden_size": 20}, {"units": 4, "warps": 2, "batch_tile": 2}, STEPS_ON_POOL),
    ("heads", FP16 | {"model": "slstm", "hidden_size": 24, "heads": 2}, {"units": 1, "warps": 1}, NARROW_STEPS),
    ("rounds", FP16 | {"model": RESET_BEFORE, "hidden_size": 12}, {}, NARROW_STEPS),
    ("scan of rows", {"model": "min_gru", "hidden_size": 5}, CHANNELS, OVER_TIME),
    ("steps first", {"model": "min_gru", "hidden_size": 5, "layout": "TBD"}, CHANNELS, OVER_TIME[:2]),
    ("channels first", SELECTIVE | BDT | {"model": "selective", "hidden_size": 6, "state_size": 4}, {}, OVER_TIME[:2]),
)
# (name, spec, wanted, calls): lanes without a channel, values that lanes lack, several blocks of a sequence, and chunks.
ROUNDS_OF_DRAFTS = ("drafts", "drafts of lengths", "long drafts of lengths")
DRAFTS: tuple[tuple[str, dict[str, Any], dict[str, int], tuple[str, ...]], ...] = (
    ("places", {"model": "min_gru", "hidden_size": 5}, {}, NOTES),
    (
        "n values",
        SELECTIVE | FP16 | {"hidden_size": 6, "state_size": 5, "groups": 2, "layout": "BDT"},
        {"lanes": 4},
        ROUNDS_OF_DRAFTS,
    ),
    ("both kinds of states", BOTH_KINDS | {"hidden_size": 16, "state_size": 5}, {"lanes": 2} | BY_THREADS, ROUNDS_OF_DRAFTS),
    (
        "chunks",
        SELECTIVE | BF16 | {"hidden_size": 16, "state_size": 16},
        {"lanes": 2},
        ("narrow drafts of lengths", "drafts of odd steps"),
    ),
)
# So many steps that blocks take more than one turn, and the probability with which values are dropped.
DROPOUT_STEPS, DROPPED = 23, 0.3
DROPOUTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dropout", {"model": "ind_rnn", "hidden_size": 24, "precision": "bf16"}),
    ("dropout in fp16, some aligned", {"model": "ind_rnn", "hidden_size": 20, "precision": "fp16"}),
    ("dropout in fp32, one by one", {"model": "ind_rnn", "hidden_size": 5}),
    ("dropout in fp64", {"model": "ind_rnn", "hidden_size": 6, "precision": "fp64"}),
)
# Of tiles of 512 steps: two and a part of a third, which ends within the steps of a thread or with them ("whole"); or few
# steps; or a group of tiles and two of the next.
FILTER_CASES = {
    "long": Case(2, 1100),
    "whole": Case(2, 1096),
    "zeros": Case(2, 1100),
    "row": Case(1, 1100),
    "step": Case(2, 1),
    "bare": Case(2, 1),
    "groups": Case(1, 33 * 512 + 5),
    "grows": Case(2, 20),
}
USUAL = tuple(call for call in FILTER_CASES if call not in ("groups", "grows"))
# (name, order, precision, tiles in shared memory, calls)
FILTERS: tuple[tuple[str, int, PrecisionName, int, tuple[str, ...]], ...] = (
    ("filter", 2, "fp32", 1, (*USUAL, "groups")),
    ("filter of order 1", 1, "fp64", 2, (*USUAL, "grows")),
    ("filter of order 4", 4, "fp64", 1, USUAL),
)


@cache
def problems_of(family: str) -> tuple[Problem, ...]:
    """Return the problems of a family of kernels."""
    if family == "step":
        return tuple(
            Problem(name, tuple(spec.items()), tuple(wanted.items()), "step", call)
            for name, spec, wanted in STEPS
            for call in ("long", "bare", "resets", *(("odd", "odd rows") if "lanes" in wanted else ()))
        )
    if family == "pool":
        return tuple(
            Problem(f"pool of {name}", (*spec.items(), ("training", False)), tuple(wanted.items()), "pool", f"{kind}: {call}")
            for name, spec, wanted, kinds in POOLS
            for kind in kinds
            for call in CALLS
        )
    if family == "draft":
        return tuple(
            Problem(f"drafts, {name}", (*spec.items(), ("training", False)), tuple(wanted.items()), "draft", call)
            for name, spec, wanted, calls in DRAFTS
            for call in calls
        )
    if family == "filter":
        wanted = (("threads", 64), ("steps_per_thread", 8))
        specs = ((name, filter_spec(precision, order), stages, calls) for name, order, precision, stages, calls in FILTERS)
        return tuple(
            Problem(
                name,
                (("model", spec.model), ("hidden_size", 2), ("precision", spec.precision), ("layout", "BDT")),
                (*wanted, ("stages", stages)),
                kernel_pass,
                call,
            )
            for name, spec, stages, calls in specs
            for kernel_pass in FILTER_PASSES
            for call in calls
        )
    if family == "dropout":
        return tuple(Problem(name, tuple(spec.items()), (("threads", 64),), "dropout", "long") for name, spec in DROPOUTS)
    return tuple(
        Problem(f"{family} {name}", tuple(spec.items()), tuple(wanted.items()), kernel_pass, call.replace("-", " "))
        for name, spec, wanted, calls, passes in FAMILIES[family]
        for kernel_pass in passes
        for call in calls.split()
    )
