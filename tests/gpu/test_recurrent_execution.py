"""Persistent kernels on a GPU that is not theirs alone, launched again and again, and one of them that hangs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.patience import within
from test_dense import arguments

import minrnn_gen
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

# (cell, heads, head_dim) in bf16: heads that fit a block, one that takes a cluster where the GPU has them, and one of a grid.
WAYS = (("lstm", 2, 64), ("gru", 1, 256), ("lstm", 1, 1024))
# Steps that wait for products and for means, in a block, in clusters and in grids.
WAYS_THAT_WAIT = (
    ("gru_reset_before", 2, 64),
    ("layer_norm_lstm", 2, 64),
    ("gru_reset_before", 1, 256),
    ("layer_norm_lstm", 1, 512),
    ("gru_reset_before", 1, 1280),
    ("layer_norm_lstm", 1, 1024),
)
# Of many sequences, by warpgroups: R in clusters, and in blocks anywhere.
WAYS_OF_MANY = (("lstm", 1, 512), ("gru", 1, 384), ("lstm", 1, 1024))
# A GPU that is not done by then never will be.
PATIENCE_SECONDS = 120.0
# More of them by hand: see the test.
LAUNCHES = int(os.environ.get("MINRNN_TEST_LAUNCHES", "20000"))
# No multiple of two or three, so that all kernels are looked at.
LAUNCHES_BETWEEN_LOOKS = 1001
# Primes, so that every size meets all kernels, and both passes.
SIZES, SIZES_THAT_WAIT, SIZES_OF_MANY = 97, 17, 13
LAUNCHES_BETWEEN_BACKWARDS = 4
LAUNCHES_BETWEEN_OTHERS = 10

# Keeps whatever it is on busy for `cycles` of the SM's clock: a count, so that it ends.
OCCUPY = """
extern "C" __global__ void occupy(long long cycles) {
    const long long began = clock64();
    while (clock64() - began < cycles) {}
}
"""
# At 1 to 2 GHz 13 to 25 ms, in four waves 50 to 100 ms; and a little work, half a millisecond.
LONG_CYCLES, SHORT_CYCLES, WAVES = 25_000_000, 1_000_000, 4


@dataclass(frozen=True)
class Others:
    """Other work for the GPU, on a stream of its own."""

    kernel: Any
    stream: Any

    def occupy(self, blocks: int, threads: int, cycles: int) -> None:
        with self.stream:
            self.kernel((blocks,), (threads,), (cycles,))

    @property
    def torch_stream(self) -> Any:
        import torch

        return torch.cuda.ExternalStream(self.stream.ptr)


@pytest.fixture(scope="module")
def others(cupy: ModuleType) -> Others:
    made = Others(cupy.RawKernel(OCCUPY, "occupy"), cupy.cuda.Stream(non_blocking=True))
    made.occupy(1, 1, 1)  # loads it
    return made


def sm_count(torch: Any) -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def wait_for(torch: Any, *streams: Any) -> None:
    """Wait until the streams are done, and fail where they never will be, instead of waiting for ever."""
    events = [torch.cuda.Event() for _ in streams]
    for event, stream in zip(events, streams, strict=True):
        event.record(stream)
    deadline = time.monotonic() + within(PATIENCE_SECONDS)
    while not all(event.query() for event in events):
        if time.monotonic() > deadline:
            pytest.fail(f"the GPU is not done after {PATIENCE_SECONDS:g} s: a kernel hangs")
        time.sleep(1e-4)


def both_passes(kernel: Kernel, x: Any, R: Any, **parameters: Any) -> list[Any]:
    y, state, saved = kernel.forward(x, R, **parameters)
    gradients = kernel.backward(saved, y)
    return [y, *state.values(), gradients["x"], gradients["R"]]


def parameters_of(torch: Any, kernel: Kernel) -> dict[str, Any]:
    """Return the parameters of a cell as an argument of its calls, nothing where it has none."""
    interface, generator = kernel.interface, torch.Generator("cuda").manual_seed(1)
    shapes = {name: interface.shape_of_parameter(name) for name in interface.parameters}
    dtype = getattr(torch, interface.precision.storage_dtype)
    drawn = {name: torch.randn(shape, device="cuda", generator=generator).to(dtype) for name, shape in shapes.items()}
    return {"parameters": drawn} if drawn else {}


def all_equal(torch: Any, found: list[Any], expected: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def persistent(compiled: Callable[..., Kernel], cell: str, heads: int, head_dim: int) -> Kernel:
    kernel = compiled(model=cell, hidden_size=heads * head_dim, heads=heads, precision="bf16")
    if not kernel.plan.is_persistent:
        pytest.skip(f"not persistent on this GPU: {kernel.plan.prediction.passed_over}")
    return kernel


@pytest.mark.parametrize(("blocks_per_sm", "threads"), ((2, 1024), (1, 768), (3, 256)))
@pytest.mark.parametrize(("cell", "heads", "head_dim"), WAYS)
def test_a_gpu_that_is_full(
    compiled: Callable[..., Kernel],
    others: Others,
    cell: str,
    heads: int,
    head_dim: int,
    blocks_per_sm: int,
    threads: int,
) -> None:
    """Whatever is on the SMs, wholly or in part, all blocks of a cluster get their turn together; the bits are the same."""
    import torch

    kernel = persistent(compiled, cell, heads, head_dim)
    calls = [arguments(torch, kernel, batch, 33, seed=batch) for batch in (3, 64)]
    expected = [both_passes(kernel, *call) for call in calls]
    mine = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(2):
        others.occupy(WAVES * blocks_per_sm * sm_count(torch), threads, LONG_CYCLES)
        with torch.cuda.stream(mine):
            found = [both_passes(kernel, *call) for call in calls]
        wait_for(torch, mine, others.torch_stream)
        assert all(all_equal(torch, *pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("ways", "sizes", "batches", "steps"),
    [
        (WAYS, SIZES, (1, 64), (1, 16)),
        (WAYS_THAT_WAIT, SIZES_THAT_WAIT, (1, 16), (1, 8)),
        (WAYS_OF_MANY, SIZES_OF_MANY, (128, 512), (1, 8)),
    ],
    ids=["few sequences", "steps that wait", "many sequences"],
)
def test_many_launches(
    compiled: Callable[..., Kernel],
    others: Others,
    ways: tuple[tuple[str, int, int], ...],
    sizes: int,
    batches: tuple[int, int],
    steps: tuple[int, int],
) -> None:
    """Kernels in turn, of all sizes, every fourth time with its backward, while another stream has work too.

    The result of every 1,001st is the first of its size, bit by bit. 100,000 of them take about five times as long:
    MINRNN_TEST_LAUNCHES=100000 python -m pytest tests/gpu/test_recurrent_execution.py -k many_launches
    """
    import torch

    kernels = [persistent(compiled, *way) for way in ways]
    drawn = random.Random(0)
    shapes = [*zip(batches, steps, strict=True)]
    shapes += [(drawn.randint(*batches), drawn.randint(*steps)) for _ in range(sizes - len(shapes))]
    calls = [[arguments(torch, kernel, *shape, seed=number) for number, shape in enumerate(shapes)] for kernel in kernels]
    vectors = [parameters_of(torch, kernel) for kernel in kernels]
    first: dict[tuple[int, int, bool], list[Any]] = {}

    def forward(kernel: Kernel, *call: Any, **parameters: Any) -> list[Any]:
        y, state = kernel(*call, **parameters)
        return [y, *state.values()]

    # A forward that saves its states may be another kernel than one that does not.
    for which, kernel in enumerate(kernels):
        for number in range(sizes):
            first[which, number, True] = both_passes(kernel, *calls[which][number], **vectors[which])
            first[which, number, False] = forward(kernel, *calls[which][number], **vectors[which])
    mine = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(mine):
        for launch in range(LAUNCHES):
            which, number = launch % len(kernels), launch % sizes
            call = calls[which][number]
            # In turn for each kernel.
            has_backward = launch // len(kernels) % LAUNCHES_BETWEEN_BACKWARDS == 0
            found = (both_passes if has_backward else forward)(kernels[which], *call, **vectors[which])
            if launch % LAUNCHES_BETWEEN_OTHERS == 0:
                others.occupy(sm_count(torch), 256, SHORT_CYCLES)
            if launch % LAUNCHES_BETWEEN_LOOKS == LAUNCHES_BETWEEN_LOOKS - 1:
                wait_for(torch, mine)
                assert all_equal(torch, found, first[which, number, has_backward]), (launch, ways[which], shapes[number])
    wait_for(torch, mine, others.torch_stream)


@pytest.mark.parametrize(("cell", "heads", "head_dim"), WAYS)
def test_a_debug_build_gives_the_same_bits(
    compiled: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch, cell: str, heads: int, head_dim: int
) -> None:
    import torch

    release = persistent(compiled, cell, heads, head_dim)
    monkeypatch.setenv("MINRNN_DEBUG", "1")
    debug = minrnn_gen.compile(release.spec)
    call = arguments(torch, release, 5, 40, seed=7)
    assert all_equal(torch, both_passes(debug, *call), both_passes(release, *call))
    for key, plan in debug.plans.items():
        assert plan.waits_are_bounded and not release.plans[key].waits_are_bounded
        assert plan.variables == release.plans[key].variables


# A kernel whose block 1 is silent, so that others wait in vain: in a cluster it never arms its mbarrier, in a grid it publishes
# none of its outputs.
HANGING = """
import sys
import torch
from minrnn_gen.build import builder

original = builder.compile_source
head_dim, call = int(sys.argv[1]), sys.argv[2]

def one_block_is_silent(text, plan):
    return original(text.replace(call, "if (blockIdx.x != 1) " + call), plan)

builder.compile_source = one_block_is_silent
import minrnn_gen

kernel = minrnn_gen.compile({"model": "gru", "hidden_size": head_dim, "precision": "bf16", "batch": 2})
if call not in kernel.source:
    raise SystemExit("not in this scope")
x = torch.randn(2, 9, 3, head_dim, device="cuda").bfloat16()
R = torch.randn(kernel.interface.R_shape, device="cuda").bfloat16()
y, _ = kernel(x, R)
torch.cuda.synchronize()
raise SystemExit("it came to its end")
"""


@pytest.mark.parametrize(
    ("head_dim", "call", "said_of_it"),
    (
        (256, "mbarrier_arrive_expect_tx(&shared", "block 1, thread"),
        (1024, "publish(words", "waits for the outputs of other blocks in iteration 1"),
    ),
)
def test_a_debug_build_that_hangs_says_where_and_ends(tmp_path: Path, head_dim: int, call: str, said_of_it: str) -> None:
    """In a process of its own, whose use of the GPU ends with it, and with a cache of its own."""
    environment = os.environ | {"MINRNN_DEBUG": "1", "MINRNN_CACHE_DIR": str(tmp_path)}
    program = (sys.executable, "-c", HANGING, str(head_dim), call)
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=within(PATIENCE_SECONDS), check=False
    )
    if "not in this scope" in done.stderr:
        pytest.skip("this GPU takes another scope for this head")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "it came to its end" not in said
    assert "launch failure" in said or "illegal instruction" in said, said[-2000:]  # what a trap is called
    assert "minrnn-gen: cell_gru_persistent_forward hangs: block" in said and "in iteration 1" in said, said[-2000:]
    assert said_of_it in said, said[-2000:]
