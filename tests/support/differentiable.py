"""Every front with gradients, as calls on named tensors in float64, and what of the package they have to reach."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.uncompiled_kernels import host_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import minrnn_gen.compat
import minrnn_gen.torch as wing
from minrnn_gen.compat.installed import Exchange

BATCH, TIME, INPUTS, HIDDEN = 2, 4, 3, 4
# A module of compat on NumPy arrays, and those without a front.
_WITHOUT_GRADIENTS = (
    *("numpy_cells", "installed", "flashrnn_kernel", "flashrnn_request", "flashrnn_states", "neurons", "selective_kernels"),
    *("snntorch_surrogate", "spikingjelly_surrogate"),
)
# Exports that take no tensors, a single step, which has no gradients, and a block that is none.
NO_FRONTS = {
    "HeadGroup", "SequenceGroup", "export_operators", "nn", "onnx_translations", "sum_gradients", "tune_sequence_group",
    "mamba_ssm.selective_state_update", "flashinfer.selective_state_update", "accelerated_scan.channels.scan_channels",
    "transformers_mamba.mamba_inner_fn", "spikingjelly.reset_net",
}  # fmt: skip
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Front:
    """A call: `shapes` of its tensors with gradients, `others` makes those without, `call` returns results with gradients.

    `covers`: names of exports that it calls. `makes` values of a tensor by its name, where normal ones are none of its.
    """

    covers: Sequence[str]
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Tensors], Any]
    others: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    makes: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    def leaves(self, seed: int = 0) -> dict[str, Any]:
        """Return new tensors that require gradients."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {name: 0.5 * torch.randn(shape, dtype=self.dtype, generator=generator) for name, shape in self.shapes.items()}
        return {name: self.makes.get(name, lambda one: one)(one).requires_grad_() for name, one in drawn.items()}

    def without_gradients(self) -> dict[str, Any]:
        """Return new tensors without gradients."""
        return {name: make() for name, make in self.others.items()}

    def results(self, tensors: Tensors) -> list[Any]:
        """Return the results with gradients."""
        return [one for one in flat(self.call(tensors)) if one.requires_grad or one.is_floating_point() or one.is_complex()]


def flat(value: Any) -> list[Any]:
    """Return the tensors of nested results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None:
        return []
    return [one for inner in (value.values() if isinstance(value, Mapping) else value) for one in flat(inner)]


def loss_of(results: Sequence[Any]) -> Any:
    """Return a weighed sum of results, in which no weight is another's."""
    total: Any = 0.0
    for place, one in enumerate(results):
        weights = torch.linspace(0.5, 1.5 + place, one.numel(), dtype=torch.float64).reshape(one.shape)
        total = total + ((one.real + 0.5 * one.imag if one.is_complex() else one) * weights).sum()
    return total


def fronts() -> dict[str, Callable[[], Front]]:
    """Return by name what makes each front; kernels and modules are made then."""
    settled = {**_scans(), **_compat(), **_neurons(), **_drop_ins()}
    return {**_recurrences(), **_layers(), **{name: partial(_as_it_is, front) for name, front in settled.items()}}


def _as_it_is(front: Front) -> Front:
    return front


def exports() -> set[str]:
    """Return the names of all fronts of the package, made from its code."""
    found = {name for name in wing.__all__ if name not in NO_FRONTS}
    found |= {f"nn.{name}" for name in wing.nn.__all__ if not name.endswith("Cell")}
    for module in pkgutil.iter_modules(minrnn_gen.compat.__path__):
        if module.name in _WITHOUT_GRADIENTS:
            continue
        front = importlib.import_module(f"minrnn_gen.compat.{module.name}")
        parts = [front, *(importlib.import_module(f"{front.__name__}.{part}") for part in submodules(front))]
        for part in parts:
            prefix = part.__name__.removeprefix("minrnn_gen.compat.")
            if hasattr(part, "install"):
                found |= {f"{prefix}.{name}" for name in exchanged(part)}
                continue
            found |= {
                f"{prefix}.{name}"
                for name, value in vars(part).items()
                if (inspect.isfunction(value) or _is_module(value))
                and not name.startswith("_")
                and value.__module__ == part.__name__
            }
    return found - NO_FRONTS


def _is_module(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, torch.nn.Module)


def submodules(package: Any) -> list[str]:
    """Return the names of the modules of a package, none of a module."""
    return [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))]


def exchanged(module: Any) -> dict[str, Any]:
    """Return the functions that a drop-in puts into another package, by their names there."""
    given: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "install", lambda _, ours: given.update(ours))
        module.install()
    return given


class Watched(TorchDispatchMode):
    """A mode of torch that looks on, so that calls go through the dispatcher, and keeps the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function.namespace == "minrnn_gen":
            self.names.add(f"minrnn_gen::{function._opname}")
        return function(*arguments, **(keywords or {}))


def nodes_of(results: Sequence[Any]) -> Iterator[Any]:
    """Yield the nodes of a graph."""
    ahead, seen = [one.grad_fn for one in results if one.grad_fn is not None], set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        ahead += [before for before, _ in node.next_functions]


def change(tensor: Any) -> None:
    """Change a tensor in place, whatever it holds."""
    with torch.no_grad():
        if tensor.dtype is torch.bool:
            tensor.logical_not_()
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.add_(1)
        elif tensor.numel():
            tensor[tensor.numel() // 2] -= 1


def lengths() -> Any:
    return torch.tensor([TIME, TIME - 1])


def resets() -> Any:
    return torch.zeros(BATCH, TIME, dtype=torch.bool).index_fill_(1, torch.tensor([2]), True)


def cu_seqlens() -> Any:
    return torch.tensor([0, 2, TIME])


# What a call has beside its kernel, by the names of `recurrence`.
_CALLS: dict[str, dict[str, Any]] = {
    "min_gru": {"sequences": ("lengths", "resets")},
    "min_lstm": {"spec": {"input_size": INPUTS, "direction": "bidirectional"}},
    "gru": {"spec": {"heads": 2, "input_size": INPUTS}, "sequences": ("resets",)},
    "slstm": {"sequences": ("lengths",)},
    "rg_lru": {"sequences": ("cu_seqlens",), "batch": 1},
    "ind_rnn": {"spec": {"layout": "TBD"}},
    "selective": {"spec": {"state_size": 3, "groups": 2}, "sequences": ("resets",)},
    "lstm_projected": {"spec": {"projection_size": 2}, "sequences": ("lengths",)},
    "block_gru": {"spec": {"projection_size": 2, "heads": 2}},
}
_MAKERS: dict[str, Callable[[], Any]] = {"lengths": lengths, "resets": resets, "cu_seqlens": cu_seqlens}


def recurrence_front(
    model: str,
    spec: Mapping[str, Any] | None = None,
    sequences: Sequence[str] = (),
    batch: int = BATCH,
    all_states: bool = False,
    group: Callable[[], Mapping[str, Any]] = dict,
) -> Front:
    """Return a call of `recurrence` with every array that its kernel takes."""
    kernel = host_kernel(model, HIDDEN, "fp64", **(spec or {}))
    interface = kernel.interface
    directions = interface.directions
    count = batch if "cu_seqlens" not in sequences else 2
    named: dict[str, tuple[int, ...]] = {"x": interface.shape(interface.x_axes, batch, TIME)}
    if interface.recurrent_gates:
        named |= {"R": interface.R_shape}
    if interface.input_size:
        named |= {"weight": (interface.weight_rows, interface.input_size)}
    named |= {"bias": (*directions, len(interface.gates), interface.hidden_size)}
    if interface.takes_recurrent_bias:
        named |= {"recurrent_bias": interface.recurrent_bias_shape}
    mappings = {
        "parameters": {name: interface.shape_of_parameter(name) for name in interface.parameters},
        "state": {name: interface.shape_of_state(name, count) for name in interface.states},
        "shared": {name: interface.shape(interface.shared_axes, batch, TIME) for name in interface.shared},
    }
    shapes = named | {f"{what} {name}": shape for what, inner in mappings.items() for name, shape in inner.items()}

    def call(tensors: Tensors) -> Any:
        arrays = {name: tensors[name] for name in (*named, *sequences)}
        arrays |= {what: {name: tensors[f"{what} {name}"] for name in inner} or None for what, inner in mappings.items()}
        return wing.recurrence(kernel, **arrays, all_states=all_states, **group())[:2]

    return Front(("recurrence",), shapes, call, {name: _MAKERS[name] for name in sequences})


def _recurrences() -> dict[str, Callable[[], Front]]:
    found = {f"recurrence of {model}": partial(recurrence_front, model, **more) for model, more in _CALLS.items()}
    return {**found, "recurrence with all states": partial(recurrence_front, "lstm", all_states=True)}


def module_front(make: Callable[[], Any], cover: str, inputs: Mapping[str, tuple[int, ...]], **named: Any) -> Front:
    """Return a call of a module on `inputs`, by which its parameters are tensors too; `named` makes tensors by keywords."""
    module = make()
    parameters = {f"its {name}": tuple(parameter.shape) for name, parameter in module.named_parameters()}

    def call(tensors: Tensors) -> Any:
        torch.manual_seed(0)  # masks of dropout
        own = {name.removeprefix("its "): tensors[name] for name in parameters}
        arguments = tuple(tensors[name] for name in inputs)
        return torch.func.functional_call(module, own, arguments, {name: tensors[name] for name in named})

    return Front((cover,), {**inputs, **parameters}, call, named)


def _layers() -> dict[str, Callable[[], Front]]:
    row, made = {"input": (BATCH, TIME, INPUTS)}, {"dtype": torch.float64}
    found: dict[str, Callable[[], Front]] = {}

    def add(name: str, cover: str, make: Callable[[], Any], inputs: Mapping[str, tuple[int, ...]] = row, **named: Any) -> None:
        found[name] = partial(module_front, make, cover, inputs, **named)

    for name in wing.__all__:
        kind = getattr(wing, name)
        if inspect.isclass(kind) and issubclass(kind, wing.RNN):
            first = ("lstm",) if kind is wing.RNN else ()
            add(f"layer {name}", name, partial(kind, *first, INPUTS, HIDDEN, **made), lengths=lengths)
    add("layers of LSTM", "LSTM", partial(wing.LSTM, INPUTS, HIDDEN, 2, dropout=0.5, **made), resets=resets)
    add("layers of MinGRU", "MinGRU", partial(wing.MinGRU, INPUTS, HIDDEN, 2, bidirectional=True, **made), resets=resets)
    for name in ("LSTM", "GRU", "RNN"):
        add(f"nn.{name}", f"nn.{name}", partial(getattr(wing.nn, name), INPUTS, HIDDEN, 2, **made))
    add("replace", "replace", _replaced)
    channels = {"x": (BATCH, TIME, HIDDEN), "z": (BATCH, TIME, HIDDEN), "state": (BATCH, HIDDEN, 3)}
    add("SelectiveScan", "SelectiveScan", partial(wing.SelectiveScan, HIDDEN, 3, **made), channels)
    return found


def _replaced() -> Any:
    model = torch.nn.ModuleList([torch.nn.GRU(INPUTS, HIDDEN, dtype=torch.float64)])
    wing.replace(model)
    return model[0]


def scan_front(dtype: torch.dtype = torch.float64, group: Callable[[], Mapping[str, Any]] = dict, **options: Any) -> Front:
    rows = (BATCH, TIME, HIDDEN)

    def call(tensors: Tensors) -> Any:
        return wing.scan(**tensors, **options, **group())

    return Front(("scan",), {"a": rows, "b": rows, "h0": (BATCH, HIDDEN)}, call, dtype=dtype)


def _scans() -> dict[str, Front]:
    return {
        "scan": scan_front(),
        "scan of logarithms in reverse": scan_front(log_a=True, reverse=True),
        "scan of complex numbers": scan_front(torch.complex128),
        **{f"scan of form {form}": maps_front(form) for form in ("rotation", "dual", "full")},
        "scan of constant maps": maps_front("full", is_constant=True),
        **_filters(),
        **{name: returns_front(name) for name in ("gae", "lambda_returns", "vtrace")},
    }


def maps_front(form: str, is_constant: bool = False) -> Front:
    """Return a scan of maps of two values."""
    rows, of_map = (BATCH, TIME, HIDDEN), (2, 2) if form == "full" else (2,)

    def call(tensors: Tensors) -> Any:
        return wing.scan(**tensors, form=form)

    of_a = (HIDDEN, *of_map) if is_constant else (*rows, *of_map)
    return Front(("scan",), {"a": of_a, "b": (*rows, 2), "h0": (BATCH, HIDDEN, 2)}, call)


def _filters() -> dict[str, Front]:
    """Return filters of second order, whose a[0] is near 1."""
    from minrnn_gen.compat import torchaudio

    rows = (BATCH, HIDDEN, TIME)

    def denominators(one: Any) -> Any:
        first = torch.arange(one.shape[-1]) == one.shape[-1] % 3
        return 0.3 * one + first.to(one.dtype)

    makes = {"a": denominators, "a_coeffs": denominators, "sos": denominators}
    shapes = {"x": rows, "a": (HIDDEN, 3), "b": (3,), "zi": (BATCH, HIDDEN, 2)}
    sections = {"sos": (2, 6), "x": rows, "zi": (2, BATCH, HIDDEN, 2)}
    theirs = {"waveform": rows, "a_coeffs": (HIDDEN, 3), "b_coeffs": (HIDDEN, 3)}
    return {
        "lfilter": Front(("lfilter",), shapes, lambda tensors: wing.lfilter(**tensors), makes=makes),
        "sosfilt": Front(("sosfilt",), sections, lambda tensors: wing.sosfilt(**tensors), makes=makes),
        "torchaudio's lfilter": Front(
            ("torchaudio.lfilter",), theirs, lambda tensors: torchaudio.lfilter(**tensors, clamp=False), makes=makes
        ),
    }


def returns_front(name: str) -> Front:
    """Return a call of advantages or returns, in which one trajectory has an end that is no terminal state."""
    alike = {"gae": ("reward", "value"), "lambda_returns": ("reward",), "vtrace": ("log_rho", "reward", "value")}[name]
    marks = {"done": resets, "terminated": lambda: resets().index_fill_(0, torch.tensor([1]), False)}

    def call(tensors: Tensors) -> Any:
        return getattr(wing, name)(**tensors, gamma=0.9, lmbda=0.8)

    return Front((name,), dict.fromkeys((*alike, "next_value"), (BATCH, TIME)), call, marks)


_ROWS = (BATCH, HIDDEN, TIME)
_OF_SCAN: dict[str, tuple[int, ...]] = {"u": _ROWS, "delta": _ROWS, "A": (HIDDEN, 3), "B": (BATCH, 3, TIME)}
_OF_SCAN |= {"C": (BATCH, 2, 3, TIME), "D": (HIDDEN,), "z": _ROWS, "delta_bias": (HIDDEN,)}
_NEGATIVE = {"A": lambda one: -one.abs()}


def _compat() -> dict[str, Front]:
    from minrnn_gen.compat import accelerated_scan, fla, flashrnn, mamba_ssm

    found: dict[str, Front] = {}
    for function, (gates, recurrent, biases, states) in {
        "lstm": (4, 4, 4, 2), "slstm": (4, 4, 4, 4), "gru": (3, 3, 4, 1), "elman": (1, 1, 1, 1),
    }.items():  # fmt: skip
        heads, size = 2, 2
        shapes = {"Wx": (BATCH, TIME, gates, heads, size), "R": (recurrent, heads, size, size), "b": (biases, heads, size)}
        shapes |= {"states": (states, BATCH, 1, heads, size)}

        def run(tensors: Tensors, function: str = function) -> Any:
            every, last = flashrnn.flashrnn(**tensors, function=function, dtype="float64")
            return every[0], last

        found[f"flashrnn of {function}"] = Front(("flashrnn.flashrnn",), shapes, run)
    found["accelerated_scan"] = Front(
        ("accelerated_scan.warp.scan",), {"gates": _ROWS, "tokens": _ROWS}, lambda tensors: accelerated_scan.scan(**tensors)
    )
    named = {"scalar": ("forget", "inputs"), "complex": ("forget", "inputs"), "ref": ("gates", "tokens")}
    for part, names in named.items():
        module = importlib.import_module(f"minrnn_gen.compat.accelerated_scan.{part}")
        found[f"accelerated_scan.{part}"] = Front(
            (f"accelerated_scan.{part}.scan",),
            dict.fromkeys(names, _ROWS),
            lambda tensors, module=module, part=part: module.scan(**tensors, **({"reverse": True} if part == "ref" else {})),
            dtype=torch.complex128 if part == "complex" else torch.float64,
        )
    rows = {"x": (BATCH, TIME, HIDDEN), "g": (BATCH, TIME, HIDDEN)}
    for name in ("chunk_hgrn", "fused_recurrent_hgrn"):
        hgrn = getattr(fla, name)
        found[name] = Front(
            (f"fla.{name}",),
            rows | {"initial_state": (BATCH, HIDDEN)},
            lambda tensors, hgrn=hgrn: hgrn(**tensors, output_final_state=True),
        )
    joined = {name: (1, *shape[1:]) for name, shape in rows.items()} | {"initial_state": (2, HIDDEN)}
    found["hgrn of joined sequences"] = Front(
        ("fla.fused_recurrent_hgrn",),
        joined,
        lambda tensors: fla.fused_recurrent_hgrn(**tensors, output_final_state=True),
        {"cu_seqlens": cu_seqlens},
    )
    scanned = _OF_SCAN | {"initial_state": (BATCH, HIDDEN, 3)}
    for title, changed in {"": {}, " of B at all times": {"B": (HIDDEN, 3)}}.items():
        found[f"selective_scan_fn{title}"] = Front(
            ("mamba_ssm.selective_scan_fn",),
            scanned | changed,
            lambda tensors: mamba_ssm.selective_scan_fn(**tensors, delta_softplus=True, return_last_state=True),
            makes=_NEGATIVE,
        )
    block: dict[str, tuple[int, ...]] = {"xz": (BATCH, 2 * HIDDEN, TIME), "conv1d_weight": (HIDDEN, 1, 3)}
    block |= {"conv1d_bias": (HIDDEN,), "x_proj_weight": (2 + 3 + 3, HIDDEN), "delta_proj_weight": (HIDDEN, 2)}
    block |= {"out_proj_weight": (5, HIDDEN), "out_proj_bias": (5,), "A": (HIDDEN, 3), "D": (HIDDEN,), "delta_bias": (HIDDEN,)}
    found["mamba_inner_fn"] = Front(
        ("mamba_ssm.mamba_inner_fn",), block, lambda tensors: mamba_ssm.mamba_inner_fn(**tensors), makes=_NEGATIVE
    )
    return found


# {neuron of compat: (arguments, states)}.
_NEURONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "spikingjelly.IFNode": ({"v_reset": None}, ()),
    "spikingjelly.LIFNode": ({"tau": 1.5}, ()),
    "spikingjelly.ParametricLIFNode": ({"v_reset": -0.25}, ()),
    "snntorch.Leaky": ({"beta": 0.8, "learn_beta": True, "learn_threshold": True}, ("mem",)),
    "snntorch.Synaptic": ({"alpha": 0.7, "beta": 0.8, "learn_alpha": True}, ("syn", "mem")),
    "snntorch.Alpha": ({"alpha": 0.8, "beta": 0.6, "learn_alpha": True, "learn_beta": True}, ("syn_exc", "syn_inh", "mem")),
    "snntorch.RLeaky": ({"beta": 0.8, "linear_features": HIDDEN, "threshold": 0.3, "learn_threshold": True}, ("spk", "mem")),
}


def _neurons() -> dict[str, Front]:
    found: dict[str, Front] = {}
    for cover, (arguments, states) in _NEURONS.items():
        library, _, kind = cover.partition(".")
        front = importlib.import_module(f"minrnn_gen.compat.{library}")
        made = arguments if states else {**arguments, "step_mode": "m"}
        neuron = getattr(front, kind)(**made).double()
        parameters = {f"its {name}": tuple(one.shape) for name, one in neuron.named_parameters()}

        called = "input_" if states else "x"

        def call(
            tensors: Tensors,
            neuron: Any = neuron,
            states: Sequence[str] = states,
            parameters: Any = parameters,
            called: str = called,
        ) -> Any:
            if not states:
                neuron.reset()
            own = {name.removeprefix("its "): tensors[name] for name in parameters}
            given = (tensors[called], *(tensors[name] for name in states))
            done = torch.func.functional_call(neuron, own, given)
            return done if states else (done, neuron.v)

        shapes = {called: (TIME, BATCH, HIDDEN), **dict.fromkeys(states, (BATCH, HIDDEN)), **parameters}
        near = {"its alpha": lambda one: 0.8 + 0.1 * one.tanh(), "its beta": lambda one: 0.6 + 0.1 * one.tanh()}
        found[cover] = Front((cover,), shapes, call, makes=near)
    return found


def _drop_ins() -> dict[str, Front]:
    from minrnn_gen.compat import mingru_pytorch, recurrent_gemma, transformers_mamba, xlstm

    found: dict[str, Front] = {}
    for function, name, count in (
        (mingru_pytorch._min_gru, "to_hidden_and_gate", 2),
        (mingru_pytorch._min_lstm, "to_hidden_and_f_i_gate", 3),
    ):

        def run(tensors: Tensors, function: Any = function, name: str = name) -> Any:
            maps = {name: lambda x: torch.nn.functional.linear(x, tensors["weight"]), "to_out": lambda y: y}
            return function(SimpleNamespace(**maps), tensors["x"], tensors["prev_hidden"], True)

        shapes = {"x": (BATCH, TIME, INPUTS), "weight": (count * HIDDEN, INPUTS), "prev_hidden": (BATCH, 1, HIDDEN)}
        positive = {"prev_hidden": lambda one: one.abs() + 0.1}
        found[f"a module with {name}"] = Front(("mingru_pytorch.forward",), shapes, run, makes=positive)
    rows = {"hidden_states": (BATCH, TIME, HIDDEN), "recurrent_gate": (BATCH, TIME, HIDDEN)}
    rows |= {"recurrent_states": (BATCH, HIDDEN)}
    found["recurrent_gemma"] = Front(
        ("recurrent_gemma._rnn_scan",),
        rows,
        lambda tensors: recurrent_gemma._rnn_scan(None, **tensors),
        {"reset": lambda: resets()[..., None]},
    )
    names = {"u": "hidden_states", "delta": "dt"}
    theirs = {names.get(name, name): shape for name, shape in _OF_SCAN.items()} | {"C": (BATCH, 3, TIME)}
    found["transformers' scan"] = Front(
        ("transformers_mamba.mamba_selective_scan",),
        theirs,
        lambda tensors: transformers_mamba._scan(**tensors, delta_softplus=True, return_last_state=True),
        makes=_NEGATIVE,
    )
    names = {"delta_bias": "dt_bias"}
    step = {names.get(name, name): shape[:-1] if TIME in shape[-1:] and name not in ("D", "delta_bias") else shape
            for name, shape in theirs.items()}  # fmt: skip

    def stepped(tensors: Tensors) -> Any:
        return transformers_mamba._step(torch.ones(BATCH, HIDDEN, 3, dtype=torch.float64), **tensors, dt_softplus=True)

    found["transformers' step"] = Front(("transformers_mamba.mamba_selective_state_update",), step, stepped, makes=_NEGATIVE)
    heads, size = 2, 2
    config = SimpleNamespace(
        num_heads=heads, num_gates=4, head_dim=size, hidden_size=heads * size, function="slstm", forward_clipval=None,
        enable_automatic_mixed_precision=False, gradient_recurrent_cut=False, gradient_recurrent_clipval=None,
    )  # fmt: skip
    of_cell = {"x": (TIME, BATCH, 4 * heads * size), "state": (4, BATCH, heads * size)}
    of_cell |= {"R": (heads, size, 4 * size), "bias": (4 * heads * size,)}

    def cell(tensors: Tensors) -> Any:
        every = xlstm._function_of(True, config).apply(True, *tensors.values())
        return every[0, 1:], every[1:, -1]

    found["xlstm's cell"] = Front(("xlstm.sLSTMCellFuncGenerator",), of_cell, cell)
    found |= {f"torchrl's {name}": _torchrl(name) for name in ("lstm", "gru")}
    return found


def _torchrl(name: str) -> Front:
    """Return a call of a module of torchrl in recurrent mode, whose rows are cut by marks."""
    from minrnn_gen.compat import torchrl

    kind, states = {"lstm": (torch.nn.LSTM, 2), "gru": (torch.nn.GRU, 1)}[name]
    method = exchanged(torchrl)[f"_{name}"]
    like = kind(INPUTS, HIDDEN, 2, batch_first=True, dtype=torch.float64)
    given = {f"hidden{place}": (BATCH, TIME, 2, HIDDEN) for place in range(states)}
    shapes = {"input": (BATCH, TIME, INPUTS), **given}
    shapes |= {f"its {weight}": tuple(parameter.shape) for weight, parameter in like.named_parameters()}

    def call(tensors: Tensors) -> Any:
        layer = copy.copy(like)
        layer.__dict__["_parameters"] = {}
        for weight in like._parameters:
            setattr(layer, weight, tensors[f"its {weight}"])
        module = SimpleNamespace(recurrent_mode=True, **{name: layer})
        sizes = (BATCH, TIME, tensors["input"].device, torch.float64)
        return method(module, tensors["input"], *sizes, *(tensors[one] for one in given), is_init=tensors["is_init"])

    return Front((f"torchrl._{name}",), shapes, call, {"is_init": resets})


@contextlib.contextmanager
def alone() -> Iterator[Any]:
    """Yield a group of one rank, this process."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield torch.distributed.group.WORLD
    finally:
        torch.distributed.destroy_process_group()


def fronts_over(group: Any) -> dict[str, Front]:
    """Return the fronts over a group of one rank, each way of passing states on."""
    from minrnn_gen.torch.sequence_group.group import head_member_of
    from minrnn_gen.torch.sequence_group.heads import _CountedPart, _Joined, _Shared, counted_once

    found = {}
    for way in ("summary", "correct", "pipeline"):

        def over(way: Any = way) -> dict[str, Any]:
            return {"sequence_group": wing.SequenceGroup(group, way)}

        found[f"{way} of a cell"] = recurrence_front("min_gru", sequences=("resets",), group=over)
        found[f"{way} of a scan"] = scan_front(group=over)
    member = head_member_of(group)

    def shared(tensors: Tensors) -> Any:
        x = _CountedPart.apply(counted_once(tensors["x"], member), (BATCH, HIDDEN), -1, (0, HIDDEN))
        return _Joined.apply(_Shared.apply(x, member), -1, member, 1).sin()

    found["shares of heads"] = Front(("recurrence",), {"x": (BATCH, HIDDEN)}, shared)
    return found
