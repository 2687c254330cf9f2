"""mamba_ssm's step with heads, groups, tied arrays and slots, next to its equations in float64."""

from __future__ import annotations

from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
mamba_ssm = needed("minrnn_gen.compat.mamba_ssm")

FULL = pytest.mark.matrix_full
# The sizes, dtypes and tolerances of mamba_ssm's own test of a step: with and without heads, tied or not, groups, and indices.
HEAD_DIM = 64
GRID = [
    (dim, n, groups, is_tied, has_z, dtype, has_indices)
    for has_indices in (False, True)
    for heads in (False, True)
    for dim in ((2048, 4096) if heads else (2048, 2048 + 16, 4096))
    for n in (16, 32, 64)
    for groups in ((1, 2, 4) if heads else (0,))
    for is_tied in ((False, True) if heads else (False,))
    for has_z in (False, True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
]


def stepped(state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, dt_bias: Any) -> tuple[Any, Any]:
    """Return (out, state) of a step in float64, of heads or of channels alone."""
    state, x, dt, A, B, C, D, dt_bias = (one.double() for one in (state, x, dt, A, B, C, D, dt_bias))
    delta = torch.nn.functional.softplus(dt + dt_bias)
    if x.dim() == 3:
        B, C = (one.repeat_interleave(x.shape[1] // one.shape[1], 1) for one in (B, C))
    b, c = (one[..., None, :] for one in (B, C))
    after = torch.exp(delta[..., None] * A) * state + (delta * x)[..., None] * b
    out = (after * c).sum(-1) + D * x
    return (out if z is None else out * torch.nn.functional.silu(z.double())), after


def step_inputs(
    dim: int, n: int, groups: int, is_tied: bool, has_z: bool, dtype: Any, batch: int, slots: int, head_dim: int = HEAD_DIM
) -> dict[str, Any]:
    """Return arrays of a step; those of heads that are tied have stride 0 along their channels, and A along n too."""
    generator = torch.Generator().manual_seed(0)
    channels = (dim // head_dim, head_dim) if groups else (dim,)

    def normal(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, generator=generator).to(dtype)

    def of_channels(make: Any, *lead: int) -> Any:
        return make(*lead, channels[0])[..., None].expand(*lead, *channels) if is_tied else make(*lead, *channels)

    def negative(*shape: int) -> Any:
        return -1 - torch.rand(shape, generator=generator)

    A = negative(channels[0])[:, None, None].expand(*channels, n) if is_tied else negative(*channels, n)
    of_steps = (batch, groups, n) if groups else (batch, n)
    return {
        "state": normal(slots, *channels, n, dtype=dtype),
        "x": normal(batch, *channels, dtype=dtype),
        "dt": of_channels(normal, batch).to(dtype) if not is_tied else of_channels(lambda *s: normal(*s, dtype=dtype), batch),
        "A": A,
        "B": normal(*of_steps),
        "C": normal(*of_steps),
        "D": of_channels(normal),
        "z": normal(batch, *channels, dtype=dtype) if has_z else None,
        "dt_bias": of_channels(negative) - 3,
    }


def test_their_grid_has_all_cases() -> None:
    assert len(GRID) == 540


@pytest.mark.parametrize(("dim", "n", "groups", "is_tied", "has_z", "dtype", "has_indices"), one_in(271, GRID))
def test_a_step_is_theirs_on_their_own_grid(
    dim: int, n: int, groups: int, is_tied: bool, has_z: bool, dtype: Any, has_indices: bool
) -> None:
    batch = 16 if has_indices else 2
    slots = 10 * batch if has_indices else batch
    arrays = step_inputs(dim, n, groups, is_tied, has_z, dtype, batch, slots)
    state, indices = arrays["state"], torch.arange(batch)
    if has_indices:
        indices = torch.randperm(slots, generator=torch.Generator().manual_seed(1))[:batch]
    expected, after = stepped(**{**arrays, "state": state[indices]})
    others = torch.ones(slots, dtype=torch.bool)
    others[indices] = False
    before = state[others]
    of_indices = {"state_batch_indices": indices.to(torch.int32)} if has_indices else {}
    out = mamba_ssm.selective_state_update(**arrays, dt_softplus=True, **of_indices)
    rtol, atol = {torch.float32: (3e-4, 1e-3), torch.float16: (5e-3, 1e-2), torch.bfloat16: (1e-2, 5e-2)}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(state[indices].double(), after, rtol=rtol, atol=atol)
    assert torch.equal(state[others], before) and out.dtype is dtype


@pytest.mark.parametrize("pads", [(0, 2), *(pytest.param(pads, marks=FULL) for pads in ((), (1,), (0, 1, 2, 3)))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float64, marks=FULL)])
def test_padding_changes_nothing_and_its_output_is_zero(dtype: Any, pads: tuple[int, ...]) -> None:
    """Slots lie apart, as those of a larger buffer do; what is in no slot of a row is NaN."""
    arrays, indices = step_inputs(8, 3, 2, True, True, dtype, 4, 7, head_dim=4), torch.tensor([5, 0, 3, 6])
    whole = torch.full((7, 2, 8 * 3), torch.nan, dtype=dtype)
    state = whole[:, 1].view(7, 2, 4, 3)
    is_live = torch.tensor([row not in pads for row in range(4)])
    state[indices[is_live]] = arrays["state"][indices[is_live]]
    expected, after = stepped(**{**arrays, "state": state[indices].nan_to_num(0)})
    indices[~is_live] = torch.tensor([-1, 4, -7, 4])[: len(pads)]
    arrays["x"][~is_live] = torch.nan
    before = whole.clone()
    changes = {"state_batch_indices": indices, "pad_slot_id": 4, "dt_softplus": True}
    out = mamba_ssm.selective_state_update(**{**arrays, "state": state}, **changes)
    torch.testing.assert_close(out[is_live].double(), expected[is_live], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(state[indices[is_live]].double(), after[is_live], rtol=1e-2, atol=1e-2)
    assert not out[~is_live].any()
    before[indices[is_live], 1] = whole[indices[is_live], 1]
    assert torch.equal(whole.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"state_batch_indices": torch.zeros(2)}, "state_batch_indices is no tensor of int32 or int64"),
        ({"state_batch_indices": torch.tensor([0])}, "state_batch_indices has shape [1]; [2] is expected"),
        ({"state_batch_indices": torch.tensor([0, 9])}, "state_batch_indices[1] is 9; a slot of the pool, 0 to 1, or pad_slot"),
        ({"state_batch_indices": torch.tensor([1, 1])}, "state_batch_indices has slot 1 2 times"),
        ({"state": torch.zeros(2, 8, 3)}, "state has shape [2, 8, 3]; [2, 2, 4, 3] is expected"),
        ({"B": torch.zeros(2, 3, 3)}, "B has 3 groups; a divisor of the 2 heads is expected"),
        ({"A": torch.zeros(8, 3)}, "A has shape [8, 3]; 3 axes are expected"),
        ({"dt": torch.zeros(2, 8)}, "dt has shape [2, 8]; [2, 2, 4] is expected"),
    ],
)
def test_a_step_that_does_not_fit_is_one_sentence(changed: dict[str, Any], said: str) -> None:
    arrays = step_inputs(8, 3, 2, False, True, torch.float32, 2, 2, head_dim=4)
    with pytest.raises(BadInput) as caught:
        mamba_ssm.selective_state_update(**(arrays | changed))
    assert said in str(caught.value) and "\n" not in str(caught.value)
