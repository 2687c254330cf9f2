"""Sizes choose the kernel on a GPU: the same bits whatever ran before, and nothing compiled while a graph is captured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import minrnn_gen
from minrnn_gen.plan.problem import Sizes

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

SIZES = ((1, 40), (24, 100), (700, 12), (3, 1000))
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 256, "precision": "bf16"},
    {"model": "lstm", "hidden_size": 256, "precision": "bf16"},
    {"model": "gru", "hidden_size": 96, "precision": "fp32", "fp32_product": "tf32"},
)
named = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["model"])


def arguments_of(kernel: minrnn_gen.Kernel, batch: int, time: int) -> list[Any]:
    """Return random x, and R where there is one; the same for the same sizes."""
    random, interface = torch.Generator("cuda").manual_seed(batch * 1000 + time), kernel.interface
    dtype = getattr(torch, interface.precision.storage_dtype)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=random).to(dtype)

    x = normal(batch, time, len(kernel.gates), interface.hidden_size)
    return [x, normal(*interface.R_shape) / interface.head_dim**0.5] if interface.recurrent_gates else [x]


def results_of(kernel: minrnn_gen.Kernel, sizes: tuple[int, int]) -> list[Any]:
    """Return y and all gradients of a call."""
    arguments = arguments_of(kernel, *sizes)
    y, _, saved = kernel.forward(*arguments)
    gradients = kernel.backward(saved, torch.ones_like(y))
    return [y, *(gradients[name] for name in ("x", "R") if name in gradients), *gradients["state"].values()]


@named
def test_what_ran_before_never_decides(spec: dict[str, Any]) -> None:
    """Forwards, backwards, one after the other, from several threads, and with other hints."""
    one, other, hinted = (minrnn_gen.compile(spec | hints) for hints in ({}, {}, {"batch": 700, "time": 12}))
    expected = [results_of(one, sizes) for sizes in SIZES]
    backwards = [results_of(other, sizes) for sizes in reversed(SIZES)][::-1]
    with ThreadPoolExecutor(len(SIZES)) as pool:
        at_once = list(pool.map(lambda sizes: results_of(hinted, sizes), SIZES))
    torch.cuda.synchronize()
    for of_sizes in zip(expected, backwards, at_once, strict=True):
        for first, *rest in zip(*of_sizes, strict=True):
            assert all(torch.equal(first, result) for result in rest)


@named
def test_nothing_is_compiled_while_a_graph_is_captured(spec: dict[str, Any]) -> None:
    kernel, (few, many) = minrnn_gen.compile(spec), ((2, 64), (1024, 64))
    specialization = kernel.builder.hinted_specialization
    chosen = [kernel.builder.choose("forward", specialization, Sizes(*sizes)) for sizes in (few, many)]
    assert chosen[0] != chosen[1], "sizes that have different kernels are wanted"
    warm, arguments = arguments_of(kernel, *few), arguments_of(kernel, *many)
    kernel(*warm)
    compiled = set(kernel.plans)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, state = kernel(*arguments)
    assert set(kernel.plans) == compiled and chosen[1] not in compiled
    graph.replay()
    expected, state_expected = kernel(*arguments)
    assert chosen[1] in kernel.plans
    torch.cuda.synchronize()
    tolerance = 2.0**-6 if spec["precision"] == "bf16" else 2.0**-9
    for result, own in ((y, expected), *((state[name], state_expected[name]) for name in state)):
        torch.testing.assert_close(result.float(), own.float(), rtol=tolerance, atol=tolerance)
