"""Resets of layers: of the shape of the input, as bool or as numbers 0 and 1; where there are none, one sentence says so."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from support.everyday import in_turn
from support.needed import needed
from support.newer_torch import needs_torch
from support.uncompiled_kernels import host_kernel

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 4, 4, 3, 5  # as many steps as sequences: either order would fit
NUMBERS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def layers(**options: Any) -> tuple[Any, Any]:
    """Return a layer in both layouts, with the same weights."""
    first = wing.GRU(INPUTS, HIDDEN, 2, **options)
    other = wing.GRU(INPUTS, HIDDEN, 2, batch_first=False, **options)
    other.load_state_dict(first.state_dict())
    return first, other


def test_they_lie_as_the_input_does() -> None:
    torch.manual_seed(0)
    x, resets = torch.randn(BATCH, TIME, INPUTS), torch.rand(BATCH, TIME) < 0.4
    for options in ({}, {"bidirectional": True}):
        batch_first, time_first = layers(**options)
        expected, last = batch_first(x, resets=resets)
        found, last_too = time_first(x.transpose(0, 1), resets=resets.t())
        assert torch.equal(found.transpose(0, 1), expected) and torch.equal(last_too, last)
        for row in range(BATCH):
            for layer in (batch_first, time_first):
                alone, _ = layer(x[row], resets=resets[row])
                torch.testing.assert_close(alone, expected[row])
    layer, _ = layers()
    third = torch.zeros(BATCH, TIME, dtype=torch.bool)
    third[:, 2] = True
    torch.testing.assert_close(layer(x, resets=third)[0], torch.cat([layer(x[:, :2])[0], layer(x[:, 2:])[0]], 1))


@pytest.mark.parametrize("batch_first", [True, False])
def test_other_shapes_are_refused_in_the_layers_order(batch_first: bool) -> None:
    layer = wing.MinGRU(INPUTS, HIDDEN, batch_first=batch_first)
    x = torch.zeros(2, 6, INPUTS) if batch_first else torch.zeros(6, 2, INPUTS)
    wanted = list(x.shape[:2])
    with pytest.raises(
        BadInput, match=rf"resets has shape \[{wanted[1]}, {wanted[0]}\]; \[{wanted[0]}, {wanted[1]}\] is expected"
    ):
        layer(x, resets=torch.zeros(*wanted[::-1], dtype=torch.bool))
    with pytest.raises(BadInput, match=r"resets has shape \[2\]; \[6\] is expected"):
        layer(torch.zeros(6, INPUTS), resets=torch.zeros(2, dtype=torch.bool))
    with pytest.raises(BadInput, match="resets is a list; a torch tensor is expected"):
        layer(x, resets=[True])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_0_and_1_are_resets(dtype: Any) -> None:
    torch.manual_seed(0)
    layer, x, resets = wing.GRU(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS), torch.rand(BATCH, TIME) < 0.4
    expected = layer(x, resets=resets)[0]
    assert torch.equal(layer(x, resets=resets.to(dtype))[0], expected)
    for wrong in (
        (0.5, 2.0, -1.0, float("nan"), 1e-7) if dtype.is_floating_point else (2, 127, *((-1,) if dtype.is_signed else ()))
    ):
        values = resets.to(dtype)
        values[1, 2] = wrong
        if values[1, 2] == 0:
            continue  # a number too small for the dtype
        with pytest.raises(BadInput, match=r"resets has dtype .* and values other than 0 and 1; bool is expected"):
            layer(x, resets=values)
    with pytest.raises(BadInput, match="resets has dtype complex64; bool is expected"):
        layer(x, resets=resets.to(torch.complex64))


def test_kernels_take_them_too() -> None:
    kernel, random = host_kernel("min_gru", HIDDEN, "fp32"), numpy.random.default_rng(0)
    x, resets = random.standard_normal((BATCH, TIME, 2, HIDDEN)).astype("f"), random.random((BATCH, TIME)) < 0.4
    expected, _ = kernel(x, resets=resets)
    for dtype in "fdebBhHiIqQ":
        assert numpy.array_equal(kernel(x, resets=resets.astype(dtype))[0], expected)
        assert numpy.array_equal(kernel.forward(x, resets=resets.astype(dtype))[0], expected)
    for dtype in NUMBERS:
        found, _ = wing.recurrence(kernel, torch.from_numpy(x), resets=torch.from_numpy(resets).to(dtype))
        assert numpy.array_equal(found, expected)
    with pytest.raises(BadInput, match="resets has dtype float32 and values other than 0 and 1"):
        kernel(x, resets=numpy.full((BATCH, TIME), 0.5, "f"))


@needs_torch("2.11", "its compiler lets the sentence of an error through")
def test_a_compiler_knows_no_values() -> None:
    layer, x = wing.GRU(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)
    marks = torch.zeros(BATCH, TIME)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, resets=marks.bool())[0], layer(x)[0])
    for numbers in (marks, marks.long()):
        with pytest.raises(Exception, match=r"give resets\.bool\(\)"):
            compiled(x, resets=numbers)


@pytest.mark.parametrize(("batch_first", "dynamic"), in_turn([True, False], [False, True]))
def test_a_compiler_refuses_other_shapes_in_the_layers_order(batch_first: bool, dynamic: bool) -> None:
    layer = wing.GRU(INPUTS, HIDDEN, batch_first=batch_first)
    x = torch.randn(5, 7, INPUTS)
    marks = torch.zeros(x.shape[:2], dtype=torch.bool)
    compiled = torch.compile(layer, backend="eager", dynamic=dynamic)
    for size in (2, 3, 5):  # the same program for other sizes
        assert torch.equal(compiled(x[:size], resets=marks[:size])[0], layer(x[:size])[0])
    with pytest.raises(BadInput, match=r"resets has shape \[7, 5\]; \[5, 7\] is expected"):
        compiled(x, resets=marks.t())


def test_an_exported_program_takes_resets_of_every_size() -> None:
    layer, x = wing.GRU(INPUTS, HIDDEN, batch_first=False), torch.randn(TIME, BATCH, INPUTS)
    marks = torch.rand(TIME, BATCH) < 0.4
    sizes = {0: torch.export.Dim("time"), 1: torch.export.Dim("batch")}
    program = torch.export.export(layer, (x,), {"resets": marks}, dynamic_shapes={"input": sizes, "resets": sizes})
    for piece in (slice(None), slice(0, 3)):
        found = program.module()(x[piece, :2], resets=marks[piece, :2])[0]
        assert torch.equal(found, layer(x[piece, :2], resets=marks[piece, :2])[0])


def test_where_there_are_none_one_sentence_says_so() -> None:
    x, marks = torch.zeros(TIME, BATCH, INPUTS), torch.zeros(TIME, BATCH, dtype=torch.bool)
    replaced = torch.nn.ModuleList([torch.nn.LSTM(INPUTS, HIDDEN), torch.nn.GRU(INPUTS, HIDDEN), torch.nn.RNN(INPUTS, HIDDEN)])
    wing.replace(replaced)
    for layer, name in zip(replaced, ("LSTM", "GRU", "Elman"), strict=True):
        said = rf"resets is no argument of a call of torch\.nn\..*; minrnn_gen\.torch\.{name} takes it"
        with pytest.raises(BadInput, match=said):
            layer(x, resets=marks)
        with pytest.raises(BadInput, match=r"length is no argument of a call .*; input and hx are expected"):
            layer(x, length=3)
        with pytest.raises(BadInput, match=r"resets was given to step, which has one step; .* set its state to zeros"):
            layer.step(x[0], resets=marks[0])
    with pytest.raises(BadInput, match="resets was given to step, which has one step"):
        wing.MinGRU(INPUTS, HIDDEN).step(x[0], resets=marks[0])
