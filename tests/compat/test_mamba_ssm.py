"""mamba_ssm's functions beside their equations step by step, with gradients by autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
mamba_ssm = pytest.importorskip("minrnn_gen.compat.mamba_ssm")

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def scanned(u: Any, delta: Any, A: Any, B: Any, C: Any, **more: Any) -> tuple[Any, Any]:
    """Return (out, last state) by a loop over time."""
    batch, dim, time = u.shape
    if (bias := more.get("delta_bias")) is not None:
        delta = delta + bias[:, None]
    if more.get("delta_softplus"):
        delta = torch.nn.functional.softplus(delta)

    def of_channels(given: Any) -> Any:
        """[batch, dim, N, T]."""
        if given.dim() == 2:
            return given[None, :, :, None].expand(batch, dim, given.shape[1], time)
        by_group = given[:, None] if given.dim() == 3 else given
        return by_group.repeat_interleave(dim // by_group.shape[1], 1)

    b, c = of_channels(B), of_channels(C)
    state = more.get("initial_state")
    h = torch.zeros(batch, dim, A.shape[1], dtype=u.dtype) if state is None else state
    outs = []
    for t in range(time):
        h = torch.exp(delta[:, :, t, None] * A) * h + (delta[:, :, t] * u[:, :, t])[..., None] * b[..., t]
        outs.append((c[..., t] * h).sum(-1))
    out = torch.stack(outs, 2) if time else u * 0
    if more.get("D") is not None:
        out = out + more["D"][:, None] * u
    return (out if more.get("z") is None else out * torch.nn.functional.silu(more["z"])), h


FORMS = st.sampled_from(["constant", "one group", "groups"])


@given(
    forms=st.tuples(FORMS, FORMS),
    options=st.sets(st.sampled_from(["D", "z", "delta_bias", "initial_state", "delta_softplus"])),
    sizes=st.tuples(st.integers(1, 3), st.sampled_from([2, 6]), st.integers(1, 5), st.integers(0, 5)),
    seed=st.integers(0, 1000),
)
def test_outputs_and_gradients_are_those_of_the_equations(
    forms: tuple[str, str], options: set[str], sizes: tuple[int, int, int, int], seed: int
) -> None:
    batch, dim, n, time = sizes
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    shapes = {"constant": (dim, n), "one group": (batch, n, time), "groups": (batch, 2, n, time)}
    leaves = {"u": tensor(batch, dim, time), "delta": tensor(batch, dim, time), "A": tensor(dim, n)}
    leaves |= {"B": tensor(*shapes[forms[0]]), "C": tensor(*shapes[forms[1]])}
    extra = {"D": (dim,), "z": (batch, dim, time), "delta_bias": (dim,), "initial_state": (batch, dim, n)}
    leaves |= {name: tensor(*extra[name]) for name in extra if name in options}
    softplus = {"delta_softplus": "delta_softplus" in options}
    out, last = mamba_ssm.selective_scan_fn(**leaves, **softplus, return_last_state=True)
    expected, expected_last = scanned(**leaves, **softplus)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    torch.testing.assert_close(last, expected_last, **TOLERANCE)
    d_out, d_last = (torch.randn(one.shape, dtype=torch.float64, generator=generator) for one in (out, last))
    found = torch.autograd.grad((out * d_out).sum() + (last * d_last).sum(), [*leaves.values()], allow_unused=True)
    wanted = torch.autograd.grad(
        (expected * d_out).sum() + (expected_last * d_last).sum(), [*leaves.values()], allow_unused=True
    )
    for name, one, other in zip(leaves, found, wanted, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(leaves[name]) if other is None else other, **TOLERANCE, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_are_theirs(dtype: Any) -> None:
    torch.manual_seed(0)
    u, delta, z = (torch.randn(2, 4, 6, dtype=dtype, requires_grad=True) for _ in range(3))
    A, D, bias = -torch.rand(4, 3), torch.ones(4), torch.zeros(4)
    B, C = (torch.randn(2, 3, 6, dtype=dtype) for _ in range(2))
    out, last = mamba_ssm.selective_scan_fn(u, delta, A, B, C, D, z, bias, True, return_last_state=True)
    assert out.dtype is dtype and last.dtype is torch.float32
    out.sum().backward()
    assert u.grad.dtype is dtype
    exact, _ = scanned(
        *(one.double() for one in (u, delta, A, B, C)),
        D=D.double(),
        z=z.double(),
        delta_bias=bias.double(),
        delta_softplus=True,
    )
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=2e-2)


def test_only_the_last_state_is_used() -> None:
    u, delta = (torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    A, B, C = (torch.randn(2, 4, dtype=torch.float64) for _ in range(3))
    _, last = mamba_ssm.selective_scan_fn(u, delta, A, B, C, return_last_state=True)
    expected = torch.autograd.grad(scanned(u, delta, A, B, C)[1].sum(), [u, delta])
    for one, other in zip(torch.autograd.grad(last.sum(), [u, delta]), expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize("groups", [0, 2])
def test_steps_are_the_scan(groups: int) -> None:
    torch.manual_seed(0)
    batch, dim, n, time = 2, 4, 3, 5
    u, delta, z = (torch.randn(batch, dim, time) for _ in range(3))
    A, D, bias = -torch.rand(dim, n), torch.randn(dim), torch.randn(dim)
    B, C = (torch.randn(batch, *((groups,) if groups else ()), n, time) for _ in range(2))
    out, last = mamba_ssm.selective_scan_fn(u, delta, A, B, C, D, z, bias, True, return_last_state=True)
    state = torch.zeros(batch, dim, n)
    for t in range(time):
        at_t = (one[..., t] for one in (u, delta))
        y = mamba_ssm.selective_state_update(state, *at_t, A, B[..., t], C[..., t], D, z[..., t], bias, dt_softplus=True)
        torch.testing.assert_close(y, out[..., t], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


def arguments(**changed: Any) -> dict[str, Any]:
    fitting = {"u": (2, 4, 5), "delta": (2, 4, 5), "A": (4, 3), "B": (2, 3, 5), "C": (2, 3, 5)}
    return {name: torch.zeros(shape) for name, shape in fitting.items()} | changed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"u": torch.zeros(2, 4)}, "u has shape [2, 4]; 3 axes are expected"),
        ({"A": torch.zeros(4, 3, dtype=torch.complex64)}, "A has dtype torch.complex64; float64, float32"),
        ({"delta": torch.zeros(2, 4, 4)}, "delta has shape [2, 4, 4]; [2, 4, 5] is expected"),
        ({"B": torch.zeros(3)}, "B has shape [3]; 3 axes are expected"),
        (
            {"B": torch.zeros(2, 2, 3, 5), "C": torch.zeros(2, 4, 3, 5)},
            "B has 2 groups; 4, those of the other, or 1 is expected",
        ),
        ({"C": torch.zeros(2, 2, 5)}, "shared['c'] has shape [2, 1, 2, 5]; [2, 1, 3, 5] is expected"),
        ({"D": torch.zeros(3)}, "parameters['d'] has shape [3]; [4] is expected"),
        ({"delta_bias": torch.zeros(3)}, "delta_bias has shape [3]; [4] is expected"),
        ({"z": [0.0]}, "z is a list; a torch tensor is expected"),
        ({"initial_state": torch.zeros(2, 4)}, "state['h'] has shape [2, 4]; [2, 4, 3] is expected"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        mamba_ssm.selective_scan_fn(**arguments(**changed))
    assert said in str(caught.value) and "\n" not in str(caught.value)
