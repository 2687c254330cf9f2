"""Filters beside scipy's over drawn coefficients, their gradients beside finite differences, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.drawn_filters import SECTIONS, check_against_scipy, check_sections_against_scipy, filters, tensors
from support.examples import examples
from support.host_code import BY, RUNNERS, natively
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
signal = pytest.importorskip("scipy.signal")


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(20), deadline=None)
@given(drawn=filters())
def test_a_filter_is_scipys(runner: str, drawn: dict[str, Any]) -> None:
    with BY[runner]():
        check_against_scipy(drawn)


@pytest.mark.matrix_full
@settings(max_examples=500, deadline=None)
@given(drawn=filters())
def test_five_hundred_filters_are_scipys(drawn: dict[str, Any]) -> None:
    with natively():
        check_against_scipy(drawn)


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(20), deadline=None)
@given(drawn=SECTIONS)
def test_sections_are_scipys(runner: str, drawn: tuple[int, str, bool, int]) -> None:
    with BY[runner]():
        check_sections_against_scipy(*drawn)


@pytest.mark.matrix_full
@settings(max_examples=500, deadline=None)
@given(drawn=SECTIONS)
def test_five_hundred_filters_of_sections_are_scipys(drawn: tuple[int, str, bool, int]) -> None:
    with natively():
        check_sections_against_scipy(*drawn)


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(8), deadline=None)
@given(drawn=filters().filter(lambda drawn: drawn["x"].size))
def test_gradients_are_finite_differences(runner: str, drawn: dict[str, Any]) -> None:
    drawn = {name: one[..., :9] if name == "x" else one for name, one in drawn.items()}
    leaves = {name: one.requires_grad_() for name, one in tensors(drawn).items() if one is not None and one.numel()}

    def call(*values: Any) -> Any:
        return wing.lfilter(**dict(zip(leaves, values, strict=True)))

    with BY[runner]():
        assert torch.autograd.gradcheck(call, tuple(leaves.values()), rtol=1e-4, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("shape", [(0, 3, 9), (2, 3, 0), (0, 0)])
def test_signals_without_elements_have_gradients(shape: tuple[int, ...]) -> None:
    leaves = [torch.ones(size, requires_grad=True) for size in (shape, (3,), (2,), (*shape[:-1], 2))]
    y, zf = wing.lfilter(*leaves)
    assert y.shape == shape and torch.equal(zf, leaves[3]) is (shape[-1] == 0 or not zf.numel())
    gradients = torch.autograd.grad(y.sum() + zf.sum(), leaves)
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_signals_of_few_bits_are_rounded_once(dtype: Any) -> None:
    # A double pole of 0.999, whose states float32 loses: 1e-3 of the largest value after as many steps.
    x = torch.randn(2, 1 << 15, generator=torch.Generator().manual_seed(0)).to(dtype)
    a, b = torch.tensor([1, -2 * 0.999, 0.999**2]), torch.tensor([1e-6, 0, 0])
    with natively():
        y, zf = wing.lfilter(x, a, b, torch.zeros(2, 2))
    expected, last = signal.lfilter(b.double(), a.double(), x.double(), zi=np.zeros((2, 2)))
    largest = np.abs(expected).max()
    assert y.dtype is dtype and zf.dtype is torch.float32
    assert np.abs(y.double().numpy() - expected).max() <= torch.finfo(dtype).eps / 2 * largest + torch.finfo(dtype).tiny
    assert np.abs(zf.double().numpy() - last).max() <= 1e-7 * np.abs(last).max()


def test_a_signal_cut_anywhere_is_filtered_as_a_whole() -> None:
    x, sos = torch.randn(3, 1000, dtype=torch.float64), torch.from_numpy(signal.butter(6, 0.1, output="sos"))
    whole = wing.sosfilt(sos, x)
    state, parts = torch.zeros(3, 3, 2, dtype=torch.float64), []
    for part in x.split((1, 300, 2, 697), dim=-1):
        y, state = wing.sosfilt(sos, part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole, rtol=0, atol=1e-12)


def test_the_compiler_of_torch_takes_filters() -> None:
    x = torch.randn(2, 3, 50, dtype=torch.float64, requires_grad=True)
    a = torch.tensor([[1.0, -1.2, 0.5]], dtype=torch.float64).repeat(3, 1).requires_grad_()
    b = torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64, requires_grad=True)
    zi = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def loss(*leaves: Any) -> Any:
        y, zf = wing.lfilter(*leaves)
        return (y.sin() * y).sum() + zf.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, a, b, zi), (x, a, b, zi))
    torch.testing.assert_close(found, torch.autograd.grad(loss(x, a, b, zi), (x, a, b, zi)))
    assert wing.lfilter(x.to("meta"), a.to("meta"), b.to("meta")).shape == x.shape


X, A, B = np.zeros((2, 3, 9)), np.array([1.0, -0.5]), np.array([1.0, 0.5, 0.25])
BAD = [
    ({"a": np.array([0.0, 1.0])}, "a[0] is 0, by which the coefficients of a filter are divided"),
    ({"zi": np.zeros((2, 3, 3))}, "zi has shape [2, 3, 3]; [2, 3, 2] is expected"),
    ({"zi": np.zeros((2, 2))}, "zi has shape [2, 2]; [2, 3, 2] is expected"),
    ({"a": np.zeros((2, 2, 2))}, "a has shape [2, 2, 2]; [n + 1] is expected, or [C, n + 1] for x [..., C, T]"),
    ({"b": np.zeros(0)}, "b has shape [0]; [n + 1] is expected"),
    ({"b": np.ones((2, 3))}, "b has shape [2, 3], coefficients of 2 channels, but x has shape [2, 3, 9]"),
    ({"x": np.zeros(())}, "x has no axes; [..., T] is expected, with time as its last axis"),
    ({"x": np.zeros((2, 3), int)}, "x has dtype torch.int64; float64, float32, float16 or bfloat16 is expected"),
]


@pytest.mark.parametrize(("changed", "words"), BAD)
def test_bad_input_is_one_sentence(changed: dict[str, Any], words: str) -> None:
    arguments = tensors({"x": X, "a": A, "b": B, "zi": None, **changed})
    with pytest.raises(BadInput) as caught:
        wing.lfilter(**arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_sections_of_a_wrong_shape_are_refused() -> None:
    x = torch.zeros(2, 9)
    for sos, zi, words in (
        (torch.zeros(5), None, "sos has shape [5]; [sections, 6] is expected"),
        (torch.zeros(2, 5), None, "sos has shape [2, 5]; [sections, 6] is expected"),
        (torch.ones(2, 6), torch.zeros(2, 2), "zi has shape [2, 2]; [2, 2, 2] is expected"),
        (torch.zeros(2, 6), None, "a[0] is 0"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(words)}"):
            wing.sosfilt(sos, x, zi)
