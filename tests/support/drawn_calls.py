"""A drawn cell and call as arrays, on the CPU target or as an emulated kernel, held against the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from support import cell_oracle
from support.bounded import Bounded
from support.cell_oracle import disagreements
from support.drawn_cells import DrawnCall, DrawnCell

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import RUNS_REVERSED, Interface
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import leaves
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import ASSUMED_TIME, Sizes
from minrnn_gen.run.target import target_of

Array = Any
SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -3e-39, 5e-324)
RESETS_SHARE = 0.25


@dataclass(frozen=True)
class Subject:
    """A drawn cell with a drawn call; `other` is which candidate is emulated."""

    cell: DrawnCell
    call: DrawnCall
    other: int = 0

    @cached_property
    def builder(self) -> EmulatedBuilder:
        call = self.call
        heads = {"heads": call.heads} if self.cell.kind == "dense" else {}
        spec = load_spec(
            {
                "model": self.cell.document, "hidden_size": call.heads * call.head_dim, "precision": call.precision,
                "layout": call.layout, "direction": call.direction, "gpu": "h200", **heads,
                **({"recurrent_bias": True} if self.cell.kind == "dense" and "recurrent_bias" in call.given else {}),
            }
        )  # fmt: skip
        sizes = Sizes(1, ASSUMED_TIME) if self.other else None
        return EmulatedBuilder(spec, target_of(spec), Store(cache_folder()), other=self.other, sizes=sizes)

    @cached_property
    def emulated(self) -> InterpretedKernel:
        reverse = RUNS_REVERSED[self.call.direction][0]
        specialization = replace(self.builder.hinted_specialization, reverse=reverse)
        return InterpretedKernel(
            self.builder, (self.builder.build(self.builder.choose("forward", specialization, self.builder.hinted_sizes)),)
        )

    @cached_property
    def on_cpu(self) -> Kernel:
        return Kernel(self.builder)

    @cached_property
    def in_numpy(self) -> Kernel:
        return self._on_host("numpy")

    @cached_property
    def native(self) -> Kernel:
        return self._on_host("native")

    def _on_host(self, code: str) -> Kernel:
        kernel = Kernel(self.builder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINRNN_CPU", code)
            assert bool(kernel.executor.cpu.native.kernels.why_not) == (code == "numpy")
        return kernel

    @property
    def interface(self) -> Interface:
        return self.on_cpu.interface

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Every array of the call with its directions in front of all other axes but those of x and y, in NumPy's dtypes."""
        call, interface = self.call, self.interface
        random = np.random.default_rng(call.seed)
        storage, carried = (
            numpy_dtype(name) for name in (interface.precision.storage_dtype, interface.precision.arithmetic_dtype)
        )
        lead, hidden, gates = len(interface.runs_reversed), interface.hidden_size, len(interface.gates)

        def drawn(shape: tuple[int, ...], dtype: Any, scale: float = 1.5) -> Array:
            values = random.uniform(-scale, scale, shape)
            flat = values.reshape(-1)
            if flat.size:
                for _ in range(random.integers(0, call.specials + 1)):
                    flat[random.integers(flat.size)] = SPECIALS[random.integers(len(SPECIALS))]
            with np.errstate(all="ignore"):
                return values.astype(dtype)

        state = (lead, call.batch, hidden)
        arrays: dict[str, Array] = {
            "x": drawn((call.batch, call.time, lead, gates, hidden), storage),
            "bias": drawn((lead, gates, hidden), storage),
            "dy": drawn((call.batch, call.time, lead, hidden), storage),
        }
        arrays |= {f"parameter {name}": drawn((lead, hidden), storage) for name in interface.parameters}
        arrays |= {f"input {name}": drawn((call.batch, call.time, lead, hidden), storage) for name in interface.inputs}
        arrays |= {f"state {name}": drawn(state, carried) for name in interface.states}
        arrays |= {f"dstate {name}": drawn(state, carried) for name in interface.states}
        if interface.recurrent_gates:
            shape = (lead, len(interface.recurrent_gates), interface.heads, interface.head_dim, interface.head_dim)
            arrays["R"] = drawn(shape, storage, 1.0)
            arrays["recurrent_bias"] = drawn(shape[:-1], storage)
        arrays["resets"] = random.random((call.batch, call.time)) < RESETS_SHARE
        arrays["lengths"] = random.integers(0, call.time + 1, call.batch)
        return arrays

    @cached_property
    def is_scan(self) -> bool:
        return self.builder.programs.recurrence.kind == "affine-diagonal"

    def has(self, name: str) -> bool:
        if name == "recurrent_bias":
            return self.interface.takes_recurrent_bias and name in self.call.given
        return name in self.call.given

    def problem(self, run: int, sequences: bool = True, emulated: bool = False, native: bool = False) -> cell_oracle.Problem:
        """Return the call of one direction for the oracle; without `sequences` it has neither resets nor lengths."""
        call, interface, arrays = self.call, self.interface, self.arrays
        wide = {name: np.asarray(values).astype(np.float64) for name, values in arrays.items()}
        zeros = np.zeros((call.batch, call.time), bool)
        R_shape = (0, interface.heads, interface.head_dim, interface.head_dim)
        recurrent_bias = (
            wide["recurrent_bias"][run]
            if self.has("recurrent_bias")
            else np.zeros((len(interface.recurrent_gates), interface.heads, interface.head_dim))
        )
        return cell_oracle.Problem(
            cell=self.cell,
            precision=interface.precision.with_functions(self.builder.spec.functions),
            gates=interface.gates,
            recurrent_gates=interface.recurrent_gates,
            x=wide["x"][:, :, run],
            bias=wide["bias"][run] if self.has("bias") else np.zeros(wide["bias"][run].shape),
            parameters={name: wide[f"parameter {name}"][run] for name in interface.parameters},
            initial={
                name: wide[f"state {name}"][run] if self.has("state") else np.zeros(wide[f"state {name}"][run].shape)
                for name in interface.states
            },
            resets=arrays["resets"] if sequences and self.has("resets") else zeros,
            lengths=arrays["lengths"] if sequences and self.has("lengths") else np.full(call.batch, call.time),
            reverse=interface.runs_reversed[run],
            R=wide["R"][run] if "R" in wide else np.zeros(R_shape),
            recurrent_bias=recurrent_bias,
            inputs={name: wide[f"input {name}"][:, :, run] for name in interface.inputs},
            is_scan=self.is_scan,
            is_on_gpu=emulated,
            has_initial=self.has("state"),
            is_native=native,
        )

    @cached_property
    def keywords(self) -> dict[str, Array]:
        """The arguments of a forward but x, resets, lengths and inputs."""
        interface, arrays = self.interface, self.arrays
        keywords: dict[str, Any] = {name: self._led(arrays[name]) for name in ("bias", "recurrent_bias") if self.has(name)}
        if "R" in arrays:
            keywords["R"] = self._led(arrays["R"])
        if interface.parameters:
            keywords["parameters"] = {name: self._led(arrays[f"parameter {name}"]) for name in interface.parameters}
        if self.has("state"):
            keywords["state"] = {name: self._led(arrays[f"state {name}"]) for name in interface.states}
        return keywords

    @cached_property
    def of_steps(self) -> dict[str, dict[str, Array]]:
        """The inputs X.* as an argument of a forward, where the cell has them."""
        inputs = {name: self.channels_of(self.arrays[f"input {name}"]) for name in self.interface.inputs}
        return {"inputs": inputs} if inputs else {}

    def _led(self, values: Array) -> Array:
        return np.ascontiguousarray(values if self.interface.directions else values[0])

    def x_of(self, x: Array) -> Array:
        """Return x [B, T, directions, G, H] in the layout of the spec."""
        axes = self.interface.preactivation_axes
        given = "btdgh" if "d" in axes else "btgh"
        x = x if "d" in axes else x[:, :, 0]
        return np.ascontiguousarray(x.transpose([given.index(axis) for axis in axes]))

    def y_of(self, y: Array) -> Array:
        """Return y [B, T, directions, H] in the layout of the spec."""
        y = y.reshape(*y.shape[:2], -1)
        axes = {"BTD": "bth", "TBD": "tbh", "BDT": "bht"}[self.call.layout]
        return np.ascontiguousarray(y.transpose(["bth".index(axis) for axis in axes]))

    def y_from(self, y: Array) -> Array:
        """Return y, as a kernel gives it, as [B, T, directions, H]."""
        axes = {"BTD": "bth", "TBD": "tbh", "BDT": "bht"}[self.call.layout]
        y = np.asarray(y).transpose([axes.index(axis) for axis in "bth"])
        return y.reshape(*y.shape[:2], len(self.interface.runs_reversed), -1)

    def x_from(self, x: Array) -> Array:
        """Return the gradient of x as [B, T, directions, G, H]."""
        axes = self.interface.preactivation_axes
        x = np.asarray(x).transpose([axes.index(axis) for axis in ("btdgh" if "d" in axes else "btgh")])
        return x if "d" in axes else x[:, :, None]

    def channels_of(self, values: Array) -> Array:
        """Return an input [B, T, directions, H] in the layout of the spec."""
        axes = self.interface.channel_axes
        given = "btdh" if "d" in axes else "bth"
        values = values if "d" in axes else values[:, :, 0]
        return np.ascontiguousarray(values.transpose([given.index(axis) for axis in axes]))

    def channels_from(self, values: Array) -> Array:
        """Return the gradient of an input as [B, T, directions, H]."""
        axes = self.interface.channel_axes
        values = np.asarray(values).transpose([axes.index(axis) for axis in ("btdh" if "d" in axes else "bth")])
        return values if "d" in axes else values[:, :, None]

    def direction_of(self, values: Array, run: int) -> Array:
        return np.asarray(values)[run] if self.interface.directions else np.asarray(values)


@dataclass(frozen=True)
class Verdict:
    """Result of a judgement: what was wrong, and how many numbers were judged of how many."""

    wrong: tuple[str, ...]
    judged: int
    total: int


def check(subject: Subject, kernel: Kernel) -> Verdict:
    """Hold a forward, its backward and single steps of a kernel against the oracle."""
    with np.errstate(all="ignore"):
        pairs = [*_forward_and_backward(subject, kernel), *_steps(subject, kernel)]
    wrong: list[str] = []
    judged = total = 0
    precision = subject.interface.precision
    for name, result, expected, is_stored in pairs:
        assert np.shape(result) == expected.value.shape, (name, np.shape(result), expected.value.shape)
        wrong += [f"{name} {line}" for line in disagreements(precision, result, expected, is_stored)]
        judged += int((~expected.is_unknown).sum())
        total += expected.value.size
    return Verdict(tuple(wrong), judged, total)


_Pair = tuple[str, Array, Bounded, bool]


def _forward_and_backward(subject: Subject, kernel: Kernel) -> Iterator[_Pair]:
    arrays, interface = subject.arrays, subject.interface
    sequences = {name: arrays[name] for name in ("resets", "lengths") if subject.has(name)}
    returns_all = subject.has("all_states")
    x, dy = subject.x_of(arrays["x"]), subject.y_of(arrays["dy"])
    y, states, saved = kernel.forward(x, **subject.keywords, **subject.of_steps, **sequences, all_states=returns_all)
    dstate = {name: subject._led(arrays[f"dstate {name}"]) for name in interface.states} if subject.has("dstate") else None
    gradients = dict(leaves(kernel.backward(saved, dy, dstate)))
    for run in range(len(interface.runs_reversed)):
        problem = subject.problem(run, emulated=isinstance(kernel, InterpretedKernel), native=_is_native(kernel))
        expected, all_states = cell_oracle.forward(problem)
        yield f"y of {run}", subject.y_from(y)[:, :, run], expected["y"], True
        for name in interface.states:
            if returns_all:
                yield f"all {name} of {run}", _all_states(subject, states[name], run), all_states[name], True
            else:
                yield f"state {name} of {run}", subject.direction_of(states[name], run), expected[name], False
        dfinal = {
            name: arrays[f"dstate {name}"][run].astype(np.float64) if dstate else np.zeros(arrays[f"dstate {name}"][run].shape)
            for name in interface.states
        }
        exact = cell_oracle.backward(problem, arrays["dy"][:, :, run].astype(np.float64), dfinal)
        for name, gradient in gradients.items():
            if name.startswith("inputs "):
                found = subject.channels_from(gradient)[:, :, run]
            else:
                found = subject.x_from(gradient)[:, :, run] if name == "x" else subject.direction_of(gradient, run)
            yield f"d{name} of {run}", np.reshape(found, exact[name].value.shape), exact[name], not name.startswith("state")


def _is_native(kernel: Kernel) -> bool:
    return not isinstance(kernel, InterpretedKernel) and not kernel.executor.cpu.native.kernels.why_not


def _all_states(subject: Subject, states: Array, run: int) -> Array:
    states = np.asarray(states)
    if not subject.interface.directions:
        return subject.y_from(states)[:, :, 0]
    return (
        subject.y_from(states[run])[:, :, 0] if states.shape[0] == 2 and states.ndim == 4 else subject.y_from(states)[:, :, run]
    )


def _steps(subject: Subject, kernel: Kernel) -> Iterator[_Pair]:
    """One step after another, without resets."""
    interface, arrays = subject.interface, subject.arrays
    if interface.directions:
        return
    problem = subject.problem(0, sequences=False, native=_is_native(kernel))
    expected, _ = cell_oracle.forward(problem)
    keywords = dict(subject.keywords)
    state: Mapping[str, Array] | None = keywords.pop("state", None)
    y = np.zeros(expected["y"].value.shape)
    for t in problem.steps(0):
        x_t = np.ascontiguousarray(arrays["x"][:, t, 0])
        inputs = {name: np.ascontiguousarray(arrays[f"input {name}"][:, t, 0]) for name in interface.inputs} or None
        y_t, state = kernel.step(x_t, **keywords, state=state, inputs=inputs)
        y[:, t] = np.asarray(y_t).astype(np.float64)
    yield "y of steps", y, expected["y"], True
    assert state is not None
    for name, values in state.items():
        yield f"state {name} of steps", np.asarray(values), expected[name], False
