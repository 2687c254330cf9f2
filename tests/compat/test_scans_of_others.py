"""The scans of accelerated_scan and flash-linear-attention beside loops over time, in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
accelerated = needed("minrnn_gen.compat.accelerated_scan")
fla = needed("minrnn_gen.compat.fla")

TOLERANCE = 1e-12


def drawn(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def loop(a: Any, b: Any, h: Any) -> tuple[Any, Any]:
    """Return h[t] = a[t] h[t-1] + b[t] at every step of the first axis, and after the last."""
    after = []
    for coefficient, value in zip(a, b, strict=True):
        h = coefficient * h + value
        after.append(h)
    return torch.stack(after) if after else torch.zeros_like(b), h


def assert_same(got: list[Any], expected: list[Any], inputs: list[Any]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
    weights = [torch.randn(one.shape, dtype=one.dtype) for one in expected]
    found, wanted = (
        torch.autograd.grad(sum((one * weight).sum() for one, weight in zip(each, weights, strict=True)), inputs)
        for each in (got, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("time", [1, 7, 64])  # theirs asks for powers of two
def test_accelerated_scan(time: int) -> None:
    torch.manual_seed(0)
    gates, tokens = drawn(2, 3, time), drawn(2, 3, time)
    y, _ = loop(gates.movedim(2, 0), tokens.movedim(2, 0), torch.zeros(2, 3, dtype=torch.float64))
    assert_same([accelerated.scan(gates, tokens)], [y.movedim(0, 2)], [gates, tokens])


@pytest.mark.parametrize("operator", [fla.chunk_hgrn, fla.fused_recurrent_hgrn])
def test_hgrn(operator: Any) -> None:
    torch.manual_seed(0)
    x, g, h0 = drawn(2, 9, 3), drawn(2, 9, 3), drawn(2, 3)
    o, final = loop(g.exp().movedim(1, 0), x.movedim(1, 0), h0)
    assert_same(list(operator(x, g, h0, True)), [o.movedim(0, 1), final], [x, g, h0])
    assert operator(x, g)[1] is None
    assert torch.equal(operator(x, g)[0], operator(x, g, torch.zeros_like(h0))[0])


def test_hgrn_of_joined_sequences() -> None:
    torch.manual_seed(0)
    ends = [0, 2, 2, 7, 9]
    x, g, h0 = drawn(1, 9, 3), drawn(1, 9, 3), drawn(4, 3)
    parts = [loop(g[0, a:b].exp(), x[0, a:b], h0[s]) for s, (a, b) in enumerate(pairwise(ends))]
    expected = [torch.cat([o for o, _ in parts])[None], torch.stack([final for _, final in parts])]
    got = fla.fused_recurrent_hgrn(x, g, h0, output_final_state=True, cu_seqlens=torch.tensor(ends))
    assert_same(list(got), expected, [x, g, h0])


@pytest.mark.parametrize("ends", [None, [0, 4, 9]])
def test_hgrn_with_gates_of_another_dtype(ends: list[int] | None) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(1, 9, 3).bfloat16(), -torch.rand(1, 9, 3)
    joined = None if ends is None else torch.tensor(ends)
    o, final = fla.chunk_hgrn(x, g, None, True, joined)
    exact, last = fla.chunk_hgrn(x.double(), g.double(), None, True, joined)
    assert o.dtype is torch.bfloat16 and final.dtype is torch.float32
    torch.testing.assert_close(o.double(), exact, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(final.double(), last, rtol=1e-6, atol=1e-6)


def test_they_are_traced() -> None:
    x, g = torch.randn(2, 5, 3), -torch.rand(2, 5, 3)
    for function, given in ((accelerated.scan, (g, x)), (fla.chunk_hgrn, (x, g))):
        got = torch.compile(function, fullgraph=True, backend="aot_eager")(*given)
        expected = function(*given)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_what_does_not_fit_is_said() -> None:
    x, g = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    for call, message in (
        (lambda: accelerated.scan(x[0], g[0]), r"gates has shape \[5, 3\]; 3 axes"),
        (lambda: accelerated.scan(x, g[:1]), r"tokens has shape \[1, 5, 3\]; that of gates, \[2, 5, 3\]"),
        (lambda: fla.chunk_hgrn(x, g[0]), r"g has shape \[5, 3\]; \[2, 5, 3\]"),
        (lambda: fla.chunk_hgrn(x, g[:, :4]), r"g has shape \[2, 4, 3\]; \[2, 5, 3\]"),
        (lambda: fla.chunk_hgrn(x.int(), g.int()), "x has dtype torch.int32"),
    ):
        with pytest.raises(BadInput, match=message):
            call()
