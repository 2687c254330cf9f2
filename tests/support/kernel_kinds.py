"""Every kind of kernel there is, small: of each family, strategy and scope, of cells of one's own and of raw scans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from support.small_problems import BDT, CHANNELS, CLUSTER, DENSE, FAMILIES, LONG, TICKETS, TIME, TWO_WARPS, WantedBuilder

import minrnn_gen
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.interface import RUNS_REVERSED
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import Arrays, backward_of, forward_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.precision import error_allowed, remembered_error
from minrnn_gen.raw_scan.kernels import RawSpec
from minrnn_gen.run.target import target_of

RAW = {"name": "raw", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]}
LOG_RAW = {"name": "log_raw", "equations": "h[t] = exp(W.a) * h[t-1] + W.b", "gates": ["a", "b"]}
# Named like what C++, CUDA and the templates have: in a kernel none of these may meet another.
OWN_SCAN = {
    "name": "own_scan",
    "equations": "stage = sigmoid(W.new + sum)\nstate[t] = stage * state[t-1] + (1 - stage) * tanh(W.float4)\n"
    "stream[t] = state[t] * sigmoid(W.of)",
    "states": ["state", "stream"],
    "output": "stream",
    "parameters": ["sum"],
}
OWN_DIAGONAL = {"name": "own_diagonal", "equations": "state[t] = tanh(W.real + long * state[t-1])", "parameters": ["long"]}
OWN_DENSE = {
    "name": "own_dense",
    "equations": "gate = sigmoid(W.dy + R.dy)\n"
    "product[t] = gate * product[t-1] + (1 - gate) * tanh(W.CELLS + template * R.CELLS)",
    "parameters": ["template"],
}
# Of each class: the smaller of two, the larger, and what is not below 0, of values that may be NaN.
CHOOSING = {
    "scan": "h[t] = sigmoid(W.z) * h[t-1] + max(min(W.a, W.b), 0.5) + relu(W.c)",
    "diagonal": "h[t] = tanh(max(min(W.a, W.b), h[t-1]) + relu(W.c))",
    "dense": "h[t] = sigmoid(W.z + R.z) * h[t-1] + max(min(W.a, W.b), relu(W.c))",
}


@dataclass(frozen=True, eq=False)
class Kind:
    """A kernel by its spec and by what is wanted of its plans."""

    name: str
    spec: Mapping[str, Any]
    wanted: Mapping[str, int]

    def __str__(self) -> str:
        return self.name

    @property
    def is_complex(self) -> bool:
        """Whether it is a raw scan of complex numbers."""
        return str(self.spec.get("precision")).startswith("complex")

    @property
    def has_R(self) -> bool:
        """Whether it is a dense cell."""
        return self.name.startswith(("recurrent", "large", "alternating", "own dense"))

    @property
    def is_raw(self) -> bool:
        """Whether its gates are coefficients, which are given without a bias, lengths or resets."""
        return self.is_complex or self.name.startswith("raw")


KINDS = (
    *(Kind(f"{family} {name}", spec, wanted) for family, kinds in FAMILIES.items() for name, spec, wanted, _, _ in kinds),
    Kind("own scan of channels", {"model": OWN_SCAN, "hidden_size": 20, "layout": "TBD"}, CHANNELS | CLUSTER),
    Kind("own scan of time", BDT | {"model": OWN_SCAN, "precision": "fp16"}, TIME),
    Kind("own diagonal cell", {"model": OWN_DIAGONAL, "hidden_size": 20, "layout": "TBD", "direction": "reverse"}, {}),
    Kind("own dense cell", {"model": OWN_DENSE, "hidden_size": 24, "precision": "bf16"}, DENSE | CLUSTER),
    Kind("raw", {"model": RAW, "hidden_size": 20, "direction": "reverse"} | LONG, CHANNELS | TICKETS),
    Kind("raw logarithms", BDT | LONG | {"model": LOG_RAW, "precision": "fp64"}, TIME | TICKETS),
    Kind("raw complex", {"model": RAW, "hidden_size": 10, "precision": "complex64"}, CHANNELS | CLUSTER | TWO_WARPS),
    Kind("raw complex of doubles", {"model": RAW, "hidden_size": 10, "precision": "complex128"}, CHANNELS | TWO_WARPS),
    Kind("raw complex tickets", BDT | LONG | {"model": RAW, "hidden_size": 1, "precision": "complex128"}, TIME | TICKETS),
)


# Those of the everyday suite, and whether their calls have resets: each family, strategy and scope, every precision, layout and
# direction. The others are their like, or take long to compile or to run, or are run by other tests every day.
EVERYDAY = {
    "cooperative blocks": True, "channels cluster": True, "channels tickets": True, "time two columns": True,
    "time tickets": True, "diagonal channels": True, "recurrent block": True, "recurrent cluster": True, "recurrent grid": True,
    "recurrent fma": True, "recurrent sums": True, "large a100": True, "large four products": True,
    "vectors channels": True, "alternating fp16": True, "own scan of time": True, "raw complex tickets": False,
    "raw complex of doubles": False,
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """The kernel of a kind, and what its results are held against."""

    kernel: InterpretedKernel
    exact: Kernel
    slack: float

    def expected(self, inputs: Inputs) -> tuple[Arrays, Arrays]:
        """Return the results of a forward and of its backward, by name."""
        wide = inputs.in_float64()
        if np.iscomplexobj(inputs.dy):
            return _raw_results(self.kernel, wide)
        with np.errstate(all="ignore"):
            forward, saved = forward_of(self.exact, wide)
            return forward, backward_of(self.exact, wide, saved)


@cache
def made(kind: Kind) -> Made:
    """Plan a kind; its kernels are compiled when they are called."""
    given = {"gpu": "h200", "precision": "fp32", **kind.spec}
    spec = RawSpec.model_validate(given) if kind.is_complex else load_spec(given)
    builder = WantedBuilder(spec, target_of(spec), Store(cache_folder()), wanted=tuple(kind.wanted.items()))
    specialization = replace(builder.hinted_specialization, reverse=RUNS_REVERSED[spec.direction][0])
    kernel = InterpretedKernel(builder, (builder.build(builder.choose("forward", specialization, builder.hinted_sizes)),))
    wide = spec if kind.is_complex else load_spec(spec.model_dump(), precision="fp64", functions=None)
    precision = kernel.interface.precision.with_functions(spec.functions)
    slack = error_allowed(precision) + remembered_error(precision, spec.scan_arithmetic)
    return Made(kernel, Kernel(replace(builder, spec=wide), kernel.built), slack)


def _raw_results(kernel: Kernel, inputs: Inputs) -> tuple[Arrays, Arrays]:
    """Return what the raw scan of NumPy says, in complex128."""
    layout, x = kernel.interface.layout, inputs.forward["x"]
    gates, time = ("btgh".index("g"), 1) if layout == "BTD" else ("bght".index("g"), 2)
    a, b = (np.ascontiguousarray(x.take(n, gates)) for n in (0, 1))
    h0, dfinal = inputs.forward.get("state", {}).get("h"), inputs.dstate.get("h")
    y, final = minrnn_gen.scan(a, b, h0, axis=time)
    da, db, dh0 = minrnn_gen.scan_backward(a, y, inputs.dy, h0, dfinal, axis=time)
    return {"y": y, "h": final}, {"x": np.stack([da, db], gates), **({"state h": dh0} if h0 is not None else {})}


def times_of(plan: KernelPlan) -> tuple[int, ...]:
    """Return lengths around everything that a kernel counts by, the longest first."""
    if plan.family == "vectors":
        return (2 * plan.launch.tile_steps + 1, plan.launch.tile_steps, 1, plan.launch.tile_steps + 1, 0)
    if plan.family != "scan":
        stages = plan.variables.get("stages", 1)
        return (2 * stages + 1, stages, 1, stages + 1, 0)
    tile, ring = plan.launch.tile_steps, plan.variables.get("stages", 1) + 1
    whole = tile * plan.variables.get("cluster_blocks", 1) * ring
    longest = (plan.launch.group_tiles + 1) * tile if plan.launch.group_tiles else whole
    return (longest + 1, longest, tile + 1, tile - 1, tile, 1, 0)


@dataclass(frozen=True)
class Call:
    """A call that is drawn: its sizes, and what it is given."""

    batch: int
    time: int
    slow: float
    given: frozenset[str]

    def inputs(self, kernel: Kernel) -> Inputs:
        """Return arrays for it, the same for the same call."""
        interface, plan = kernel.interface, kernel.plan
        inputs = inputs_of(interface, Case(self.batch, self.time, True, plan.launch.tile_steps), self.slow)
        optional = {"lengths", "resets", "bias", "state"} - self.given
        forward = {name: one for name, one in inputs.forward.items() if name not in optional}
        if plan.problem.model == "log_raw":
            forward["x"] = -np.abs(forward["x"])
        return replace(inputs, forward=forward, dstate=inputs.dstate if "dstate" in self.given else {})


def results_of(kernel: InterpretedKernel, inputs: Inputs, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Return the results of a forward and of its backward, by name."""
    with kernel.seeded(seed):
        forward, saved = forward_of(kernel, inputs)
        return forward, backward_of(kernel, inputs, saved)
