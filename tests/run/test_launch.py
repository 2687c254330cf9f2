"""A launch's arguments, from the arrays of a call."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fake_plan import plan_with

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import DTYPE_BYTES, Array, contiguous_strides
from minrnn_gen.call.interface import X_AXES, Y_AXES
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, alignment_of
from minrnn_gen.precision import precision_of
from minrnn_gen.run.dense.launch import NamedArguments, persistent_launches
from minrnn_gen.run.launch import alignment_of_call
from minrnn_gen.run.scan.launch import backward_launch_of, forward_launch_of

sizes = st.integers(1, 20)


def described(shape: tuple[int, ...], dtype: str, pointer: int, strides: tuple[int, ...] | None = None) -> Array:
    return Array("x", "numpy", None, pointer, shape, strides or contiguous_strides(shape), dtype, 0)


@given(
    shape=st.tuples(sizes, sizes, sizes, sizes),
    gap=st.tuples(*[st.integers(0, 20)] * 3),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    offset_elements=st.tuples(st.integers(0, 16), st.integers(0, 16)),
)
def test_every_copy_stays_within_its_run(
    shape: tuple[int, ...], gap: tuple[int, ...], dtype: str, offset_elements: tuple[int, int]
) -> None:
    """Copies of the alignment tile each run exactly: it starts and ends at a multiple, so nothing beyond it is touched."""
    bytes_each = DTYPE_BYTES[dtype]
    padded = contiguous_strides(tuple(size + more for size, more in zip(shape, (0, *gap), strict=True)))
    x = described(shape, dtype, 4096 + offset_elements[0] * bytes_each, padded)
    y = described((shape[0], shape[1], shape[3]), dtype, 8192 + offset_elements[1] * bytes_each)
    alignment = alignment_of_call(x, y)
    assert bytes_each <= alignment <= WIDEST_COPY_BYTES and alignment & (alignment - 1) == 0
    for array in (x, y):
        assert array.shape[-1] * bytes_each % alignment == 0
        for outer in range(math.prod(array.shape[:-1])):
            start = array.pointer
            for size, stride in zip(reversed(array.shape[:-1]), reversed(array.strides[:-1]), strict=True):
                outer, index = divmod(outer, size)
                start += index * stride * bytes_each
            assert start % alignment == 0


@settings(max_examples=examples(50))
@given(hidden_size=st.integers(1, 100), batch=sizes, time=sizes, precision_name=st.sampled_from(["fp64", "fp32", "bf16"]))
def test_contiguous_arrays_are_in_the_hinted_specialization(
    hidden_size: int, batch: int, time: int, precision_name: str
) -> None:
    """Such a call needs no compile after its kernels were compiled ahead."""
    precision = precision_of(precision_name)
    target = Target(load_profile("h200"), b"", "spec")
    for layout in ("BTD", "BDT"):
        outer, last = ((batch, time), (hidden_size,)) if layout == "BTD" else ((batch,), (hidden_size, time))
        gates = (2,)
        x = described((*outer, *gates, *last), precision.storage_dtype, 0)
        y = described((*outer, *last), precision.storage_dtype, 0)
        spec = load_spec(
            {"model": "min_gru"}, hidden_size=hidden_size, precision=precision_name, layout=layout, batch=batch, time=time
        )
        hinted = Builder(spec, target, Store(Path())).hinted_specialization
        assert alignment_of_call(x, y) == hinted.alignment_bytes


@pytest.mark.parametrize(
    ("offsets", "alignment"), [((), 16), ((0,), 16), ((32,), 16), ((24,), 8), ((12, 16), 4), ((-6,), 2), ((7,), 1)]
)
def test_alignment_is_the_largest_power_of_two(offsets: tuple[int, ...], alignment: int) -> None:
    assert alignment_of(*offsets) == alignment


def vector(name: str, pointer: int, dtype: str, *shape: int) -> Array:
    return replace(described(shape, dtype, pointer), name=name)


@pytest.mark.parametrize("layout", ["BTD", "TBD", "BDT"])
@pytest.mark.parametrize("sequences", ["none", "resets", "lengths", "packed"])
@pytest.mark.parametrize("kept", [False, True])
def test_arguments_have_the_names_of_the_signatures(layout: str, sequences: str, kept: bool) -> None:
    """A cell of gates z and h, one state and one parameter; every array has a pointer that tells which it is."""
    if sequences == "packed" and layout != "BTD":
        return
    batch, time, hidden = 1, 5, 4
    count = 3 if sequences == "packed" else batch
    sizes = {"b": batch, "t": time, "g": 2, "h": hidden}
    x_axes, y_axes = X_AXES[layout], Y_AXES[layout]
    x, dx = (vector("x", pointer, "bfloat16", *(sizes[axis] for axis in x_axes)) for pointer in (1000, 1100))
    y, dy, state = (vector("y", pointer, "bfloat16", *(sizes[axis] for axis in y_axes)) for pointer in (2000, 2100, 2200))
    initial, final = (vector("state", pointer, "float32", count, hidden) for pointer in (3000, 3100))
    sums = vector("sums", 3200, "float32", 1, 3, count, hidden)
    given = Sequences(
        count,
        resets=vector("resets", 4000, "bool", batch, time) if sequences == "resets" else None,
        lengths=vector("lengths", 5000, "int64", batch) if sequences == "lengths" else None,
        cu_seqlens=vector("cu_seqlens", 6000, "int64", count + 1) if sequences == "packed" else None,
    )
    bias, decay = vector("bias", 7000, "bfloat16", 2, hidden), vector("decay", 7100, "float32", hidden)
    call = Call(x, x_axes, batch, time, None, bias, (decay,), (initial,), given)
    names = ArrayNames(("h",), ("decay",), ("h",), "h")

    def plan_of(entry: str) -> Any:
        return plan_with(
            entry=entry, layout=layout, hidden_size=hidden, channels_per_block=4, threads=32, variables={"cluster_blocks": 2},
            strategy="channels", group_exchange_bytes=0,
            specialization=Specialization(16, resets=sequences == "resets", states_out="storage" if kept else "none"),
        )  # fmt: skip

    stride = dict(zip(x_axes, x.strides, strict=True)) | {f"y{axis}": one for axis, one in zip(y_axes, y.strides, strict=True)}
    if sequences == "packed":
        stride["b"] = stride["yb"] = 0
    if layout == "BDT":
        x_strides = {"batch": stride["b"], "gate": stride["g"], "channel": stride["h"]}
        y_strides = {"y_batch_stride": stride["yb"], "y_channel_stride": stride["yh"]}
    else:
        x_strides = {"batch": stride["b"], "time": stride["t"], "gate": stride["g"]}
        y_strides = {"y_batch_stride": stride["yb"], "y_time_stride": stride["yt"]}
    begins, ends = {"lengths": (0, 5000), "packed": (6000, 6008)}.get(sequences, (0, 0))
    inputs: dict[str, Any] = {
        "x": 1000,
        **{f"x_{axis}_stride": count for axis, count in x_strides.items()},
        "bias": 7000,
        "parameter_decay": 7100,
        "float32_vectors": 0b10,
        "initial_h": 3000,
        **({"resets": 4000, "resets_batch_stride": time, "resets_time_stride": 1} if sequences == "resets" else {}),
        **({} if layout == "BDT" else {"begins": begins}),
        "ends": ends,
    }
    plan = plan_of("scan_forward")
    forward = forward_launch_of(plan, names, call, Outputs(y, (state,) if kept else (), (final,)))
    assert dict(zip(signature(plan, names).names, forward.arguments, strict=True)) == {
        **inputs, "y": 2000, **y_strides, **({"kept_h": 2200} if kept else {}), "final_h": 3100, "batch": count, "time": time,
    }  # fmt: skip
    assert forward.blocks == 2 * count
    plan = plan_of("scan_backward")
    incoming, gradients = IncomingGradient(dy, (None,)), Gradients(dx, (final,), sums)
    backward = backward_launch_of(plan, names, call, (state,), incoming, gradients)
    assert dict(zip(signature(plan, names).names, backward.arguments, strict=True)) == {
        **inputs, "saved_h": 2200, "dy": 2100, **y_strides, "dfinal_h": 0, "dx": 1100,
        **{f"dx_{axis}_stride": count for axis, count in x_strides.items()},
        "dinitial_h": 3100, "sums": 3200, "batch": count, "time": time,
    }  # fmt: skip
    assert backward.blocks == 2 * count


@given(
    heads=st.integers(1, 4),
    batch=st.integers(1, 300),
    at_once=st.integers(1, 9),
    spare=st.integers(0, 20),
    planned_spare=st.integers(0, 7),
)
def test_a_grid_is_launched_as_large_as_the_gpu_holds_at_once(
    heads: int, batch: int, at_once: int, spare: int, planned_spare: int
) -> None:
    """Every group once, in launches of whole groups; each has the numbers of its first group behind the arguments."""
    grid_blocks, batch_tile = 8, 4
    plan: Any = plan_with(
        entry="persistent_forward",
        layout="BTD",
        heads=heads,
        specialization=Specialization(16),
        variables={"cluster_blocks": 1},
        grid_blocks=grid_blocks,
        group_sequences=batch_tile,
        strategy="persistent",
        group_exchange_bytes=1024,
        resident_blocks=at_once * grid_blocks + planned_spare,
    )
    call: Any = SimpleNamespace(batch=batch, time=5)
    names = ArrayNames(("h",), ())
    values = {name: number for number, name in enumerate(signature(plan, names).names[:-2])}
    arguments = NamedArguments(names, values)
    launches = persistent_launches(plan, call, arguments, None, at_once * grid_blocks + spare)
    groups = []
    for launch in launches:
        *before, workspace, first = launch.arguments
        assert before == [*values.values()] and workspace == 0 and launch.blocks % grid_blocks == 0
        assert launch.blocks <= at_once * grid_blocks
        groups += range(first, first + launch.blocks // grid_blocks)
    assert groups == list(range(heads * -(-batch // batch_tile)))


def test_a_gpu_that_does_not_hold_a_grid_is_said() -> None:
    plan: Any = plan_with(heads=1, grid_blocks=64, group_sequences=4, group_exchange_bytes=1024, resident_blocks=132)
    call: Any = SimpleNamespace(batch=1, time=5)
    with pytest.raises(BadInput, match="needs 64 blocks at once, but the GPU here holds 63"):
        list(persistent_launches(plan, call, NamedArguments(ArrayNames((), ()), {}), None, 63))
