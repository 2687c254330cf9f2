"""torchaudio's lfilter beside its definition, the difference equation, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
torchaudio = needed("minrnn_gen.compat.torchaudio")


def definition(waveform: Any, a: Any, b: Any, clamp: bool) -> Any:
    """Return the filtered waveform [..., T] by coefficients of lower delays first."""
    y: list[Any] = []
    for t in range(waveform.shape[-1]):
        total = sum(b[k] * waveform[..., t - k] for k in range(min(len(b), t + 1)))
        total = total - sum(a[k] * y[t - k] for k in range(1, min(len(a), t + 1)))
        y.append(total / a[0])
    filtered = torch.stack(y, -1)
    return filtered.clamp(-1, 1) if clamp else filtered


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("batching", [None, True, False])
def test_lfilter(batching: bool | None, clamp: bool) -> None:
    torch.manual_seed(0)
    filters = 3
    waveform = torch.randn(2, filters, 20, dtype=torch.float64).requires_grad_()
    a = torch.tensor([[2.0, -1.0, 0.3]], dtype=torch.float64) * torch.linspace(0.5, 1.5, filters, dtype=torch.float64)[:, None]
    a, b = a.requires_grad_(), torch.randn(filters, 3, dtype=torch.float64).requires_grad_()
    if batching is None:
        found = torchaudio.lfilter(waveform, a[0], b[0], clamp)
        expected = definition(waveform, a[0], b[0], clamp)
    else:
        found = torchaudio.lfilter(waveform, a, b, clamp=clamp, batching=batching)
        rows = waveform.unbind(-2) if batching else [waveform] * filters
        expected = torch.stack([definition(row, *pair, clamp) for row, *pair in zip(rows, a, b, strict=True)], -2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    gradients = (torch.autograd.grad((one * weights).sum(), (waveform, a, b)) for one in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_bad_input_is_one_sentence() -> None:
    good = {"waveform": torch.zeros(2, 9), "a_coeffs": torch.ones(3), "b_coeffs": torch.ones(3)}
    for changed, words in (
        ({"b_coeffs": torch.ones(2)}, r"a_coeffs has shape \[3\] and b_coeffs \[2\]"),
        ({"clamp": 1}, "clamp is 1; True or False is expected"),
        ({"batching": None}, "batching is null"),
        ({"waveform": None}, "waveform is a NoneType; a torch tensor is expected"),
        ({"a_coeffs": torch.ones(4, 3), "b_coeffs": torch.ones(4, 3)}, "coefficients of 4 channels"),
    ):
        with pytest.raises(BadInput, match=words):
            torchaudio.lfilter(**{**good, **changed})
