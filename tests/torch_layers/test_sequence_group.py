"""Time over the ranks of a group: pieces side by side are the whole, forward and backward, whatever the pieces."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.patience import within

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402
from support.drawn_cells import cells  # noqa: E402
from support.drawn_vectors import vector_cells  # noqa: E402
from support.emulated_code import HAS_COMPILER  # noqa: E402
from support.examples import examples  # noqa: E402
from support.input_cells import GAPS, HIGHWAY  # noqa: E402
from support.stage_cells import DELAYS, STAGES, STAGES_OF_VALUES, VALUES  # noqa: E402
from support.vector_cells import CELLS  # noqa: E402

from minrnn_gen.layers.kernels import stages_of  # noqa: E402
from minrnn_gen.torch.sequence_group import cost  # noqa: E402
from minrnn_gen.torch.sequence_group.cuts import cuts_of  # noqa: E402

# How far pieces may be from the whole, over the largest of the values, beside what the whole itself rounds.
TOLERANCES = {"fp64": 1e-12, "fp32": 2e-7, "bf16": 2.0**-7, "fp16": 2.0**-10}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 3, "precision": "fp64"},
    {"model": "min_gru", "hidden_size": 3, "precision": "fp32", "direction": "bidirectional", "input_size": 2},
    {"model": "min_lstm", "hidden_size": 2, "precision": "fp64", "layout": "BDT", "direction": "reverse"},
    {"model": "qrnn", "hidden_size": 2, "precision": "fp64", "layout": "TBD", "input_size": 3},
    {"model": "rg_lru", "hidden_size": 2, "precision": "bf16"},
    {"model": "min_gru", "hidden_size": 2, "precision": "fp16"},
    {"model": "ind_rnn", "hidden_size": 2, "precision": "fp64", "direction": "bidirectional"},
    {"model": "lstm", "hidden_size": 4, "heads": 2, "precision": "fp64", "direction": "bidirectional"},
    {"model": "gru", "hidden_size": 2, "precision": "fp32", "input_size": 3},
)
WITH_INPUTS: tuple[dict[str, Any], ...] = (
    {"model": HIGHWAY, "hidden_size": 2, "precision": "fp64", "direction": "bidirectional", "layout": "BDT"},
    {"model": HIGHWAY, "hidden_size": 2, "precision": "fp64"},
    {"model": GAPS, "hidden_size": 4, "heads": 2, "precision": "fp64", "direction": "reverse", "layout": "TBD"},
)
VECTORS: tuple[dict[str, Any], ...] = tuple(
    {"hidden_size": 4, "state_size": 3, "precision": "fp64", **others}
    for others in (
        {"model": "selective", "groups": 2, "input_size": 2},
        {"model": "selective", "groups": 2, "precision": "fp32", "direction": "bidirectional"},
        {"model": "gated_linear", "groups": 4, "layout": "BDT", "direction": "reverse"},
        {"model": "s4d", "layout": "TBD", "direction": "bidirectional"},
        {"model": {"name": "mixed", **CELLS["scalar and vector states"].file}, "groups": 2},
        {"model": {"name": "chosen", **CELLS["chosen"].file}, "layout": "BDT", "direction": "bidirectional"},
        {"model": {"name": "delta", **CELLS["delta rule"].file}, "groups": 2},
    )
)
DRAWN = st.builds(
    lambda model, layout: {"model": model, "hidden_size": 4, "state_size": 3, "layout": layout, "precision": "fp64"},
    vector_cells(),
    st.sampled_from(("BTD", "TBD", "BDT")),
)
COUPLED: tuple[dict[str, Any], ...] = tuple(
    {"hidden_size": 2, "precision": "fp64", **spec}
    for spec in (
        {"model": "biquad"},
        {"model": "biquad", "precision": "fp32", "direction": "bidirectional"},
        {"model": "complex_lru", "layout": "BDT", "direction": "reverse"},
        {"model": "complex_lru", "precision": "bf16"},
        {"model": "linoss", "direction": "bidirectional", "layout": "TBD"},
        {"model": "holt", "input_size": 3},
        {"model": "conv_min_gru", "direction": "reverse"},
        {"model": STAGES},
        {"model": STAGES, "direction": "bidirectional", "layout": "BDT"},
        {"model": DELAYS, "layout": "TBD"},
        {"model": STAGES_OF_VALUES, "state_size": 3},
        {"model": VALUES, "state_size": 2, "layout": "TBD", "direction": "reverse"},
    )
)
DRAWN_COUPLED = st.builds(
    lambda drawn, layout: {"model": drawn.document, "hidden_size": 2, "layout": layout, "precision": "fp64"},
    cells(("coupled",)),
    st.sampled_from(("BTD", "TBD", "BDT")),
)
FORGETTING: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 3},
    {"model": "qrnn", "hidden_size": 2, "layout": "TBD", "input_size": 3},
    {"model": "rg_lru", "hidden_size": 2},
    {"model": "conv_min_gru", "hidden_size": 2},
)
LOG: dict[str, Any] = {"model": "min_gru_log", "hidden_size": 3, "precision": "fp64", "scan_arithmetic": "log"}


def pieces() -> st.SearchStrategy[list[int]]:
    """Draw the steps of the pieces of two or three ranks, any of them empty."""
    return st.integers(2, ranks.RANKS).flatmap(lambda size: st.lists(st.integers(0, 6), min_size=size, max_size=size))


def assert_like(actual: Any, expected: Any, exact: Any, tolerance: float, name: str, scale: float = 0.0) -> None:
    """Compare pieces with the whole; `exact` is the whole in fp64, from which it is as far as it rounds."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, name
    if expected.numel():
        difference = (actual - expected).abs().double().max().item()
        rounding = (expected - exact).abs().double().max().item()
        size = max(expected.abs().double().max().item(), scale)
        assert difference <= tolerance * size + 2 * rounding, f"{name}: {difference} beside {size} and {rounding}"


def largest(values: Any) -> float:
    """Return the largest magnitude of values, by which states behind them were rounded."""
    return max(values.abs().double().max().item(), 1.0) if values.numel() else 1.0


def in_dtype(value: Any, dtype: Any) -> Any:
    """Return tensors, in mappings too, with real numbers in a dtype."""
    if isinstance(value, Mapping):
        return {name: in_dtype(inner, dtype) for name, inner in value.items()}
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def composes(spec: Mapping[str, Any]) -> bool:
    """Whether states are affine in those before."""
    return bool(stages_of(ranks.kernel_of(spec).recipe))


@st.composite
def calls(draw: st.DrawFn, specs: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw a recurrence over pieces: spec, arrays, sequences, way."""
    spec, steps = draw(specs), draw(pieces())
    if spec["precision"] == "fp64" and draw(st.booleans()):
        steps = [20 * step for step in steps]  # of which a correction is a part
    interface = ranks.kernel_of(spec).interface
    time, directions, dtype = sum(steps), interface.directions, DTYPES[spec["precision"]]
    carried = torch.float64 if spec["precision"] == "fp64" else torch.float32
    packs = interface.layout == "BTD" and draw(st.booleans())
    batch = 1 if packs else draw(st.integers(0, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int, dtype: Any = dtype, by: float = 1.0) -> Any:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * by).to(dtype)

    tensors: dict[str, Any] = {"x": normal(*interface.shape(interface.x_axes, batch, time))}
    sequences = batch
    if packs:
        ends = sorted(draw(st.lists(st.integers(0, time), max_size=4)))
        tensors["cu_seqlens"] = torch.tensor([0, *ends, time])
        sequences = len(ends) + 1
    elif draw(st.booleans()):
        tensors["lengths"] = torch.tensor(
            draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch)), dtype=torch.int32
        )
    if draw(st.booleans()):
        tensors["resets"] = torch.rand(batch, time, generator=generator) < 0.15
    if not interface.has_vectors and "scan_arithmetic" not in spec and draw(st.booleans()):
        of_each = [interface.state_shape(sequences)] if not packs else []
        shape = draw(st.sampled_from([interface.parameter_shape, *of_each]))
        if "resets" in tensors:
            tensors["reset_states"] = {name: normal(*shape, dtype=carried) for name in interface.states}
        if "resets" not in tensors or draw(st.booleans()):
            tensors["holds"] = torch.rand(batch, time, generator=generator) < 0.3
    if interface.recurrent_gates:
        tensors["R"] = normal(*interface.R_shape, by=0.5)
    if interface.input_size:
        tensors["weight"] = normal(interface.weight_rows, interface.input_size)
    if draw(st.booleans()):
        tensors["bias"] = normal(*directions, len(interface.gates), interface.hidden_size)
    tensors["parameters"] = {name: normal(*interface.shape_of_parameter(name)) for name in interface.parameters}
    if interface.shared:
        tensors["shared"] = {name: normal(*interface.shape(interface.shared_axes, batch, time)) for name in interface.shared}
    if interface.inputs:
        tensors["inputs"] = {name: normal(*interface.shape(interface.channel_axes, batch, time)) for name in interface.inputs}
    shapes = {name: interface.shape_of_state(name, sequences) for name in interface.states}
    if draw(st.booleans()):
        tensors["state"] = {name: normal(*shape, dtype=carried) for name, shape in shapes.items()}
    tensors["weights of y"] = normal(*interface.y_shape(batch, time), dtype=carried)
    tensors["weights of state"] = {name: normal(len(steps), *shape, dtype=carried) for name, shape in shapes.items()}
    ways = (None, "pipeline", *(["summary", "correct"] if composes(spec) else []))
    way, micro_batches = draw(st.sampled_from(ways)), draw(st.sampled_from((None, 1, 2, 3)))
    asked = {"way": way, "micro_batches": micro_batches, "all_states": draw(st.booleans())}
    return {"spec": spec, "tensors": tensors, "pieces": steps, **asked}


def check_call(
    group: ranks.Ranks, call: Mapping[str, Any], case: str = "cell", *, tolerance: float = 0.0, **options: Any
) -> None:
    spec, steps, tensors = call["spec"], call["pieces"], call["tensors"]
    layout, tolerance = spec.get("layout", "BTD"), tolerance or TOLERANCES[spec["precision"]]
    whole = ranks.cell(None, 0, spec=spec, tensors=tensors, pieces=None, all_states=call["all_states"])
    exact = whole
    if spec["precision"] == "fp32":
        in_double = {**spec, "precision": "fp64"}
        exact = ranks.cell(
            None, 0, spec=in_double, tensors=in_dtype(tensors, torch.float64), pieces=None, all_states=call["all_states"]
        )
    parts = group.run(len(steps), case, **call, **options)
    interface = ranks.kernel_of(spec).interface
    for name, expected in whole.items():
        own = [part[name] for part in parts]
        if name == "dx":
            assert_like(torch.cat(own, interface.x_axes.index("t")), expected, exact[name], tolerance, name)
        elif name == "y":
            assert_like(torch.cat(own, layout.index("T")), expected, exact[name], tolerance, name)
        elif name.startswith("steps"):
            axis = interface.states_axes(name.removeprefix("steps ")).index("t")
            assert_like(torch.cat(own, axis), expected, exact[name], tolerance, name)
        elif name[1:] in interface.shared:
            assert_like(torch.cat(own, interface.shared_axes.index("t")), expected, exact[name], tolerance, name)
        elif name[1:] in interface.inputs:
            assert_like(torch.cat(own, interface.channel_axes.index("t")), expected, exact[name], tolerance, name)
        elif name.startswith("final"):
            assert all(torch.equal(state, own[0]) for state in own), name
            assert_like(own[0], expected, exact[name], tolerance, name)
        else:
            # Gradients of initial states where they do not count are zeros; those of weights are the pieces' own.
            of_pieces = torch.stack([gradient.double() for gradient in own])
            summed = of_pieces.sum(0).to(expected.dtype)
            # Each piece's own is rounded by its own size, which is larger than that of the sum where pieces cancel.
            sizes = of_pieces.abs().sum(0) + summed.double().abs()
            assert_like(summed, expected, exact[name], tolerance, name, scale=largest(sizes))


@settings(max_examples=examples(10))  # each is a call of three or four processes
@given(calls(st.sampled_from(SPECS)))
def test_pieces_of_a_recurrence_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@settings(max_examples=examples(6))
@given(calls(st.sampled_from(WITH_INPUTS)))
def test_pieces_of_a_cell_with_inputs_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@settings(max_examples=examples(8))
@given(calls(st.sampled_from(VECTORS)))
def test_pieces_of_a_cell_with_n_values_per_channel_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call, repeats=2)


@settings(max_examples=examples(3))
@given(calls(DRAWN))
def test_pieces_of_drawn_scans_of_n_values_per_channel_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@settings(max_examples=examples(6))
@given(calls(st.sampled_from(COUPLED)))
def test_pieces_of_coupled_states_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call, repeats=2)


@settings(max_examples=examples(4))
@given(calls(st.just(LOG)))
def test_pieces_of_a_scan_in_log_space_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    call["tensors"] |= {"state": {name: state.abs() for name, state in call["tensors"].get("state", {}).items()}}
    check_call(group, call)


@st.composite
def scans(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a raw scan over pieces, long ones among them, whose coefficients forget fast or slowly."""
    steps = draw(pieces())
    if draw(st.booleans()):
        steps = [40 * step for step in steps]
    # In fp32 the order of long sums alone changes more than the tolerance.
    dtypes = (torch.float64, torch.complex128, torch.bfloat16, *([torch.float32] if max(steps) < 40 else []))
    dtype = draw(st.sampled_from(dtypes))
    carried = torch.float32 if dtype is torch.bfloat16 else dtype
    rank = draw(st.integers(1, 3))
    axis = draw(st.integers(-rank, rank - 1))
    shape = draw(st.lists(st.integers(0, 3), min_size=rank - 1, max_size=rank - 1))
    shape.insert(axis % rank, sum(steps))
    state_shape = shape[: axis % rank] + shape[axis % rank + 1 :]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    log_a = not dtype.is_complex and draw(st.booleans())

    def normal(*shape: int, dtype: Any = carried) -> Any:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)

    least = draw(st.sampled_from((0.0, 0.5, 0.99)))
    a = least + (1 - least) * torch.rand(shape, generator=generator, dtype=torch.float64)
    a = (a.clamp_min(1e-3).log() if log_a else a).to(dtype)
    if dtype.is_complex:
        a = a * (0.8 + 0.6j)
    tensors = {"a": a, "b": normal(*shape, dtype=dtype), "h0": normal(*state_shape) if draw(st.booleans()) else None}
    tensors["weights of y"] = normal(*shape)
    tensors["weights of final"] = normal(len(steps), *state_shape)
    way = draw(st.sampled_from((None, "summary", "correct", "pipeline")))
    asked = {"way": way, "micro_batches": draw(st.sampled_from((None, 1, 2, 3)))}
    return {"tensors": tensors, "pieces": steps, "axis": axis, "log_a": log_a, "reverse": draw(st.booleans()), **asked}


@given(scans())
def test_pieces_of_a_raw_scan_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_scan(group, call)


@pytest.mark.matrix_full
@settings(max_examples=500)
@given(calls(st.sampled_from(SPECS)))
def test_pieces_of_many_recurrences_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@pytest.mark.matrix_full
@settings(max_examples=200)
@given(calls(st.sampled_from(VECTORS) | DRAWN))
def test_pieces_of_many_calls_of_n_values_per_channel_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@pytest.mark.matrix_full
@settings(max_examples=100)
@given(calls(st.sampled_from(COUPLED)))
def test_pieces_of_many_calls_of_coupled_states_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_call(group, call)


@pytest.mark.matrix_full
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(calls(DRAWN_COUPLED))
def test_pieces_of_drawn_coupled_states_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    """Curved functions of earlier states, steep ones among them, enlarge what those are rounded by."""
    whole = ranks.cell(None, 0, spec=call["spec"], tensors=call["tensors"], pieces=None)
    assume(all(values.isfinite().all() and largest(values) < 1e6 for values in whole.values()))
    check_call(group, call, tolerance=1e-7)


@pytest.mark.matrix_full
@settings(max_examples=500)
@given(scans())
def test_pieces_of_many_raw_scans_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_scan(group, call)


def check_scan(group: ranks.Ranks, call: Mapping[str, Any]) -> None:
    tensors = call["tensors"]
    whole = ranks.scan(None, 0, **{**call, "pieces": None, "way": None})
    exact = whole
    if tensors["a"].dtype is torch.float32:
        exact = ranks.scan(None, 0, **{**call, "tensors": in_dtype(tensors, torch.float64), "pieces": None, "way": None})
    parts = group.run(len(call["pieces"]), "scan", **call)
    tolerance = {torch.float32: 2e-7, torch.bfloat16: 2.0**-7}.get(tensors["a"].dtype, 1e-12)
    for name in ("y", "da", "db"):
        assert_like(torch.cat([part[name] for part in parts], call["axis"]), whole[name], exact[name], tolerance, name)
    assert all(torch.equal(part["final"], parts[0]["final"]) for part in parts)
    assert_like(parts[0]["final"], whole["final"], exact["final"], tolerance, "final", scale=largest(whole["y"]))
    if tensors["h0"] is not None:
        assert_like(
            sum(part["dh0"] for part in parts), whole["dh0"], exact["dh0"], tolerance, "dh0", scale=largest(whole["db"])
        )


MODES = ({}, {"checkpointed": True}, {"in_mesh": True})
MORE_MODES = ({"compiled": True}, {"has_vectors": True})  # which take the longest


@pytest.mark.parametrize("mode", [*MODES, *(pytest.param(mode, marks=pytest.mark.matrix_full) for mode in MORE_MODES)], ids=str)
def test_layers_train_over_ranks_as_one_process_does(group: ranks.Ranks, mode: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, targets = (torch.randn(3, 8, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    whole = ranks.layers(None, 0, x=x, targets=targets, pieces=None, has_vectors="has_vectors" in mode)
    parts = group.run(3, "layers", x=x, targets=targets, pieces=[3, 4, 1], **mode)
    assert_like(torch.cat([part["y"] for part in parts], 1), whole["y"], whole["y"], 1e-12, "y")
    assert_like(torch.cat([part["dx"] for part in parts], 1), whole["dx"], whole["dx"], 1e-12, "dx")
    assert_like(sum(part["loss"] for part in parts), whole["loss"], whole["loss"], 1e-12, "loss")
    for name in whole.keys() - {"y", "dx", "loss"}:
        for part in parts:
            assert_like(part[name], whole[name], whole[name], 1e-12, name, scale=1.0)


def test_layers_train_over_heads_as_one_process_does(group: ranks.Ranks) -> None:
    """Every rank has all of the input and the loss; weights that make S.* of it count once."""
    generator = torch.Generator().manual_seed(0)
    x, targets = (torch.randn(3, 8, size, generator=generator, dtype=torch.float64) for size in (3, 4))
    arguments: dict[str, Any] = {"x": x, "targets": targets, "pieces": None, "has_vectors": True}
    whole = ranks.layers(None, 0, **arguments)
    for part in group.run(2, "layers", over_heads=True, **arguments):
        for name, expected in whole.items():
            assert_like(part[name], expected, expected, 1e-12, name, scale=1.0)


def _x(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("calls", "rank", "difference"),
    [
        ([{"x": _x(2, 3, 3)}, {"x": _x(3, 3, 3)}], 1, "batch 3"),
        ([{"x": _x(2, 3, 3)}, {"x": _x(2, 3, 3), "model": "min_lstm"}], 1, "min_lstm"),
        ([{"x": _x(2, 3, 3)}, {"x": _x(2, 3, 3, dtype=torch.float32)}], 1, "float32"),
        ([{"x": _x(2, 3, 4)}, {"x": _x(2, 3, 3)}], 0, "input_size is 3"),
        ([{"x": _x(2, 3, 3)}] * 2 + [{"x": _x(2, 3, 3), "lengths": [3, 9]}], 2, "lengths"),
        ([{"x": _x(2, 3, 3), "lengths": [3, 7]}] * 2, None, "lengths[1] is 7; 0 to 6, the time of all ranks' pieces"),
        ([{"x": _x(1, 3, 3), "cu_seqlens": [0, 4]}] * 2, None, "cu_seqlens ends with 4; 6, the time of all ranks' pieces"),
        ([{"x": _x(2, 3, 3), "hx": _x(1, 2, 5)}, {"x": _x(2, 3, 3)}], 0, "hx of state h has shape [1, 2, 5]"),
        ([{"x": _x(2, 3, 3)}, {"x": _x(2, 3, 3), "way": "pipeline"}], 1, "way pipeline"),
        ([{"x": _x(2, 3, 3), "way": "correct", "model": "gru"}] * 2, None, "way is 'correct', but the steps of gru are not"),
    ],
)
def test_what_disagrees_is_refused_on_every_rank(
    group: ranks.Ranks, calls: list[dict[str, Any]], rank: int | None, difference: str
) -> None:
    messages = group.run(len(calls), "refusal", calls=calls)  # once the processes are there
    began = clock.perf_counter()
    assert group.run(len(calls), "refusal", calls=calls) == messages
    assert clock.perf_counter() - began < within(10)  # seconds, and no timeout of the group's, which is longer
    assert all(difference in message for message in messages), messages
    others = [message for place, message in enumerate(messages) if place != rank]
    assert rank is None or all(f"rank {rank} of the sequence group" in message for message in others), messages


def test_a_raw_scan_that_disagrees_is_refused_on_every_rank(group: ranks.Ranks) -> None:
    first, second = group.run(2, "refused_scan", shapes=[(2, 3), (3, 3)], log_a=[False, False])
    assert first == second and "rank 1 of the sequence group has shape beside time [3], but rank 0 has [2]" in first
    first, second = group.run(2, "refused_scan", shapes=[(2, 3), (2, 3)], log_a=[False, 1])
    assert "rank 1 of the sequence group refuses the call: log_a" in first and second.startswith("log_a is 1")


@pytest.mark.matrix_full
def test_a_rank_that_dies_ends_the_others_by_an_error_of_torch(tmp_path: Path) -> None:
    with ranks.started(tmp_path, 2, timeout=ranks.SHORT) as processes:
        began = clock.perf_counter()
        (error,) = processes.survivors("dying", way="summary", exits=True)
        assert clock.perf_counter() - began < within(20)
    assert "RuntimeError" in error and "by peer" in error, error  # that a connection was closed, or reset


@pytest.mark.matrix_full
def test_a_rank_that_no_longer_answers_ends_the_others_by_the_timeout_of_their_group(tmp_path: Path) -> None:
    with ranks.started(tmp_path, 2, timeout=ranks.SHORT) as processes:
        began = clock.perf_counter()
        (error,) = processes.survivors("dying", way="pipeline", exits=False)
        assert 2 < clock.perf_counter() - began < within(20)
    assert "Timed out waiting 3000ms" in error, error


@pytest.mark.parametrize("asking", range(3))
def test_all_ranks_record_where_one_does(group: ranks.Ranks, asking: int) -> None:
    answers = group.run(3, "one_sided", asking=asking)
    assert all(requires_grad for requires_grad, _ in answers)
    assert [gradient is not None for _, gradient in answers] == [rank == asking for rank in range(3)]


@pytest.mark.parametrize("time", [4, 400])
@pytest.mark.parametrize("way", ["summary", "correct"])
def test_a_summary_and_a_correction_send_two_values_of_each_state(group: ranks.Ranks, way: str, time: int) -> None:
    cell = {"hidden_size": 8, "precision": "fp32"}
    for spec in (None, {"model": "min_gru", **cell}, {"model": "selective", "state_size": 3, **cell}):
        state_bytes = 5 * 8 * 4 * (1 if spec is None else spec.get("state_size", 1))
        for forward, backward in group.run(3, "bytes_sent", way=way, spec=spec, batch=5, time=time):
            # The backward's are the gradient of what enters the piece, and one value besides: that of the final state.
            assert 0 < forward <= 2 * state_bytes and 0 < backward <= 3 * state_bytes


def test_delays_of_ranks_change_no_bit(group: ranks.Ranks) -> None:
    group.run(3, "delayed", runs=10, seed=0)


@pytest.mark.matrix_full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 3])
def test_many_delays_of_ranks_change_no_bit(group: ranks.Ranks, size: int) -> None:
    group.run(size, "delayed", runs=250, seed=size)


@pytest.mark.parametrize("size", [2, 3])
def test_the_example_has_the_losses_of_one_process(group: ranks.Ranks, size: int) -> None:
    expected = ranks.example(None, 0, steps=4)
    assert len(set(expected)) == 4
    for losses in group.run(size, "example", steps=4, tune=size == 2):
        assert losses == pytest.approx(expected, rel=1e-5)


def long_call(spec: dict[str, Any], keep: float | None = None, steps: tuple[int, ...] = (1500, 2000, 2500)) -> dict[str, Any]:
    """Return a call on long pieces, whose gates forget; or such that those of min_gru and selective keep nearly a share."""
    interface, generator = ranks.kernel_of(spec).interface, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors: dict[str, Any] = {"x": normal(*interface.shape(interface.x_axes, 2, sum(steps)))}
    if keep is not None and not interface.has_vectors:
        tensors["x"].select(interface.x_axes.index("g"), interface.gates.index("z")).sub_(math.log(keep / (1 - keep)))
    mean = 4.0 if not interface.has_vectors else 2.0 if keep is None else math.log(1 - keep)
    tensors["parameters"] = {name: normal(*interface.shape_of_parameter(name)) + mean for name in interface.parameters}
    if interface.shared:
        tensors["shared"] = {name: normal(*interface.shape(interface.shared_axes, 2, sum(steps))) for name in interface.shared}
    tensors["state"] = {name: normal(*interface.shape_of_state(name, 2)) for name in interface.states}
    if interface.recurrent_gates:
        tensors["R"] = normal(*interface.R_shape)
    if interface.input_size:
        tensors["weight"] = normal(interface.weight_rows, interface.input_size)
    tensors["weights of y"] = normal(*interface.y_shape(2, sum(steps)))
    tensors["weights of state"] = {name: normal(len(steps), *interface.shape_of_state(name, 2)) for name in interface.states}
    return {"spec": spec, "tensors": tensors, "pieces": [*steps]}


@pytest.mark.parametrize("spec", FORGETTING, ids=str)
def test_what_gates_forget_is_corrected_in_part(group: ranks.Ranks, spec: dict[str, Any]) -> None:
    """Long pieces run again in their head alone, and in the backward in their tail."""
    call = long_call({**spec, "precision": "fp64"})
    check_call(group, {**call, "way": "correct", "all_states": False}, repeats=2)
    assert group.run(3, "full_runs", **call) == [(1, 1)] * 3


@pytest.mark.parametrize(
    "spec",
    [
        {"model": "selective", "groups": 2, "direction": "reverse"},
        pytest.param({"model": "selective", "layout": "BDT"}, marks=pytest.mark.matrix_full),
        pytest.param({"model": "selective", "layout": "TBD", "input_size": 3}, marks=pytest.mark.matrix_full),
    ],
    ids=str,
)
def test_what_channels_of_n_values_forget_is_corrected_in_part(group: ranks.Ranks, spec: dict[str, Any]) -> None:
    """A forward runs the tail by itself, for the states that its backward begins with; at the end all steps at once."""
    call = long_call({**spec, "hidden_size": 2, "state_size": 2, "precision": "fp64"})
    check_call(group, {**call, "way": "correct", "all_states": False}, repeats=2)
    runs = [(0, 1), (0, 1), (1, 1)]
    assert group.run(3, "full_runs", **call) == (runs[::-1] if spec.get("direction") == "reverse" else runs)


def test_what_gates_keep_is_folded_by_the_products_of_coefficients(group: ranks.Ranks) -> None:
    """All of each piece runs again, and the piece between two others once more for its product."""
    call = long_call({"model": "min_gru", "hidden_size": 3, "precision": "fp64"}, keep=0.9999)
    check_call(group, {**call, "way": "correct", "all_states": False}, repeats=2)
    assert group.run(3, "full_runs", **call) == [(1, 2), (3, 2), (2, 1)]


def test_maps_with_a_double_eigenvalue_are_composed_in_fp64(group: ranks.Ranks) -> None:
    """A rounded one has two eigenvalues, which differ by the root of the rounding: in fp32 the error is 3e-3 here."""
    call = long_call({"model": "biquad", "hidden_size": 2, "precision": "fp64"}, steps=(1500, 1500, 1500))
    poles = {"b0": 1.0, "b1": 0.0, "b2": 0.0, "a1": -2 * 0.9995, "a2": 0.9995**2}
    call["tensors"]["parameters"] = {name: torch.full((2,), value).double() for name, value in poles.items()}
    whole = ranks.cell(None, 0, **{**call, "pieces": None})
    in_fp32 = {"spec": {**call["spec"], "precision": "fp32"}, "tensors": in_dtype(call["tensors"], torch.float32)}
    parts = group.run(3, "cell", **in_fp32, pieces=call["pieces"], way="summary")
    for name in ("y", "dx"):
        error = torch.cat([part[name] for part in parts], 1) - whole[name]
        assert error.abs().max() <= 1e-4 * whole[name].abs().max(), name


IN_PLACE = tuple(
    ({"model": "selective", "hidden_size": 3, "state_size": 2, "precision": "fp64", **spec}, keep, steps, way)
    for spec, keep, steps, way in (
        ({}, None, (96, 90), "correct"),
        ({}, 0.9999, (96, 90, 100), "correct"),
        ({}, None, (20, 30, 10), "summary"),
        ({"direction": "reverse", "layout": "BDT"}, None, (90, 90, 100), "correct"),
        ({"model": {"name": "mixed", **CELLS["scalar and vector states"].file}}, None, (90, 100, 90), "correct"),
        ({"model": "min_gru", "state_size": None}, 0.9999, (90, 100, 90), "correct"),
        ({"model": "conv_min_gru", "state_size": None}, None, (90, 100, 90), "correct"),
        ({"model": STAGES, "state_size": None}, None, (90, 100, 90), "correct"),
        ({"model": STAGES_OF_VALUES}, None, (30, 40, 20), "summary"),
    )
)


@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize("all_states", [False, pytest.param(True, marks=pytest.mark.matrix_full)])
@pytest.mark.parametrize(
    ("spec", "keep", "steps", "way"),
    [pytest.param(*drawn, marks=pytest.mark.matrix_full if place else ()) for place, drawn in enumerate(IN_PLACE)],
    ids=str,
)
def test_kernels_write_pieces_into_arrays_that_are_there(
    group: ranks.Ranks, spec: dict[str, Any], keep: float | None, steps: tuple[int, ...], way: str, all_states: bool
) -> None:
    """As on a GPU: what does not count runs too, over sequences that have no steps then."""
    call = {**long_call(spec, keep, steps), "way": way, "all_states": all_states}
    check_call(group, call, "cell_in_place", repeats=2)


HEADS: tuple[dict[str, Any], ...] = (
    {"model": "lstm", "hidden_size": 4, "heads": 2, "precision": "fp64", "direction": "bidirectional", "input_size": 3},
    {"model": "gru", "hidden_size": 8, "heads": 4, "precision": "fp64", "layout": "TBD"},
    {"model": "rg_lru", "hidden_size": 6, "precision": "fp64", "direction": "bidirectional", "layout": "BDT"},
)
# Groups of S.* that ranks divide, that are fewer than they, and of which two are of several ranks.
HEADS_OF_VECTORS: tuple[tuple[int, dict[str, Any]], ...] = tuple(
    (size, {"state_size": 2, "precision": "fp64", **spec})
    for size, spec in (
        (2, {"model": "selective", "hidden_size": 4, "groups": 2, "direction": "bidirectional"}),
        (2, {"model": "selective", "hidden_size": 4, "input_size": 3}),
        (3, {"model": "gated_linear", "hidden_size": 12, "groups": 2, "layout": "TBD"}),
        (3, {"model": {"name": "delta", **CELLS["delta rule"].file}, "hidden_size": 6, "groups": 3, "layout": "BDT"}),
        (2, {"model": {"name": "mixed", **CELLS["scalar and vector states"].file}, "hidden_size": 6, "groups": 3}),
        (2, {"model": "s4d", "hidden_size": 4, "direction": "reverse"}),
    )
)


@settings(max_examples=examples(15))
@given(calls(st.sampled_from(HEADS)))
def test_heads_over_ranks_are_the_whole(group: ranks.Ranks, call: dict[str, Any]) -> None:
    check_heads(group, 2, call)


@settings(max_examples=examples(8))
@given(st.sampled_from(HEADS_OF_VECTORS).flatmap(lambda drawn: st.tuples(st.just(drawn[0]), calls(st.just(drawn[1])))))
def test_channels_of_n_values_over_ranks_are_the_whole(group: ranks.Ranks, drawn: tuple[int, dict[str, Any]]) -> None:
    check_heads(group, *drawn)


def check_heads(group: ranks.Ranks, size: int, call: Mapping[str, Any]) -> None:
    spec, options = call["spec"], {"tensors": call["tensors"], "all_states": call["all_states"]}
    whole = ranks.cell(None, 0, spec=spec, pieces=None, **options)
    parts = group.run(size, "cell", spec=spec, pieces=None, over_heads=True, repeats=2, **options)
    _check_heads(spec, whole, parts)
    # Where the gather would take longer, every rank computes all heads, and has the bits of one alone.
    parts = group.run(size, "cell_with_all_heads", spec=spec, pieces=None, **options)
    assert all(torch.equal(part["y"], whole["y"]) for part in parts)
    _check_heads(spec, whole, parts)


def _check_heads(spec: Mapping[str, Any], whole: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    interface = ranks.kernel_of(spec).interface
    for name, expected in whole.items():
        own = [part[name] for part in parts]
        if name.startswith("d") and name[1:] not in ("x", *interface.states, *interface.shared, *interface.inputs):
            own = [sum(own)]  # of weights each rank has its own share
        for values in own:
            assert_like(values, expected, expected, 1e-12, name, scale=1.0)


@pytest.mark.parametrize(
    "spec",
    [
        {"model": "lstm", "hidden_size": 8, "heads": 4, "precision": "fp64"},
        {"model": "gru", "hidden_size": 8, "heads": 2, "precision": "fp64", "layout": "TBD"},
        {"model": "lstm", "hidden_size": 8, "heads": 2, "precision": "fp64", "input_size": 3},
        {"model": "min_gru", "hidden_size": 6, "precision": "fp64", "layout": "BDT"},
        {"model": GAPS, "hidden_size": 8, "heads": 2, "precision": "fp64", "layout": "TBD", "input_size": 3},
        {"model": HIGHWAY, "hidden_size": 6, "precision": "fp64", "layout": "BDT"},
        {"model": "selective", "hidden_size": 4, "state_size": 3, "groups": 2, "precision": "fp64", "layout": "BDT"},
        {"model": "selective", "hidden_size": 4, "state_size": 3, "precision": "fp64"},
    ],
    ids=str,
)
def test_heads_of_which_nothing_is_gathered_are_those_of_the_whole(group: ranks.Ranks, spec: dict[str, Any]) -> None:
    interface, generator = ranks.kernel_of(spec).interface, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors: dict[str, Any] = {"x": normal(*interface.shape(interface.x_axes, 2, 5))}
    tensors["state"] = {name: normal(*interface.shape_of_state(name, 2)) for name in interface.states}
    tensors["parameters"] = {name: normal(*interface.shape_of_parameter(name)) for name in interface.parameters}
    tensors["shared"] = {name: normal(*interface.shape(interface.shared_axes, 2, 5)) for name in interface.shared}
    tensors["inputs"] = {name: normal(*interface.shape(interface.channel_axes, 2, 5)) for name in interface.inputs}
    if interface.recurrent_gates:
        tensors["R"] = normal(*interface.R_shape)
    if interface.input_size:
        tensors["weight"] = normal(interface.weight_rows, interface.input_size)
    if not interface.has_vectors:
        tensors |= {name: torch.rand(2, 5, generator=generator) < 0.4 for name in ("resets", "holds")}
        tensors["reset_states"] = {name: normal(*interface.state_shape(2)) for name in interface.states}
    tensors["weights of y"] = normal(*interface.y_shape(2, 5))
    tensors["weights of state"] = {name: normal(3, *interface.shape_of_state(name, 2)) for name in interface.states}
    whole = ranks.cell(None, 0, spec=spec, tensors=tensors, pieces=None)
    parts = group.run(2, "own_heads", spec=spec, tensors=tensors)
    has_own_groups = interface.groups % 2 == 0
    y_axis, x_axis = spec.get("layout", "BTD").index("D"), interface.x_axes.find("h")
    for name, expected in whole.items():
        values = [part[name] for part in parts]
        if name == "y" or (name == "dx" and not interface.input_size):
            together = torch.cat(values, y_axis if name == "y" else x_axis)
        elif name.startswith(("final", "dreset")) or name[1:] in interface.states:
            together = torch.cat(values, -2 if interface.has_vectors else -1)
        elif name[1:] in interface.shared and has_own_groups:
            together = torch.cat(values, interface.shared_axes.index("k"))
        elif name[1:] in interface.inputs:
            together = torch.cat(values, interface.channel_axes.index("h"))
        else:
            is_whole = name == "dx" or name[1:] in interface.shared
            together = values[0] if is_whole else sum(values)  # of weights each rank has its own share
        assert_like(together, expected, expected, 1e-12, name, scale=1.0)
    assert all("float32" in part["refusal"] for part in parts)


def test_heads_that_no_ranks_divide_are_refused(group: ranks.Ranks) -> None:
    x = _x(2, 3, 3)
    messages = group.run(3, "refusal", calls=[{"x": x, "model": "lstm", "over_heads": True}] * 3)
    assert all("head_group has 3 ranks, but the kernel has 1 heads" in message for message in messages)


@pytest.mark.matrix_full
@pytest.mark.parametrize(
    "spec",
    [
        {"model": "gru", "hidden_size": 4, "heads": 2, "precision": "fp64"},
        {"model": "selective", "hidden_size": 4, "state_size": 2, "precision": "fp64"},
    ],
    ids=str,
)
def test_time_and_heads_are_axes_of_one_mesh(tmp_path: Path, spec: dict[str, Any]) -> None:
    tensors = long_call(spec, steps=(3, 2))["tensors"]
    whole = ranks.cell(None, 0, spec=spec, tensors=tensors, pieces=None)
    with ranks.started(tmp_path, 4) as processes:
        parts = processes.run(4, "in_mesh", spec=spec, tensors=tensors, pieces=[3, 2])
    for heads in range(2):
        time = [parts[heads], parts[2 + heads]]
        for name in ("y", "dx"):
            assert_like(torch.cat([part[name] for part in time], 1), whole[name], whole[name], 1e-12, name)
        assert_like(time[0]["dh"], whole["dh"], whole["dh"], 1e-12, "dh")
        assert all(torch.equal(part["final h"], parts[0]["final h"]) for part in time)
    assert_like(parts[0]["final h"], whole["final h"], whole["final h"], 1e-12, "final h")
    for name in ("dR", "da", "dd"):
        if name in whole:
            assert_like(sum(part[name] for part in parts), whole[name], whole[name], 1e-12, name)
    assert all("float32" in part["refusal"] for part in parts)


@pytest.mark.parametrize(
    ("model", "batch", "time", "chosen"),
    [
        ("min_gru", 1, 2**20, "correct"),  # one sequence has no groups
        ("selective", 1, 2**18, "correct"),
        ("ind_rnn", 8, 2**19, "pipeline of"),  # no scan
        ("gru", 256, 1024, "pipeline of"),
    ],
)
def test_the_cost_formula_chooses_and_explain_says_which(
    group: ranks.Ranks, model: str, batch: int, time: int, chosen: str
) -> None:
    lines = group.run(2, "explained", batch=batch, time=time, model=model)
    assert lines[0] == lines[1] and lines[0].startswith(f"time over 2 ranks: {chosen}")
    assert ("summary" in lines[0]) == (model in ("min_gru", "selective"))


@pytest.mark.parametrize(("time", "is_slower"), [(1 << 10, True), (1 << 24, False)])
def test_explain_says_where_one_gpu_is_expected_to_be_faster(group: ranks.Ranks, time: int, is_slower: bool) -> None:
    """Ranks that hold a piece each have no other way, however short the pieces are."""
    for line in group.run(2, "explained", batch=1, time=time, model="min_gru"):
        assert line.endswith("one GPU with all of time is expected to be faster") == is_slower, line


def test_a_selective_scan_over_ranks_is_that_of_one(group: ranks.Ranks) -> None:
    x = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = ranks.selective(None, 0, x=x, pieces=None)
    parts = group.run(3, "selective", x=x, pieces=[4, 2, 3])
    for name, axis in (("y", 1), ("dx", 1)):
        assert_like(torch.cat([part[name] for part in parts], axis), whole[name], whole[name], 1e-12, name)
    for name in whole.keys() - {"y", "dx"}:
        for part in parts:
            assert_like(part[name], whole[name], whole[name], 1e-12, name, scale=1.0)


@pytest.mark.parametrize(
    ("spec", "batch", "expected"),
    [
        ({"model": "min_gru", "hidden_size": 256}, 8, ("sequences", 8)),
        ({"model": "min_gru", "hidden_size": 256}, 1, ("channels", 8)),
        ({"model": "min_gru", "hidden_size": 96}, 1, ("channels", 3)),  # of 32, fewer leave a warp half empty
        ({"model": "min_gru", "hidden_size": 48}, 2, ("sequences", 2)),
        ({"model": "lstm", "hidden_size": 256, "heads": 4}, 1, ("sequences", 1)),  # R mixes channels
        ({"model": "selective", "hidden_size": 256, "state_size": 4}, 1, ("sequences", 1)),  # S.* are those of many channels
    ],
)
def test_a_pipeline_cuts_sequences_or_where_these_are_few_channels(
    spec: dict[str, Any], batch: int, expected: tuple[str, int]
) -> None:
    along, counts = cuts_of(ranks.kernel_of(spec), batch, False, None)
    assert (along, max(counts)) == expected
    assert all(spec["hidden_size"] % count == 0 for count in counts) or along == "sequences"


def test_a_pipeline_cuts_inputs_along_their_channels(group: ranks.Ranks) -> None:
    """A cell that holds its states has an input X.*, whose first axis is that of sequences."""
    generator = torch.Generator().manual_seed(0)
    x, y, final = (torch.randn(shape, generator=generator).double() for shape in ((1, 6, 3, 2), (1, 6, 2), (2, 1, 2)))
    tensors = {"x": x, "holds": torch.rand(1, 6, generator=generator) < 0.4, "parameters": {}, "weights of y": y}
    spec = {"model": "min_lstm", "hidden_size": 2, "precision": "fp64"}
    options = {"way": "pipeline", "micro_batches": 2, "all_states": False}
    check_call(group, {"spec": spec, "tensors": {**tensors, "weights of state": {"h": final}}, "pieces": [2, 4], **options})


def test_of_groups_that_are_asked_for_only_their_number_is_weighed() -> None:
    """All ranks tell each other what each number of groups takes, in a message that has an end."""
    scan, wide = (ranks.kernel_of({"model": "min_gru", "hidden_size": size}) for size in (8, 512))
    assert cuts_of(scan, 300, False, 1000) == ("sequences", (1, 300))
    assert cuts_of(wide, 1, False, 500) == ("channels", (1, 256))
    assert cuts_of(scan, 300, False, 1) == ("sequences", (1,))


@given(st.integers(1, 64), st.integers(1, 300), st.floats(1e-9, 1.0), st.floats(0, 1e9))
def test_the_cheapest_way_comes_first(size: int, batch: int, seconds: float, state_bytes: float) -> None:
    allowed = {"pipeline": 1.0, **cost.gathering_passes(size, False, 1.0)}
    of_groups = {count: seconds * (1 + 1 / count) for count in range(1, batch + 1)}
    ways = cost.choices(size, of_groups, state_bytes, allowed, None, None)
    assert [choice.way for choice in ways] != [] and ways == sorted(ways, key=lambda choice: choice.passes)
    for choice in ways:
        settled = cost.choices(size, of_groups, state_bytes, allowed, choice.way, choice.micro_batches)
        assert settled == [choice] and 1 <= choice.micro_batches <= batch


def test_heads_that_need_each_other_are_on_one_rank(group: ranks.Ranks) -> None:
    cell = {"name": "mixed", "equations": "h[t] = tanh(W.h + R.h - mean(R.h, all))"}
    calls = [{"x": _x(2, 3, 3), "model": cell, "over_heads": True}] * 3
    messages = group.run(3, "refusal", calls=calls)
    assert all("head_group has 3 ranks, but mixed needs means over all heads within a step" in message for message in messages)
