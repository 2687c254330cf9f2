"""Every way of spreading a scan over the GPU, run again and again, on other streams, and replayed by CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.device_arrays import same_bits
from support.scan_strategies import EVERY_WAY, Strategy, kernel_taking, round_steps

from minrnn_gen.build.store import Store
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

Taking = Callable[..., Kernel]
BATCH, HIDDEN = 3, 40
RUNS = 20


def kernel_and_time(taking: Taking, layout: str, strategy: Strategy) -> tuple[Kernel, int]:
    """Return the kernel of a cell with a parameter, and a length of several rounds and, with tickets, more than one group."""
    kernel = taking(strategy, model="rg_lru", hidden_size=HIDDEN, precision="fp32", layout=layout)
    plan = kernel.plan
    return kernel, 3 + (
        2 * round_steps(plan) if not plan.launch.group_tiles else (plan.launch.group_tiles + 1) * plan.launch.tile_steps
    )


def arguments_of(kernel: Kernel, time: int, seed: int) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return arguments of a call on the host, and dy and dstate of its backward."""
    random, interface = np.random.default_rng(seed), kernel.interface

    def normal(shape: tuple[int, ...]) -> Any:
        return random.normal(size=shape).astype(np.float32)

    arguments = {
        "x": normal(interface.shape(interface.x_axes, BATCH, time)),
        "bias": normal((len(interface.gates), HIDDEN)),
        "parameters": {name: normal((HIDDEN,)) for name in interface.parameters},
        "state": {name: normal((BATCH, HIDDEN)) for name in interface.states},
    }
    return arguments, normal(interface.y_shape(BATCH, time)), {name: normal((BATCH, HIDDEN)) for name in interface.states}


def mapped(convert: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: mapped(convert, one) for name, one in tree.items()}
    return convert(tree)


def flat(*trees: Any) -> list[Any]:
    """Return the arrays of nested mappings, in order."""
    found: list[Any] = []
    for tree in trees:
        found += flat(*tree.values()) if isinstance(tree, dict) else [tree]
    return found


def both_passes(kernel: Kernel, arguments: dict[str, Any], dy: Any, dstate: dict[str, Any]) -> list[Any]:
    y, state, saved = kernel.forward(**arguments)
    return flat(y, state, kernel.backward(saved, dy, dstate))


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_runs_are_bitwise_equal(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    kernel, time = kernel_and_time(taking, layout, strategy)
    given = [mapped(cupy.asarray, one) for one in arguments_of(kernel, time, 0)]
    first = both_passes(kernel, *given)
    # Beside other work, so that blocks do not always start in the same order.
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(RUNS):
        with stream:
            noise = cupy.random.standard_normal((1024, 1024), dtype=np.float32)
            noise = noise @ noise
        again = both_passes(kernel, *given)
        assert all(same_bits(one, other) for one, other in zip(again, first, strict=True))
    stream.synchronize()


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_a_debug_build_gives_the_same_bits(
    cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, time = kernel_and_time(taking, layout, strategy)
    monkeypatch.setenv("MINRNN_DEBUG", "1")
    debug = kernel_taking(strategy, Store(tmp_path), release.spec.model_dump())
    given = [mapped(cupy.asarray, one) for one in arguments_of(release, time, 0)]
    found, expected = both_passes(debug, *given), both_passes(release, *given)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    assert all(plan.waits_are_bounded for plan in debug.plans.values())


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_the_callers_stream_is_used(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    """By the fill of the workspace too: the arrays come late, on a stream that does not wait for the default one."""
    kernel, time = kernel_and_time(taking, layout, strategy)
    given = [mapped(cupy.asarray, one) for one in arguments_of(kernel, time, 0)]
    expected = both_passes(kernel, *given)
    late = mapped(cupy.zeros_like, given[0])
    filler = cupy.random.standard_normal((2048, 2048), dtype=np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(20):
            filler = filler @ filler * 1e-3  # keeps the stream busy, so that a launch elsewhere would read too early
        for target, source in zip(flat(late), flat(given[0]), strict=True):
            target[...] = source
        found = both_passes(kernel, late, *given[1:])
    stream.synchronize()
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_a_graph_replays_every_pass(taking: Taking, layout: str, strategy: Strategy) -> None:
    """Forward, backward and a step in one graph, on other values each time; the workspace is filled anew in each replay."""
    torch = pytest.importorskip("torch")
    kernel, time = kernel_and_time(taking, layout, strategy)

    def on_gpu(seed: int) -> list[Any]:
        return [mapped(lambda one: torch.as_tensor(one, device="cuda"), one) for one in arguments_of(kernel, time, seed)]

    def run(arguments: dict[str, Any], dy: Any, dstate: dict[str, Any]) -> list[Any]:
        x_t = arguments["x"].select(layout.index("T") if layout != "BDT" else 3, 0).contiguous()
        y_t, after = kernel.step(x_t, **{name: one for name, one in arguments.items() if name != "x"})
        return [*both_passes(kernel, arguments, dy, dstate), y_t, *flat(after)]

    held = on_gpu(0)
    run(*held)  # loads the modules outside the capture
    gc.collect()  # what other tests left ends here, and not within the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(*held)
    for seed in (1, 2):
        fresh = on_gpu(seed)
        for target, source in zip(flat(*held), flat(*fresh), strict=True):
            target.copy_(source)
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(results, run(*fresh), strict=True))
