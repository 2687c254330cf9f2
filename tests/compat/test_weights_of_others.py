"""Weights of minGRU-pytorch in layers here, as docs/migration.md has it: its order of gates."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, SIZE = 2, 7, 5


def positive(v: Any) -> Any:
    return torch.where(v >= 0, v + 0.5, v.sigmoid())


@pytest.mark.parametrize(("name", "gates"), [("MinGRULog", 2), ("MinLSTMLog", 3)])
def test_of_min_gru_pytorch(name: str, gates: int) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Linear(SIZE, gates * SIZE, bias=False, dtype=torch.float64)
    x, h0 = torch.randn(BATCH, TIME, SIZE, dtype=torch.float64), torch.rand(BATCH, SIZE, dtype=torch.float64)
    hidden, *others = theirs(x).chunk(gates, -1)  # the candidate first, behind it the gate, or f and i
    if gates == 2:
        new = others[0].sigmoid()
    else:
        f, i = (one.sigmoid() for one in others)
        new = i / (f + i)
    h, expected = h0, []
    for t in range(TIME):
        h = torch.lerp(h, positive(hidden[:, t]), new[:, t])
        expected.append(h)
    layer = getattr(wing, name)(SIZE, SIZE, bias=False, dtype=torch.float64)
    first, *rest = theirs.weight.chunk(gates)
    layer.load_state_dict({"weight_ih_l0": torch.cat([*rest, first])})
    output, _ = layer(x, h0[None])
    torch.testing.assert_close(output, torch.stack(expected, 1), rtol=0, atol=1e-12)
