"""mamba_ssm's functions beside their equations step by step, with gradients by autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
mamba_ssm = needed("minrnn_gen.compat.mamba_ssm")

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
        ({"B": torch.zeros(3)}, "B has shape [3]; [2, 3, 5], [2, groups, 3, 5] or [4, 3] is expected"),
        (
            {"B": torch.zeros(2, 2, 3, 5), "C": torch.zeros(2, 4, 3, 5)},
            "B has 2 groups; 4, those of the other, or 1 is expected",
        ),
        ({"C": torch.zeros(2, 2, 5)}, "C has shape [2, 2, 5]; [2, 3, 5], [2, groups, 3, 5] or [4, 3] is expected"),
        ({"D": torch.zeros(3)}, "D has shape [3]; [4] is expected"),
        ({"D": torch.zeros(4, dtype=torch.complex64)}, "D has dtype torch.complex64; float64, float32"),
        ({"delta_bias": torch.zeros(3)}, "delta_bias has shape [3]; [4] is expected"),
        ({"z": [0.0]}, "z is a list; a torch tensor is expected"),
        ({"B": torch.zeros(2, 3, 3, 5)}, "B has 3 groups; a divisor of the 4 channels is expected"),
        (
            dict.fromkeys("ABC", torch.zeros(4, 300)),
            "A has shape [4, 300], for which there is no kernel: state_size: 300",
        ),
        ({"A": torch.zeros(4, 3, device="meta")}, "A is on meta, but u is on cpu; move one of them"),
        ({"initial_state": [0.0]}, "initial_state is a list; a torch tensor is expected"),
        ({"initial_state": torch.zeros(2, 4, 3, dtype=torch.int64)}, "initial_state has dtype torch.int64; float64, float32"),
        ({"initial_state": torch.zeros(2, 4, 3, dtype=torch.complex64)}, "initial_state has dtype torch.complex64; float64"),
        ({"initial_state": torch.zeros(2, 4)}, "initial_state has shape [2, 4]; [2, 4, 3] is expected"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        mamba_ssm.selective_scan_fn(**arguments(**changed))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def block_inputs(
    options: set[str], forms: tuple[str, str] = ("projected", "projected"), time: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Arguments of a block, in float64, with weights of size 1/sqrt(inputs)."""
    generator = torch.Generator().manual_seed(seed)
    batch, dim, n, rank, width, taps = 2, 4, 3, 2, 5, 3

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    def weight(*shape: int) -> Any:
        return (tensor(*shape) * shape[-1] ** -0.5).detach().requires_grad_()

    given_as = {"constant": (dim, n), "one group": (batch, n, time), "groups": (batch, 2, n, time)}
    found = {"xz": tensor(batch, 2 * dim, time), "conv1d_weight": weight(dim, 1, taps), "conv1d_bias": None}
    found |= {"x_proj_weight": weight(rank + n * forms.count("projected"), dim), "delta_proj_weight": weight(dim, rank)}
    found |= {"out_proj_weight": weight(width, dim), "out_proj_bias": None, "A": -tensor(dim, n).detach().abs()}
    found["A"].requires_grad_()
    found |= {name: tensor(*given_as[form]) for name, form in zip("BC", forms, strict=True) if form in given_as}
    vectors = {"conv1d_bias": dim, "out_proj_bias": width, "D": dim, "delta_bias": dim, "B_proj_bias": n, "C_proj_bias": n}
    vectors |= {"b_rms_weight": n, "c_rms_weight": n, "dt_rms_weight": dim}
    return found | {name: tensor(size) for name, size in vectors.items() if name in options}


def block(xz: Any, x_proj_weight: Any, delta_proj_weight: Any, A: Any, B: Any = None, C: Any = None, **more: Any) -> Any:
    """Return the outputs of a Mamba block; the convolution is the sum over its taps, one after the other."""
    x, z = xz[:, : A.shape[0]], xz[:, A.shape[0] :]
    taps = more["conv1d_weight"][:, 0]
    count, time = taps.shape[1], x.shape[2]
    before = torch.cat([torch.zeros(*x.shape[:2], count, dtype=x.dtype), x], 2)
    u = sum(taps[:, k, None] * before[:, :, k + 1 : k + 1 + time] for k in range(count))
    u = torch.nn.functional.silu(u if more["conv1d_bias"] is None else u + more["conv1d_bias"][:, None])
    rows = torch.einsum("rd,bdt->brt", x_proj_weight, u)
    rank, n = delta_proj_weight.shape[1], A.shape[1]
    delta = torch.einsum("dr,brt->bdt", delta_proj_weight, rows[:, :rank])
    made = {"B": rows[:, rank : rank + n], "C": rows[:, -n:]}
    for name, given_one in (("B", B), ("C", C)):
        if given_one is not None:
            made[name] = given_one
        elif (bias := more.get(f"{name}_proj_bias")) is not None:
            made[name] = made[name] + bias[:, None]

    def normed(tensor: Any, weight: str, axis: int) -> Any:
        if (own := more.get(weight)) is None:
            return tensor
        shape = [-1 if one == axis % tensor.dim() else 1 for one in range(tensor.dim())]
        return (
            tensor / (tensor.square().mean(axis, keepdim=True) + more.get("b_c_dt_rms_eps", 1e-6)).sqrt() * own.reshape(shape)
        )

    delta = normed(delta, "dt_rms_weight", 1)
    made = {name: normed(made[name], f"{name.lower()}_rms_weight", -1 if made[name].dim() == 2 else -2) for name in made}
    softplus = more.get("delta_softplus", True)
    out, _ = scanned(u, delta, A, **made, D=more.get("D"), z=z, delta_bias=more.get("delta_bias"), delta_softplus=softplus)
    out = torch.einsum("wd,bdt->btw", more["out_proj_weight"], out)
    return out if more["out_proj_bias"] is None else out + more["out_proj_bias"]


BLOCK_FORMS = st.sampled_from(["projected", "constant", "one group", "groups"])
BLOCK_OPTIONS = [
    "conv1d_bias", "out_proj_bias", "D", "delta_bias", "B_proj_bias", "C_proj_bias",
    "b_rms_weight", "c_rms_weight", "dt_rms_weight",
]  # fmt: skip


@given(
    forms=st.tuples(BLOCK_FORMS, BLOCK_FORMS),
    options=st.sets(st.sampled_from(BLOCK_OPTIONS)),
    softplus=st.booleans(),
    time=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_a_block_and_its_gradients_are_those_of_the_equations(
    forms: tuple[str, str], options: set[str], softplus: bool, time: int, seed: int
) -> None:
    """Errors of A, Δ and of a square root near 0 grow by exponentials: bounds are relative to the largest value."""
    leaves = block_inputs(options, forms, time, seed)
    more = {"delta_softplus": softplus, "b_c_dt_rms_eps": 0.01}
    out, expected = mamba_ssm.mamba_inner_fn(**leaves, **more), block(**leaves, **more)
    assert_close(out, expected)
    d_out = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    named = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    found, wanted = (
        torch.autograd.grad((one * d_out).sum(), [*named.values()], allow_unused=True, materialize_grads=True)
        for one in (out, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other)


def assert_close(found: Any, expected: Any, bound: float = 1e-9) -> None:
    assert found.shape == expected.shape
    if found.numel():
        found, expected = found.detach().double(), expected.detach()
        assert float((found - expected).abs().max()) <= bound * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_a_block_are_in_the_dtype_of_xz_or_of_autocast(dtype: Any, autocast: bool) -> None:
    """Weights may have another one. Some ten roundings lie between xz and the output, each relative to sums of size 1."""
    exact = block_inputs({"conv1d_bias", "out_proj_bias", "D", "delta_bias"})
    leaves = {name: leaf.detach().float().requires_grad_() for name, leaf in exact.items()}
    leaves["xz"] = leaves["xz"].detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = mamba_ssm.mamba_inner_fn(**leaves)
    assert out.dtype is (torch.bfloat16 if autocast else dtype)
    assert_close(out, block(**exact), 16 * torch.finfo(out.dtype).eps)
    out.sum().backward()
    assert all(leaf.grad.dtype is leaf.dtype for leaf in leaves.values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"A": torch.zeros(4, 3, dtype=torch.complex64)}, "A has dtype torch.complex64; float64, float32"),
        ({"xz": torch.zeros(2, 7, 5)}, "xz has shape [2, 7, 5]; [2, 8, 5] is expected"),
        ({"conv1d_weight": torch.zeros(4, 3)}, "conv1d_weight has shape [4, 3]; 3 axes are expected"),
        ({"conv1d_weight": torch.zeros(4, 1, 0)}, "conv1d_weight has shape [4, 1, 0]; [4, 1, 1] is expected"),
        ({"x_proj_weight": torch.zeros(7, 4)}, "x_proj_weight has shape [7, 4]; [8, 4] is expected"),
        ({"delta_proj_weight": torch.zeros(3, 2)}, "delta_proj_weight has shape [3, 2]; [4, 2] is expected"),
        ({"out_proj_weight": torch.zeros(5, 3)}, "out_proj_weight has shape [5, 3]; [5, 4] is expected"),
        ({"checkpoint_lvl": 2}, "checkpoint_lvl is 2; 0 or 1 is expected"),
        ({"dt_rms_weight": torch.zeros(2)}, "dt_rms_weight has shape [2]; [4] is expected"),
        ({"B": torch.zeros(2, 2, 5), "b_rms_weight": torch.ones(3)}, "B has shape [2, 2, 5]; 3 values along n are expected"),
    ],
)
def test_a_block_that_does_not_fit_is_one_sentence(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        mamba_ssm.mamba_inner_fn(**(block_inputs(set()) | changed))
    assert said in str(caught.value) and "\n" not in str(caught.value)


# Of sums of 64 products in float32, with functions of single precision, relative to the sum of magnitudes.
OF_FLOAT32 = 2.0**-18
STEP_CASES = [
    (dim, n, has_z, dtype)
    for dim in (2048, 2048 + 16, 4096)
    for n in (16, 32, 64)
    for has_z in (False, True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
]


@pytest.mark.parametrize(("dim", "n", "has_z", "dtype"), one_in(13, STEP_CASES))
def test_a_step_rounds_nothing_but_what_it_returns(dim: int, n: int, has_z: bool, dtype: Any) -> None:
    """A, B, C, D and the bias in float32 beside x, Δ, z and a state of `dtype`; the exact step is one of float64."""
    generator, batch = torch.Generator().manual_seed(0), 2

    def normal(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, generator=generator).to(dtype)

    state, (x, dt) = normal(batch, dim, n, dtype=dtype), (normal(batch, dim, dtype=dtype) for _ in range(2))
    z = normal(batch, dim, dtype=dtype) if has_z else None
    A, bias = -1 - torch.rand(dim, n, generator=generator), torch.rand(dim, generator=generator) - 4
    B, C, D = normal(batch, n), normal(batch, n), normal(dim)
    u, delta, a, b, c, d, gate, shift = (None if one is None else one.double() for one in (x, dt, A, B, C, D, z, bias))
    step = torch.log1p(torch.exp(delta + shift))
    terms = torch.exp(step[..., None] * a) * state.double(), (step * u)[..., None] * b[:, None]
    after, magnitude = sum(terms), sum(one.abs() for one in terms)
    expected, largest = (after * c[:, None]).sum(-1) + d * u, (magnitude * c[:, None].abs()).sum(-1) + (d * u).abs()
    if gate is not None:
        gated = gate * torch.sigmoid(gate)
        expected, largest = expected * gated, largest * gated.abs()
    out = mamba_ssm.selective_state_update(state, x, dt, A, B, C, D, z, bias, dt_softplus=True)
    assert out.dtype is dtype and state.dtype is dtype
    numbers = torch.finfo(dtype)
    for one, other, size in ((out, expected, largest), (state, after, magnitude)):
        assert bool(((one.double() - other).abs() <= numbers.eps * other.abs() + OF_FLOAT32 * size + numbers.tiny).all())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_values_wider_than_x_are_not_rounded(stored: Any) -> None:
    """The state after a step, in float32, and the last state of a scan are as exact as float32 is."""
    torch.manual_seed(0)
    batch, dim, n, time = 2, 8, 4, 6
    u, wide = torch.randn(batch, dim, time).to(stored), {"A": -torch.rand(dim, n)}
    wide |= {"delta": torch.rand(batch, dim, time), "z": torch.randn(batch, dim, time)}
    wide |= {name: torch.randn(batch, n, time) for name in "BC"}
    exact, last = scanned(u.double(), **{name: one.double() for name, one in wide.items()})
    out, found = mamba_ssm.selective_scan_fn(u, **wide, return_last_state=True)
    assert out.dtype is stored and found.dtype is torch.float32
    torch.testing.assert_close(found.double(), last, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(stored).eps, atol=1e-6)
    state = torch.zeros(batch, dim, n)
    for t in range(time):
        delta, B, C, z = (wide[name][..., t] for name in ("delta", "B", "C", "z"))
        out = mamba_ssm.selective_state_update(state, u[..., t], delta, wide["A"], B, C, z=z)
    torch.testing.assert_close(state.double(), last, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), exact[..., -1], rtol=torch.finfo(stored).eps, atol=1e-6)
