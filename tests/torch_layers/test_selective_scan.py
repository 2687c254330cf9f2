"""The selective scan as a module: its equations step by step in float64, its pieces in time, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput
from minrnn_gen.layers import initial

torch = pytest.importorskip("torch")
SelectiveScan = needed("minrnn_gen.torch").SelectiveScan
linear, silu, softplus = (getattr(torch.nn.functional, name) for name in ("linear", "silu", "softplus"))


def looped(scan: Any, x: Any, z: Any, state: Any) -> tuple[Any, Any]:
    """Return y and the last state by a loop over time."""
    n, groups = scan.state_size, scan.groups
    small, b, c = linear(x, scan.in_weight).split([scan.rank, groups * n, groups * n], -1)
    step = softplus(linear(small, scan.step_weight) + scan.step_bias)
    b, c = (one.unflatten(-1, (groups, n)).repeat_interleave(scan.channels // groups, 2) for one in (b, c))
    outputs = []
    for t in range(x.shape[1]):
        dt = step[:, t, :, None]
        state = torch.exp(-scan.a.exp() * dt) * state + dt * x[:, t, :, None] * b[:, t]
        outputs.append((c[:, t] * state).sum(-1) + scan.d * x[:, t])
    y = torch.stack(outputs, 1)
    return (y if z is None else y * silu(z)), state


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("has_z", [False, True])
def test_it_is_the_equations(groups: int, has_z: bool) -> None:
    torch.manual_seed(0)
    scan = SelectiveScan(6, 4, rank=2, groups=groups, dtype=torch.float64)
    x, z, state = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 5, 6), (2, 5, 6), (2, 6, 4)))
    gate = z if has_z else None
    leaves = [x, state, *([z] if has_z else []), *scan.parameters()]
    gradients = []
    for y, last in (scan(x, gate, state), looped(scan, x, gate, state)):
        gradients.append([y, last, *torch.autograd.grad(y.sin().sum() + last.cos().sum(), leaves)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_pieces_in_time_are_the_whole() -> None:
    scan, x = SelectiveScan(4, dtype=torch.float64), torch.randn(2, 7, 4, dtype=torch.float64)
    with torch.no_grad():
        whole, last = scan(x)
        first, state = scan(x[:, :3])
        second, after = scan(x[:, 3:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(after, last)


def test_steps_begin_where_the_paper_has_them() -> None:
    steps = softplus(SelectiveScan(512, dtype=torch.float64).step_bias.detach())
    assert initial.STEP_LEAST <= float(steps.min()) < 0.002 and 0.05 < float(steps.max()) <= initial.STEP_MOST * (1 + 1e-6)


X = torch.zeros(2, 3, 4)


def under_autocast(layer: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: SelectiveScan(4, 0), "state_size is 0; an integer from 1 to 256 is expected"),
        (lambda: SelectiveScan(4, groups=3), "groups is 3; a divisor of channels, 4, is expected"),
        (lambda: SelectiveScan(4)(torch.zeros(2, 3)), "x has shape [2, 3]; [batch, time, 4] is expected"),
        (lambda: SelectiveScan(4)(torch.zeros(2, 3, 4), torch.zeros(2, 3)), "z has shape [2, 3]; [2, 3, 4] is expected"),
        (lambda: SelectiveScan(4)(X, X + 0j), "z has dtype torch.complex64; float64, float32, float16 or bfloat16 is expected"),
        (lambda: SelectiveScan(4)(X, X.long()), "z has dtype torch.int64; float64, float32"),
        (lambda: SelectiveScan(4)(X, X.double()), "z has dtype torch.float64, but x has torch.float32, to which"),
        (lambda: SelectiveScan(4)(X, [0.0]), "z is a list; a torch tensor is expected"),
        (lambda: SelectiveScan(4)(X, X.sum()), "z has shape []; [2, 3, 4] is expected"),
        (lambda: SelectiveScan(4)(X.double()), "but parameter in_weight has torch.float32; cast one of them"),
        (lambda: SelectiveScan(4)(X, state=torch.zeros(2, 4, 16).long()), "state has dtype torch.int64; float64, float32"),
        (lambda: SelectiveScan(4)(X, state=torch.zeros(2, 4)), "state has shape [2, 4]; [2, 4, 16] is expected"),
        (lambda: under_autocast(SelectiveScan(4), X.double()), "autocast does not cast float64: cast x to float32"),
        (lambda: SelectiveScan(4, rank=0), "rank is 0; an integer from 1 to 1048576 is expected"),
        (lambda: SelectiveScan(4, dtype=torch.int64), "dtype is torch.int64; one of torch.float64"),
    ],
)
def test_what_does_not_fit_is_one_sentence(run: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        run()
    assert said in str(caught.value) and "\n" not in str(caught.value)
