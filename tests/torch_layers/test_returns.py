"""`gae`, `vtrace` and `lambda_returns`: the papers' sums, the loops of libraries, and gradients of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import returns_oracle as oracle
from support.needed import needed
from support.returns_oracle import Drawn, over

torch = pytest.importorskip("torch")
front = needed("minrnn_gen.torch")

from minrnn_gen.errors import BadInput  # noqa: E402

# Time second, first, last and alone.
LAYOUTS = [((3, 9), 1), ((9, 3), 0), ((2, 3, 9), -1), ((9,), 0), ((2, 9, 1), -2)]
THRESHOLDS = {"rho_thresh": 1.2, "c_thresh": 0.9, "pg_rho_thresh": 1.1}


def tensor(array: Any, dtype: Any = torch.float64) -> Any:
    found = torch.from_numpy(np.array(array))
    return found if found.dtype is torch.bool else found.to(dtype)


def assert_equal(found: Any, expected: Any, roundoffs: float = 64) -> None:
    """Sums of ten terms of size 1 to 10, in two orders."""
    for one, other in zip(found, expected, strict=True):
        other = np.asarray(other)
        bound = roundoffs * torch.finfo(one.dtype).eps * max(1.0, np.abs(other).max())
        assert one.shape == other.shape
        assert np.abs(one.double().numpy() - other).max() <= bound


@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
@pytest.mark.parametrize("of_steps", [False, True], ids=["numbers", "tensors"])
def test_values_are_the_papers_sums(shape: tuple[int, ...], axis: int, of_steps: bool) -> None:
    drawn = Drawn(shape, axis)
    factors = [drawn.gamma, drawn.lmbda] if of_steps else [np.full(shape, 0.97), np.full(shape, 0.9)]
    gamma, lmbda = map(tensor, factors) if of_steps else (0.97, 0.9)
    keywords: dict[str, Any] = {"gamma": gamma, "lmbda": lmbda, "axis": axis}
    arrays = (drawn.reward, drawn.value, drawn.next_value, drawn.done, drawn.terminated)
    r, v, nv, done, terminated = map(tensor, arrays)
    assert_equal(front.gae(r, v, nv, done, terminated, **keywords), over(oracle.gae, (*arrays, *factors), axis))
    without = (drawn.reward, *arrays[2:])
    expected = over(oracle.lambda_returns, (*without, *factors), axis)
    assert_equal([front.lambda_returns(r, nv, done, terminated, **keywords)], expected)
    found = front.vtrace(tensor(drawn.log_rho), r, v, nv, done, terminated, **keywords, **THRESHOLDS)
    expected = over(oracle.vtrace, (drawn.log_rho, *arrays, *factors), axis, tuple(THRESHOLDS.values()))
    assert_equal(found, expected)


@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
def test_the_value_after_the_last_step_is_enough(shape: tuple[int, ...], axis: int) -> None:
    drawn = Drawn(shape, axis)
    r, v, log_rho, done = map(tensor, (drawn.reward, drawn.value, drawn.log_rho, drawn.done))
    keywords: dict[str, Any] = {"gamma": 0.97, "lmbda": 0.9, "axis": axis}
    whole = front.gae(r, v, tensor(drawn.following), done, **keywords)
    assert_equal(front.gae(r, v, tensor(drawn.last), done, **keywords), [one.numpy() for one in whole])
    whole = front.vtrace(log_rho, r, v, tensor(drawn.following), done, **keywords)
    assert_equal(front.vtrace(log_rho, r, v, tensor(drawn.last), done, **keywords), [one.numpy() for one in whole])


def test_marks_may_be_absent_or_numbers() -> None:
    drawn = Drawn((3, 9), 1)
    r, v, nv, done = map(tensor, (drawn.reward, drawn.value, drawn.next_value, drawn.done))
    keywords = {"gamma": 0.97, "lmbda": 0.9}
    for one, other in zip(front.gae(r, v, nv, done.float(), **keywords), front.gae(r, v, nv, done, **keywords), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(front.gae(r, v, nv, **keywords), front.gae(r, v, nv, done & False, **keywords), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_rounded_once(dtype: Any) -> None:
    """16 bits are computed in float32, so that results differ from those of the rounded arrays by one rounding."""
    drawn = Drawn((3, 9), 1)
    rounded = [tensor(array, dtype) for array in (drawn.log_rho, drawn.reward, drawn.value, drawn.next_value)]
    wide = [one.double() for one in rounded]
    done = tensor(drawn.done)
    keywords = {"gamma": 0.97, "lmbda": 0.9}
    roundoffs = 64 if dtype is torch.float32 else 1
    for name in ("gae", "vtrace", "lambda_returns"):
        first = {"gae": 1, "vtrace": 0}.get(name)
        found, expected = (
            getattr(front, name)(*(arrays[first:] if first is not None else (arrays[1], arrays[3])), done, **keywords)
            for arrays in (rounded, wide)
        )
        found, expected = ([one] if isinstance(one, torch.Tensor) else one for one in (found, expected))
        assert all(one.dtype is dtype for one in found)
        assert_equal(found, [one.numpy() for one in expected], roundoffs)
    mixed, _ = front.gae(rounded[1], rounded[2].double(), rounded[3], done, **keywords)
    assert mixed.dtype is torch.float64


@pytest.mark.parametrize("name", ["gae", "vtrace", "lambda_returns"])
def test_gradients_are_those_of_a_loop(name: str) -> None:
    drawn = Drawn((2, 6), 1)
    arrays = {"log_rho": drawn.log_rho, "r": drawn.reward, "v": drawn.value, "nv": drawn.next_value, "gamma": drawn.gamma}
    done, terminated, lmbda = map(tensor, (drawn.done, drawn.terminated, drawn.lmbda))
    names = {"gae": ("r", "v", "nv"), "lambda_returns": ("r", "nv"), "vtrace": ("log_rho", "r", "v", "nv")}[name]

    def by_scan(leaves: dict[str, Any]) -> Any:
        found = getattr(front, name)(*(leaves[one] for one in names), done, terminated, gamma=leaves["gamma"], lmbda=lmbda)
        return [found] if name == "lambda_returns" else found

    def by_loop(leaves: dict[str, Any]) -> Any:
        """The recurrences of torchrl's loops, which torch differentiates step by step."""
        r, nv, gamma = leaves["r"], leaves["nv"], leaves["gamma"]
        nv, goes_on = nv * ~terminated, (~done).double()
        steps = range(r.shape[1] - 1, -1, -1)
        if name == "lambda_returns":
            g, found = nv[:, -1], []
            for t in steps:
                g = torch.where(done[:, t], nv[:, t], g)
                g = r[:, t] + gamma[:, t] * ((1 - lmbda[:, t]) * nv[:, t] + lmbda[:, t] * g)
                found.append(g)
            return [torch.stack(found[::-1], 1)]
        v, log_rho = leaves["v"], leaves["log_rho"] if name == "vtrace" else torch.zeros_like(r)
        rho = log_rho.exp().clamp(max=1.0)
        carried, found = torch.zeros_like(r[:, 0]), []
        for t in steps:
            delta = rho[:, t] * (r[:, t] + gamma[:, t] * nv[:, t] - v[:, t])
            carried = delta + gamma[:, t] * lmbda[:, t] * rho[:, t] * goes_on[:, t] * carried
            found.append(carried)
        sums = torch.stack(found[::-1], 1)
        if name == "gae":
            return [sums, sums + v]
        target = sums + v
        after = torch.cat([target[:, 1:], leaves["nv"][:, -1:]], 1)
        value_after = torch.cat([v[:, 1:], leaves["nv"][:, -1:]], 1)
        after = torch.where(done, leaves["nv"], lmbda * after + (1 - lmbda) * value_after)
        return [rho * (r + gamma * ~terminated * after - v), target]

    gradients = []
    for run in (by_scan, by_loop):
        leaves = {one: tensor(array).requires_grad_() for one, array in arrays.items()}
        loss = sum(
            (one * torch.linspace(-1, 1, one.numel(), dtype=one.dtype).view(one.shape)).sin().sum() for one in run(leaves)
        )
        used = [leaves[one] for one in (*names, "gamma")]
        gradients.append(torch.autograd.grad(loss, used))
    assert_equal(gradients[0], [one.numpy() for one in gradients[1]])


@pytest.mark.parametrize("shape", [(0, 9), (3, 0)])
def test_nothing_gives_nothing(shape: tuple[int, int]) -> None:
    r = torch.zeros(shape)
    advantage, _ = front.gae(r, r, torch.zeros(shape[0]), gamma=0.9, lmbda=0.9)
    assert advantage.shape == front.lambda_returns(r, r, gamma=0.9, lmbda=0.9).shape == shape
    assert front.vtrace(r, r, r, r, gamma=0.9)[1].shape == shape


def test_what_has_no_meaning_is_refused() -> None:
    r, done = torch.zeros(3, 9), torch.zeros(3, 9, dtype=torch.bool)
    keywords: dict[str, Any] = {"gamma": 0.9, "lmbda": 0.9}
    with pytest.raises(BadInput, match="terminated is given, but next_value is of the last step only"):
        front.gae(r, r, r[:, -1], done, done, **keywords)
    with pytest.raises(BadInput, match=r"done has dtype torch\.bool and shape \[3, 8\]; bool, or numbers 0 and 1, of shape"):
        front.gae(r, r, r, done[:, 1:], **keywords)
    with pytest.raises(BadInput, match=r"done has dtype .* and values other than 0 and 1"):
        front.gae(r, r, r, r + 0.5, **keywords)
    with pytest.raises(BadInput, match="axis is 2, but reward has shape"):
        front.gae(r, r, r, axis=2, **keywords)
    with pytest.raises(BadInput, match="gamma is 'x'; a number or a torch tensor is expected"):
        front.gae(r, r, r, gamma="x", lmbda=0.9)
    with pytest.raises(BadInput, match=r"next_value has shape \[3\]; \[3, 9\] is expected"):
        front.lambda_returns(r, r[:, -1], **keywords)


@pytest.mark.parametrize("seed", range(2))
def test_values_are_torchrls(seed: int) -> None:
    theirs = pytest.importorskip("torchrl.objectives.value.functional", reason="torchrl is not installed")
    drawn = Drawn((3, 9, 1), 1, seed)
    log_rho, r, v, nv, done, terminated = map(
        tensor, (drawn.log_rho, drawn.reward, drawn.value, drawn.next_value, drawn.done, drawn.terminated)
    )
    gamma, lmbda = 0.96875, 0.875  # of few bits, as the thresholds: torchrl rounds them to float32
    keywords = {"gamma": gamma, "lmbda": lmbda}
    for name in ("generalized_advantage_estimate", "vec_generalized_advantage_estimate"):
        expected = getattr(theirs, name)(gamma, lmbda, v, nv, r, done, terminated)
        assert_equal(front.gae(r, v, nv, done, terminated, **keywords), [one.numpy() for one in expected], 256)
    expected = theirs.td_lambda_return_estimate(gamma, lmbda, nv, r, done, terminated)
    assert_equal([front.lambda_returns(r, nv, done, terminated, **keywords)], [expected.numpy()])
    expected = theirs.vtrace_advantage_estimate(
        gamma, log_rho, torch.zeros_like(r), v, nv, r, done, terminated, rho_thresh=1.25, c_thresh=0.875
    )
    found = front.vtrace(log_rho, r, v, nv, done, terminated, gamma=gamma, rho_thresh=1.25, c_thresh=0.875)
    assert_equal(found, [one.numpy() for one in expected])
