"""Host tensors ask nothing of CUDA: a torch built for it computes without a driver, and starts no context beside one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

from support.differentiable import fronts, loss_of  # noqa: E402

import minrnn_gen  # noqa: E402

FRONTS = fronts()
# Torch's own names for its device, its streams and its memory that the package knows; a build for CPUs lacks them.
NAMES = sorted(
    {
        name
        for path in Path(minrnn_gen.__file__).parent.rglob("*.py")
        for name in re.findall(r"\"(_cuda_\w+|_empty_strided_cuda)\"", path.read_text(encoding="utf-8"))
    }
)


def no_driver(*_: Any) -> Any:
    raise RuntimeError("Found no NVIDIA driver on your system")


@pytest.fixture(autouse=True)
def built_for_cuda() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_lazy_init", no_driver)
        for name in NAMES:
            of = torch._C._dynamo.guards if name.startswith("_empty") else torch._C
            patch.setattr(of, name, no_driver, raising=False)
        yield


def test_the_names_are_those_that_the_package_asks_for() -> None:
    assert {"_cuda_getDevice", "_empty_strided_cuda"} <= set(NAMES)


@pytest.mark.parametrize("name", FRONTS)
def test_every_front_computes_forward_and_backward(name: str) -> None:
    front = FRONTS[name]()
    leaves = front.leaves()
    results = front.results({**leaves, **front.without_gradients()})
    torch.autograd.grad(loss_of(results), list(leaves.values()), allow_unused=True)


def test_layers_with_a_projection_do_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        layer = wing.LSTM(3, 4, 2, bidirectional=True, dtype=dtype)
        x = torch.randn(2, 5, 3, dtype=dtype, requires_grad=True)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [2, 5], batch_first=True, enforce_sorted=False)
        layer(packed)[0].data.sum().backward()
        assert x.grad is not None
    with torch.no_grad():
        assert wing.GRU(3, 4).step(torch.zeros(2, 3))[0].shape == (2, 4)
