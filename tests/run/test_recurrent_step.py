"""The step of dense cells, its text compiled for the host and launched as on a GPU, does what the equations say in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import emulated_code
from support.dense_cases import MODELS, TOLERANCES, numpy_dtype
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.examples import examples
from support.fake_device import as_if_on_a_device
from support.one_step import lower_step
from support.uncompiled_kernels import compiled_for_host
from support.waiting_steps import STEPS

from minrnn_gen.codegen.render import render
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, Sizes, step_sequences_max
from minrnn_gen.run.recording.plain_program import plain_program

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

Array = Any


@dataclass(frozen=True)
class Way:
    """A candidate of a cell's step, and by how many values every array starts off from where 16 bytes are aligned."""

    model: str
    precision: str
    head_dim: int
    heads: int
    off: int
    units: int
    warps: int
    batch_tile: int
    stages: int

    @property
    def variables(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("units", "warps", "batch_tile", "stages")}


# Heads of less than a warp has, of a part of a piece of every lane, of several rounds and blocks; rows anywhere.
WAYS = (
    Way("lstm", "bf16", 64, 3, 0, 1, 4, 4, 1),
    Way("lstm", "bf16", 520, 1, 0, 2, 8, 8, 1),
    Way("lstm", "fp64", 1, 2, 0, 1, 1, 1, 1),
    Way("gru", "fp16", 33, 2, 0, 4, 2, 2, 1),
    Way("gru", "bf16", 40, 1, 1, 2, 1, 16, 2),
    Way("gru", "fp32", 130, 1, 0, 1, 2, 16, 2),
    Way("slstm", "fp32", 24, 2, 0, 1, 2, 8, 1),
    Way("slstm", "fp64", 40, 1, 1, 2, 2, 4, 2),
    Way("elman", "fp16", 300, 1, 0, 4, 4, 2, 2),
    Way("elman", "fp32", 7, 3, 0, 2, 1, 1, 1),
    Way("light_gru", "bf16", 5, 2, 0, 4, 1, 4, 1),
    Way("light_gru", "fp64", 72, 1, 0, 1, 4, 2, 2),
)


@functools.cache
def kernel_of(model: str, precision: str, head_dim: int, heads: int, **spec: Any) -> Kernel:
    sizes = {"hidden_size": heads * head_dim, "heads": heads}
    return compiled_for_host({"model": MODELS[model], "precision": precision, "recurrent_bias": True, **sizes, **spec})


@functools.cache
def loading(kernel: Kernel, folder: Path, *variables: tuple[str, int]) -> Callable[..., Any]:
    """Return what gives the kernels of `as_if_on_a_device`: the candidate of these variables, for any specialization."""

    @functools.cache
    def load(key: KernelKey) -> Any:
        solution = kernel.builder.solve(key)
        assert solution.family.name == "decode_step"
        plan = solution.plan(next(rank for rank, one in enumerate(solution.candidates) if one == dict(variables)))
        code = emulated_code.compiled(render(plan, kernel.builder.lowered, ()), plan, folder)

        def launch(_like: Any, blocks: int, _threads: int, arguments: Any) -> None:
            code.run(blocks, arguments, seed=blocks)

        return SimpleNamespace(launch=launch), plan

    return load


def step_on_device(kernel: Kernel, load: Callable[..., Any], *given: Any, **named: Any) -> tuple[Array, dict[str, Array]]:
    with as_if_on_a_device(kernel, load) as launched:
        y, state = kernel.step(*given, **named)
    assert {kernel_pass for kernel_pass, _ in launched} <= {"step"}
    return y, state


def placed(array: Array, off: int) -> Array:
    """A copy that starts `off` values behind a multiple of 16 bytes."""
    room = np.empty(array.size * array.itemsize + 16 + off * array.itemsize, np.uint8)
    start = -room.ctypes.data % 16 + off * array.itemsize
    return room[start : start + array.size * array.itemsize].view(array.dtype).reshape(array.shape)


def copied(array: Array, off: int) -> Array:
    to = placed(array, off)
    to[...] = array
    return to


@st.composite
def calls(draw: st.DrawFn, way: Way, batch: int | None = None) -> dict[str, Any]:
    kernel = kernel_of(way.model, way.precision, way.head_dim, way.heads)
    interface, random = kernel.interface, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    storage, real = numpy_dtype(interface.precision.storage_dtype), numpy_dtype(interface.precision.arithmetic_dtype)
    if batch is None:
        # A part of a tile, a whole one and more; and of such parts as are computed as fewer sequences.
        batch = draw(st.sampled_from(sorted({0, 1, way.batch_tile // 4, way.batch_tile, 2 * way.batch_tile + 1})))
    hidden, gates, products = interface.hidden_size, len(interface.gates), len(interface.recurrent_gates)
    vector_dtypes = st.sampled_from((None, storage, np.dtype(np.float32)))

    def vector(*shape: int) -> Array | None:
        dtype = draw(vector_dtypes)
        return None if dtype is None else random.normal(size=shape).astype(dtype)

    order = draw(st.permutations(range(3)))
    x = random.normal(size=(batch, gates, hidden)).astype(storage)
    R = (random.uniform(-1, 1, interface.R_shape) / interface.head_dim).astype(storage)
    call = {
        # Any strides, with gaps.
        "x_t": np.ascontiguousarray(x.transpose(order)).repeat(2, 2)[..., ::2].transpose(np.argsort(order)),
        "R": copied(R.reshape(-1, interface.head_dim) if draw(st.booleans()) else R, way.off),
        "bias": vector(gates, hidden),
        "recurrent_bias": vector(products, way.heads, interface.head_dim),
        "parameters": {name: random.normal(size=hidden).astype(draw(vector_dtypes) or storage) for name in kernel.parameters},
        "state": {name: copied(random.normal(size=(batch, hidden)).astype(real), way.off) for name in kernel.states},
    }
    return call if draw(st.booleans()) else {**call, "state": None}


def expected_of(kernel: Kernel, call: dict[str, Any]) -> tuple[Array, dict[str, Array]]:
    """The equations in float64; what R multiplies is rounded to storage."""
    interface, builder = kernel.interface, kernel.builder
    x = call["x_t"].astype(np.float64)
    batch, _, hidden = x.shape
    previous = call["state"] or {name: np.zeros((batch, hidden)) for name in kernel.states}
    output = previous[builder.lowered.output_state].astype(numpy_dtype(interface.precision.storage_dtype))
    R, by_head = call["R"].astype(np.float64).reshape(interface.R_shape), (batch, interface.heads, interface.head_dim)
    product = np.einsum("gnoi,bni->bgno", R, output.astype(np.float64).reshape(by_head))
    product = product.reshape(batch, len(interface.recurrent_gates), hidden)
    if call["bias"] is not None:
        x = x + call["bias"].astype(np.float64)
    if call["recurrent_bias"] is not None:
        product = product + call["recurrent_bias"].astype(np.float64).reshape(-1, hidden)
    named = {f"W_{gate}": x[:, index] for index, gate in enumerate(kernel.gates)}
    named |= {f"R_{gate}": product[:, index] for index, gate in enumerate(interface.recurrent_gates)}
    named |= {f"previous_{name}": one.astype(np.float64) for name, one in previous.items()}
    named |= {f"parameter_{name}": one.astype(np.float64) for name, one in call["parameters"].items()}
    found = lower_step(builder.cell).evaluate(named)
    return found["y"], {name: found[f"state_{name}"] for name in kernel.states}


# Two thirds of them with the whole matrix only: compiling one takes seconds.
@pytest.mark.parametrize(
    "way",
    one_in(3, WAYS),
    ids=str,
)
@settings(max_examples=examples(6))
@given(data=st.data())
def test_a_step_is_its_equations(way: Way, folder: Path, data: st.DataObject) -> None:
    kernel, call = kernel_of(way.model, way.precision, way.head_dim, way.heads), data.draw(calls(way))
    y, state = step_on_device(kernel, loading(kernel, folder, *way.variables.items()), **call)
    y_expected, states = expected_of(kernel, call)
    assert y.dtype == call["x_t"].dtype and y.shape == y_expected.shape
    for found, expected, dtype in ((y, y_expected, y.dtype), *((state[name], states[name], None) for name in states)):
        tolerance = TOLERANCES[numpy_dtype(kernel.interface.precision.arithmetic_dtype).name if dtype is None else dtype.name]
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


# With the same values of a row at once the same numbers are added in the same order.
@pytest.mark.parametrize("way", [WAYS[0], WAYS[5]], ids=str)
@settings(max_examples=4)
@given(data=st.data())
def test_neither_the_plan_nor_the_batch_changes_a_bit(way: Way, folder: Path, data: st.DataObject) -> None:
    kernel, call = kernel_of(way.model, way.precision, way.head_dim, way.heads), data.draw(calls(way, batch=5))
    results = []
    for other in (way, replace(way, units=2, warps=1, batch_tile=2, stages=1)):
        y, state = step_on_device(kernel, loading(kernel, folder, *other.variables.items()), **call)
        results.append((y, *state.values()))
    alone = dict(call, x_t=call["x_t"][3:4], state=call["state"] and {n: one[3:4].copy() for n, one in call["state"].items()})
    y, state = step_on_device(kernel, loading(kernel, folder, *way.variables.items()), **alone)
    for one, other, single in zip(*results, (y, *state.values()), strict=True):
        assert one.tobytes() == other.tobytes() and one[3:4].tobytes() == single.tobytes()


@pytest.mark.parametrize("way", one_in(2, ((way,) for way in (WAYS[0], WAYS[6], WAYS[5]))), ids=str)
@settings(max_examples=4)
@given(data=st.data())
def test_nan_stays_in_its_sequence(way: Way, folder: Path, data: st.DataObject) -> None:
    kernel, call = kernel_of(way.model, way.precision, way.head_dim, way.heads), data.draw(calls(way, batch=5))
    call = dict(call, state=call["state"] or {name: np.zeros((5, way.heads * way.head_dim)) for name in kernel.states})
    real = numpy_dtype(kernel.interface.precision.arithmetic_dtype)
    call["state"] = {name: one.astype(real) for name, one in call["state"].items()}
    load = loading(kernel, folder, *way.variables.items())
    y, state = step_on_device(kernel, load, **call)
    for one in (call["x_t"], *call["state"].values()):
        one[2] = np.nan
    bad_y, bad_state = step_on_device(kernel, load, **call)
    assert np.isnan(bad_y[2].astype(float)).all()
    for one, bad in ((y, bad_y), *((state[name], bad_state[name]) for name in state)):
        assert np.delete(one, 2, 0).tobytes() == np.delete(bad, 2, 0).tobytes()


def test_of_how_many_sequences_a_step_has_a_kernel_of_its_own() -> None:
    """A step of more sequences is a forward of one step."""
    kernel = kernel_of("lstm", "fp32", 16, 1)
    most = step_sequences_max(kernel.builder.target.profile, 4 * 16 * 16)
    launched, R = [], np.zeros((4, 1, 16, 16), np.float32)

    @functools.cache
    def load(key: KernelKey) -> Any:
        module = SimpleNamespace(launch=lambda *_: launched.append(key.kernel_pass))
        return module, kernel.builder.solve(key).plan()

    x = np.zeros((1, 4, 16), np.float32)
    with as_if_on_a_device(kernel, load):
        for batch in (most, most + 1):
            kernel.step(np.broadcast_to(x, (batch, 4, 16)), R)
    assert launched == ["step", "forward"]
    # And by what R takes: those of an LSTM with one head of 512 units, and of 1024.
    profile = kernel.builder.target.profile
    assert [step_sequences_max(profile, 4 * size * size) for size in (16, 512, 1024)] == [128, 79, 19]


def test_heads_of_any_size_have_a_step() -> None:
    """Where outputs do not fit shared memory it is a forward of one."""
    for head_dim, entry in ((1, "decode_step"), (4096, "decode_step"), (1 << 20, "stepwise_forward")):
        builder = kernel_of("elman", "bf16", head_dim, 1).builder
        plan = builder.solve(builder.key_of("step", Specialization(2))).plan()
        assert plan.entry == entry, plan.prediction.passed_over


@pytest.mark.parametrize(
    "spec",
    (
        {"model": "gru_reset_before", "layout": "BDT", "precision": "bf16"},
        {"model": "layer_norm_lstm", "layout": "BDT", "precision": "fp32"},
        {"model": "lstm_projected", "projection_size": 64, "precision": "fp64", "hidden_size": 512},
    ),
    ids=lambda spec: str(spec["model"]),
)
def test_a_step_that_waits_for_products_or_means_is_one_launch(spec: dict[str, Any]) -> None:
    """On rows of states, in layouts and precisions that no kernel over time takes in one launch."""
    kernel = compiled_for_host({"hidden_size": 64, **spec})
    program = plain_program((kernel.embedded or kernel).builder, "step", Sizes(4, 1))
    operations = program.split("operations\n")[1].splitlines()
    assert len(operations) == 1 and operations[0].strip().startswith("launch decode_step"), program


@pytest.mark.parametrize(("cell", "hidden", "heads", "batch", "options"), STEPS)
def test_a_step_that_waits_is_a_forward_only_where_that_is_faster(
    cell: Any, hidden: int, heads: int, batch: int, options: dict[str, Any]
) -> None:
    """Not where a kernel over time takes the step in one launch, but by warpgroups, or with R from L2."""
    spec = {"model": cell, "hidden_size": hidden, "heads": heads, "batch": batch, "training": False, **options}
    kernel = compiled_for_host(spec, plans_sizes=True)
    program = plain_program((kernel.embedded or kernel).builder, "step", Sizes(batch, 1))
    operations = program.split("operations\n")[1].splitlines()
    assert len(operations) == 1 and operations[0].strip().startswith("launch decode_step"), program


def test_few_sequences_step_by_their_own_kernel_and_more_as_a_forward() -> None:
    """Tensor cores multiply eight sequences at once; multiply-adds of each take their time."""
    spec = {"model": "gru_reset_before", "hidden_size": 512, "precision": "bf16"}
    builder = compiled_for_host(spec, plans_sizes=True).builder
    programs = [plain_program(builder, "step", Sizes(batch, 1)).split("operations\n")[1] for batch in (1, 32)]
    assert [program.split()[1].strip(",") for program in programs] == ["decode_step", "persistent_forward"]
