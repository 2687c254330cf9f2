"""Calls of every kind of kernel, layout and option, on torch's tensors in host memory, with kernels that are only planned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.norm_cells import OF_ROUNDS
from support.round_cells import DEEP, RESET_BEFORE
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes

# As many as a GPU with 132 multiprocessors holds of large blocks.
RESIDENT_BLOCKS = 264


@dataclass(frozen=True)
class Options:
    """Form of a call: `batch` sequences of `time` steps, and which arrays are present."""

    batch: int
    time: int
    bias: bool = False
    state: bool = False
    dstate: bool = False
    resets: bool = False
    lengths: bool = False
    packed: bool = False
    gaps: bool = False
    all_states: bool = False
    saves: bool = True
    is_step: bool = False


class Case(NamedTuple):
    """Calls of one kernel; `sizes` are those that it is planned for."""

    name: str
    spec: Mapping[str, Any]
    sizes: Sizes
    calls: tuple[Options, ...]

    def __str__(self) -> str:
        return self.name


CALLS = (
    Options(3, 40, bias=True, state=True),
    Options(2, 17, resets=True),
    Options(5, 1, bias=True),
    Options(1, 700, gaps=True),
    Options(4, 64, all_states=True, state=True, bias=True),
    Options(2, 33, saves=False),
    Options(64, 2048, bias=True, dstate=True, state=True),
    Options(2, 48, lengths=True, bias=True),
    Options(7, 4096, lengths=True, state=True, dstate=True),
)
PACKED = (
    Options(3, 50, packed=True, bias=True),
    Options(9, 3000, packed=True, resets=True, state=True, dstate=True),
)
STEPS = (Options(1, 1, bias=True, state=True, is_step=True), Options(33, 1, is_step=True))
STEPWISE = (
    Options(2, 5, bias=True, state=True),
    Options(3, 24, resets=True),
    Options(2, 7, all_states=True, dstate=True),
)


def cases() -> Iterator[Case]:
    """Yield all cases; their forwards, backwards and steps are 551."""
    dense = tuple(call for call in CALLS if call.time <= 700)
    usual = Sizes(4, 256)
    for layout, direction in itertools.product(("BTD", "TBD", "BDT"), ("forward", "reverse", "bidirectional")):
        spec = {"model": "min_gru", "hidden_size": 64, "layout": layout, "direction": direction, "precision": "bf16"}
        calls = CALLS + (PACKED if layout == "BTD" else ()) + (STEPS if direction != "bidirectional" else ())
        yield Case(f"min_gru {layout} {direction}", spec, usual, calls)
    for sizes in (Sizes(1, 65536), Sizes(2, 8192), Sizes(64, 4096), Sizes(512, 128)):
        min_lstm = {"model": "min_lstm", "hidden_size": 256, "precision": "fp32"}
        rg_lru = {"model": "rg_lru", "hidden_size": 96, "layout": "BDT", "precision": "bf16"}
        yield Case(f"min_lstm planned for {sizes.batch} x {sizes.time}", min_lstm, sizes, CALLS + PACKED)
        yield Case(f"rg_lru BDT planned for {sizes.batch} x {sizes.time}", rg_lru, sizes, CALLS)
    projected = {"model": "min_gru", "hidden_size": 64, "input_size": 48}
    yield Case("min_gru projected", {**projected, "precision": "bf16"}, usual, CALLS + PACKED + STEPS)
    yield Case("min_gru projected BDT", {**projected, "layout": "BDT", "precision": "fp32"}, usual, CALLS)
    yield Case("min_gru projected both", {**projected, "direction": "bidirectional", "precision": "bf16"}, usual, CALLS)
    yield Case("ind_rnn", {"model": "ind_rnn", "hidden_size": 64, "precision": "bf16"}, usual, CALLS + STEPS)
    for layout in ("BTD", "TBD", "BDT"):
        gru = {"model": "gru", "hidden_size": 64, "heads": 2, "layout": layout, "precision": "bf16"}
        yield Case(f"gru {layout}", gru, usual, dense + (PACKED[:1] if layout == "BTD" else ()) + STEPS)
    lstm = {"model": "lstm", "hidden_size": 64, "precision": "fp32"}
    wide = {**lstm, "hidden_size": 256, "input_size": 64, "precision": "bf16"}
    yield Case("lstm projected", wide, Sizes(16, 256), dense + PACKED[:1] + STEPS)
    yield Case("lstm large", {**lstm, "hidden_size": 1024, "precision": "bf16"}, Sizes(4, 64), dense + PACKED[:1])
    yield Case("lstm both", {**lstm, "direction": "bidirectional"}, Sizes(4, 64), dense + PACKED[:1])
    yield Case("lstm stepwise", {**lstm, "hidden_size": 2048, "precision": "fp64"}, Sizes(2, 24), STEPWISE)
    rounds = {"model": DEEP, "hidden_size": 64, "heads": 2, "precision": "bf16"}
    yield Case("rounds", rounds, usual, dense + PACKED[:1] + STEPS)
    yield Case("rounds both", {**rounds, "direction": "bidirectional", "layout": "TBD"}, Sizes(4, 64), dense)
    yield Case(
        "rounds stepwise", {**rounds, "model": RESET_BEFORE, "layout": "BDT", "precision": "fp32"}, Sizes(2, 24), STEPWISE
    )
    yield Case("norms", {**rounds, "model": OF_ROUNDS}, Sizes(3, 24), STEPWISE)
    long, thin = Sizes(1, 1 << 20), {"model": "rg_lru", "hidden_size": 4, "layout": "BDT", "precision": "fp32"}
    yield Case("look-back BDT", thin, long, CALLS)
    yield Case("look-back BTD", {"model": "min_gru", "hidden_size": 32, "precision": "fp64"}, long, CALLS + PACKED)
    vectors = {"model": "s4d", "hidden_size": 64, "state_size": 16, "precision": "fp32"}
    yield Case("s4d", vectors, usual, tuple(call for call in CALLS if not call.gaps))


class PlannedOnly:
    """A kernel that is only planned."""

    def __init__(self, key: KernelKey, part: str, plan: KernelPlan) -> None:
        self.key, self.part, self.plan = key, part, plan

    def launch(self, *_arguments: Any) -> None:
        """Launch nothing."""

    def resident_blocks(self, *_arguments: Any) -> int:
        """Return how many blocks a GPU might hold."""
        return RESIDENT_BLOCKS


@dataclass
class PlannedKernels:
    """The kernels of a builder for the sizes of a case, whatever sizes are asked for."""

    builder: Any
    sizes: Sizes
    plans: dict[KernelKey, KernelPlan] = field(default_factory=dict)
    built: Mapping[KernelKey, BuiltKernel] = field(default_factory=dict)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel of a pass."""
        sizes = Sizes(self.sizes.batch, 1) if kernel_pass == "step" else self.sizes
        return self.builder.key_of(kernel_pass, specialization, sizes)  # type: ignore[no-any-return]

    choose_built = choose

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel."""
        if kernel not in self.plans:
            with nothing_compiled():
                self.plans[kernel] = self.builder.build(kernel).plan
        return self.plans[kernel]

    def load(self, kernel: KernelKey, part: str = "") -> tuple[PlannedOnly, KernelPlan]:
        """Return a kernel that does nothing."""
        plan = self.plan(kernel)
        return PlannedOnly(kernel, part, plan), plan

    def build_ahead(self, *_request: Any) -> None:
        """Build nothing."""

    @property
    def half(self) -> PlannedKernels:
        """Fail: nothing is run by halves here."""
        raise NotImplementedError


def kernel_of(case: Case) -> tuple[minrnn_gen.Kernel, PlannedKernels]:
    """Return the kernel of a case, and what its runs launch."""
    with nothing_compiled():
        kernel = minrnn_gen.compile(dict(case.spec), gpu="h200")
    return kernel, PlannedKernels(kernel.builder, case.sizes)


def arguments_of(interface: Interface, call: Options) -> CallArguments:
    """Return tensors of a call, full of zeros."""
    import torch

    storage, carried = (
        getattr(torch, dtype) for dtype in (interface.precision.storage_dtype, interface.precision.arithmetic_dtype)
    )
    rows = 1 if call.packed else call.batch
    axes = interface.x_axes.replace("t", "") if call.is_step else interface.x_axes
    shape = interface.shape(axes, rows, call.time)
    if call.gaps and not interface.input_size and interface.layout != "BDT":
        x = torch.zeros((*shape[:-1], shape[-1] * 2), dtype=storage)[..., : shape[-1]]
    else:
        x = torch.zeros(shape, dtype=storage)

    def zeros(is_there: Any, *shape: int, dtype: Any = carried) -> Any:
        return torch.zeros(shape, dtype=dtype) if is_there else None

    return CallArguments(
        x,
        zeros(interface.recurrent_gates, *interface.R_shape, dtype=storage),
        zeros(interface.input_size, interface.weight_rows, interface.input_size or 0, dtype=storage),
        zeros(call.bias, *interface.directions, len(interface.gates), interface.hidden_size),
        None,
        zeros(call.resets, rows, call.time, dtype=torch.bool),
        torch.full((call.batch,), call.time, dtype=torch.int64) if call.lengths else None,
        torch.linspace(0, call.time, call.batch + 1).to(torch.int64) if call.packed else None,
        {name: zeros(True, *interface.shape_of_parameter(name)) for name in interface.parameters} or None,
        {name: zeros(True, *interface.shape_of_state(name, call.batch)) for name in interface.states} if call.state else None,
        None,
    )


def gradients_of(interface: Interface, call: Options) -> tuple[Any, dict[str, Any] | None]:
    """Return the gradients that a backward of a call is given, of y and of the final states."""
    import torch

    precision, rows = interface.precision, 1 if call.packed else call.batch
    dy = torch.zeros(interface.y_shape(rows, call.time), dtype=getattr(torch, precision.storage_dtype))
    carried = getattr(torch, precision.arithmetic_dtype)
    states = {name: torch.zeros(interface.shape_of_state(name, call.batch), dtype=carried) for name in interface.states}
    return dy, states if call.dstate else None
