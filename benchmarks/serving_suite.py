"""Single steps on slots of a pool, and drafts, on a GPU next to other ways and others' kernels, in CUDA graphs.

Every launch of a graph has random slots of its own, so that states come from memory and not from the L2 cache. Contenders are
replayed in turn, and times are medians. Errors are those of y against a step in float64.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import minrnn_gen
from benchmarks.harness.stand_ins import standing_in
from minrnn_gen.compat.mamba_ssm import selective_state_update
from minrnn_gen.errors import BadInput
from minrnn_gen.run.cache import Cache, new_states

# Launches of a graph, bytes of states that they touch at least, and bytes of a pool at most.
LAUNCHES, COLD_BYTES, POOL_BYTES = 8, 200 << 20, 3 << 30
ROUNDS, WARM_ROUNDS, DRAFT, GROUPS = 7, 2, 4, 1
DEVICE = "cuda"


def cell_of(ties_a: bool) -> dict[str, Any]:
    """Return the cell of a step; where heads tie a, as in Mamba-2, it has one value of a channel."""
    return {
        "name": "selective_scan",
        "gates": ["dt", "x", "z"],
        "states": {"h": "n"},
        "parameters": {"a": 1 if ties_a else "n", "d": 1},
        "shared": ["b", "c"],
        "equations": "dt = softplus(W.dt)\nh[t] = exp(dt * a) * h[t-1] + dt * W.x * S.b",
        "output": "(sum(S.c * h[t]) + d * W.x) * silu(W.z)",
    }


def heading() -> str:
    """Return the GPU and what runs on it; raises BadInput without a GPU."""
    if not torch.cuda.is_available():
        raise BadInput("serve was asked for without a GPU; run it on a machine with one")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"


@dataclass(frozen=True)
class Problem:
    """A step of `batch` sequences, with states [heads, width, n] in a dtype; inputs are in bf16 where states are, else fp32."""

    batch: int
    heads: int
    width: int
    n: int
    dtype: torch.dtype

    @property
    def label(self) -> str:
        """The problem in a table."""
        of_heads = f"{self.heads} x {self.width}" if self.heads > 1 else str(self.width)
        return f"{of_heads} x {self.n}, {str(self.dtype).removeprefix('torch.')}, B {self.batch}"

    @property
    def row_bytes(self) -> int:
        """Bytes of the states of a sequence."""
        return self.heads * self.width * self.n * int(self.dtype.itemsize)


def problems(batches: tuple[int, ...]) -> Iterator[Problem]:
    """Yield the problems of the table."""
    for heads, width, n in ((1, 2048, 16), (64, 64, 128)):
        for dtype in (torch.float32, torch.bfloat16):
            for batch in batches:
                yield Problem(batch, heads, width, n, dtype)


class Arrays:
    """Random inputs of a step, tied over channels where there are heads, and a pool with random slots for each launch."""

    def __init__(self, problem: Problem) -> None:
        """Draw them on the current GPU."""
        generator = torch.Generator(DEVICE).manual_seed(0)
        batch, heads, width, n, dtype = vars(problem).values()
        channels = heads * width
        rows = min(max(2 * batch, COLD_BYTES // problem.row_bytes), max(2 * batch, POOL_BYTES // problem.row_bytes))
        self.launches = max(LAUNCHES, min(64, COLD_BYTES // (batch * problem.row_bytes)))
        self.pool = torch.randn(rows, heads, width, n, device=DEVICE, generator=generator).to(dtype)
        self.slots = torch.stack(
            [torch.randperm(rows, device=DEVICE, generator=generator)[:batch] for _ in range(self.launches)]
        )

        def drawn(*shape: int) -> Any:
            return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)

        self.x, self.z = drawn(batch, heads, width), drawn(batch, heads, width)
        self.b, self.c = drawn(batch, GROUPS, n), drawn(batch, GROUPS, n)
        of_heads = (batch, heads, 1) if heads > 1 else (batch, 1, width)
        self.dt = drawn(*of_heads).expand(batch, heads, width)
        a = -torch.rand(heads, 1, 1, device=DEVICE, generator=generator) if heads > 1 else None
        self.a = (-torch.rand(1, width, n, device=DEVICE, generator=generator) if a is None else a).expand(heads, width, n)
        self.d = torch.randn(heads, 1, device=DEVICE, generator=generator).expand(heads, width)
        bias = torch.randn(*((heads, 1) if heads > 1 else (1, width)), device=DEVICE, generator=generator)
        self.bias = bias.expand(heads, width)
        self.kernel = minrnn_gen.compile({
            "model": cell_of(heads > 1), "hidden_size": channels, "state_size": n, "groups": GROUPS, "training": False,
            "precision": "bf16" if dtype is torch.bfloat16 else "fp32",
        })  # fmt: skip
        of_channels = self.a[..., 0].reshape(channels) if heads > 1 else self.a.reshape(channels, n)
        self.step: dict[str, Any] = {
            "x_t": torch.stack([array.reshape(batch, -1) for array in (self.dt, self.x, self.z)], 1),
            "bias": torch.stack([self.bias.reshape(-1), *torch.zeros(2, channels, device=DEVICE)]),
            "parameters": {"a": of_channels.contiguous(), "d": self.d.reshape(-1).contiguous()},
            "shared": {"b": self.b, "c": self.c},
        }
        self.states = {"h": self.pool.view(rows, channels, n)}

    def expected(self, slots: Any) -> Any:
        """Return y of a step from slots in float64."""
        given = (self.x, self.dt, self.a, self.b, self.c, self.d, self.z, self.bias)
        x, dt, a, b, c, d, z, bias = (array.double() for array in given)
        dt = torch.nn.functional.softplus(dt + bias)[..., None]
        h = torch.exp(dt * a) * self.pool[slots].double() + dt * x[..., None] * b[:, :, None]
        return (((h * c[:, :, None]).sum(-1) + d * x) * torch.nn.functional.silu(z)).flatten(1)


def contenders(arrays: Arrays, peers: dict[str, Callable[..., Any]]) -> dict[str, Callable[[int], Any]]:
    """Return what is measured by name: a function of the number of a launch that returns y, or nothing to compare."""
    kernel, step, states, slots = arrays.kernel, arrays.step, arrays.states, arrays.slots
    batch = slots.shape[1]
    half = torch.where(torch.arange(batch, device=DEVICE) % 2 == 0, slots, -1)
    carried = torch.float32
    count = max(2, min(arrays.launches, COLD_BYTES // (4 * states["h"][:batch].numel())))
    rows = [{"h": torch.randn_like(states["h"][:batch], dtype=carried)} for _ in range(count)]
    after_rows: list[Any] = []
    others = [torch.empty_like(arrays.pool[:batch]) for _ in range(2)]
    made = (min(2 * batch, len(arrays.pool)), DRAFT, arrays.pool.dtype)
    draft = kernel.cache(*made, like=arrays.pool)
    kept_states = Cache(kernel.executor, *new_states(kernel.executor, (), *made, arrays.pool))
    over_time = {
        "x": step["x_t"][:, None].expand(-1, DRAFT, -1, -1).contiguous(),
        "shared": {name: array[:, None].expand(-1, DRAFT, -1, -1).contiguous() for name, array in step["shared"].items()},
    }
    constants = {"parameters": step["parameters"], "bias": step["bias"]}
    # Half of the steps of a draft are kept.
    accepted, drafted = torch.full((batch,), (DRAFT + 1) // 2, device=DEVICE), torch.arange(batch, device=DEVICE)

    def gathered(number: int) -> Any:
        y, after = kernel.step(**step, state={"h": states["h"][slots[number]].to(carried)})
        states["h"][slots[number]] = after["h"].to(states["h"].dtype)
        return y

    def by_arguments(update: Callable[..., Any], number: int) -> Any:
        """Return what a function with the signature of mamba_ssm's gives."""
        given = (arrays.x, arrays.dt, arrays.a, arrays.b, arrays.c, arrays.d, arrays.z, arrays.bias)
        return update(arrays.pool, *given, dt_softplus=True, state_batch_indices=slots[number]).flatten(1)

    def drafted_in(cache: Cache) -> Callable[[int], None]:
        # A first draft, of which steps are then kept.
        kernel.verify_draft(**over_time, **constants, cache=cache, slots=drafted)

        def drafts(_: int) -> None:
            kernel.verify_draft(**over_time, **constants, cache=cache, slots=drafted, accepted=accepted)

        return drafts

    def rows_alone(number: int) -> None:
        # Results stay, so that each launch writes to memory of its own.
        after_rows.append(kernel.step(**step, state=rows[number % count]))
        del after_rows[:-count]

    def half_padded(number: int) -> None:
        kernel.step(**step, state=states, slots=half[number])

    def copied(number: int) -> None:
        others[number % 2].copy_(arrays.pool[number % 2 : number % 2 + batch])

    return {
        "copy": copied,
        "rows": rows_alone,
        "slots": lambda number: kernel.step(**step, state=states, slots=slots[number])[0],
        "half padded": half_padded,
        "gathered": gathered,
        "compat": lambda number: by_arguments(selective_state_update, number),
        **{name: lambda number, of=update: by_arguments(of, number) for name, update in peers.items()},  # type: ignore[misc]
        "draft": drafted_in(draft),
        "draft, states kept": drafted_in(kept_states),
    }


def measure(problem: Problem, peers: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return the median microseconds of a launch of each contender, and the errors of those that compute y; None: refused."""
    arrays = Arrays(problem)
    graphs: dict[str, Any] = {}
    row: dict[str, Any] = {"problem": problem.label}
    for name, run in contenders(arrays, peers).items():
        before = arrays.pool.clone()
        try:
            expected, y = arrays.expected(arrays.slots[0]), run(0)
            if y is not None:
                row[f"{name} error"] = float((y.double() - expected).abs().max() / expected.abs().max())
            torch.cuda.synchronize()
            graphs[name] = graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for number in range(arrays.launches):
                    run(number)
        except Exception as refused:  # of a peer, in words of its own
            graphs.pop(name, None)
            row[name] = f"{type(refused).__name__}: {' '.join(str(refused).split())[:80]}"
        arrays.pool.copy_(before)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(WARM_ROUNDS + ROUNDS):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= WARM_ROUNDS:
                times[name].append(start.elapsed_time(end) * 1e3 / arrays.launches)
    return row | {name: round(statistics.median(of), 2) for name, of in times.items()}


def peer(path: Path, name: str) -> Callable[..., Any]:
    """Return a function of another library from its source file, next to which is its softplus.py."""
    package = types.ModuleType("peer")
    package.__path__ = [str(path.parent)]
    stand_ins = {
        missing: types.ModuleType(missing) for missing in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "einops")
    }
    vars(stand_ins["einops"]).update(rearrange=None, repeat=None)
    with standing_in({"peer": package}):
        stand_ins["mamba_ssm.ops.triton.softplus"] = _loaded("peer.softplus", path.parent / "softplus.py")
        with standing_in(stand_ins):
            function: Callable[..., Any] = getattr(_loaded(f"peer.{path.stem}", path), name)
    return function


def _loaded(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
