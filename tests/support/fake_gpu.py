"""Fake GPU: a clock that only counts, and NumPy arrays with the names of torch that the benchmark uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.report.record import COPY


@dataclass
class FakeClock:
    """Clock on which a run takes `costs_ms()`, with a record of the runs it timed."""

    costs_ms: Callable[[], float] = lambda: 1.0
    now_seconds: float = 0.0
    timed: list[Arrays] = field(default_factory=list)
    poisoned: int = 0
    hosts: list[bool] = field(default_factory=list)

    def time(self, run: Run, on_host: bool) -> tuple[float, Arrays]:
        results, elapsed_ms = run(), self.costs_ms()
        self.now_seconds += elapsed_ms / 1e3
        self.timed.append(results)
        self.hosts.append(on_host)
        return elapsed_ms, results

    def poison_of(self, _: Arrays) -> Callable[[], None]:
        def poison() -> None:
            self.poisoned += 1

        return poison

    def seconds(self) -> float:
        return self.now_seconds

    def finish(self) -> None:
        pass


class Tensor(np.ndarray):  # type: ignore[type-arg]
    """NumPy array with the methods of a tensor, as torch defines them."""

    def transpose(self, first: int, second: int) -> Tensor:  # type: ignore[override]
        return self.swapaxes(first, second)

    @property
    def T(self) -> Tensor:
        return self.swapaxes(0, 1)

    def permute(self, *axes: Any) -> Tensor:
        return tensor(np.transpose(np.asarray(self), axes[0] if len(axes) == 1 else axes))

    def double(self) -> Tensor:
        return self.astype(np.float64)

    def float(self) -> Tensor:
        return self.astype(np.float32)

    def to(self, dtype: Any) -> Tensor:
        return self.astype(dtype)

    def contiguous(self) -> Tensor:
        return tensor(np.ascontiguousarray(self))

    def detach(self) -> Tensor:
        return self

    def select(self, axis: int, index: int) -> Tensor:
        return tensor(np.take(np.asarray(self), index, axis))

    def chunk(self, count: int, dim: int) -> list[Tensor]:
        return [tensor(part) for part in np.split(np.asarray(self), count, axis=dim)]

    def flatten(self, first: int, last: int) -> Tensor:  # type: ignore[override]
        return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])

    def sigmoid_(self) -> Tensor:
        self[...] = 1 / (1 + np.exp(-np.asarray(self)))
        return self

    def exp(self) -> Tensor:
        return np.exp(self)

    def log(self) -> Tensor:
        return np.log(self)

    def cumsum(self, dim: int) -> Tensor:  # type: ignore[override]
        return tensor(np.cumsum(np.asarray(self), axis=dim))

    def logcumsumexp(self, dim: int) -> Tensor:
        return tensor(np.logaddexp.accumulate(np.asarray(self), axis=dim))


def tensor(array: Any) -> Tensor:
    return np.asarray(array).view(Tensor)


def _stack(arrays: Sequence[Any]) -> Tensor:
    return tensor(np.stack([np.asarray(array) for array in arrays]))


functional = SimpleNamespace(
    linear=lambda x, weight: tensor(np.asarray(x) @ np.asarray(weight).T),
    softplus=lambda x: tensor(np.logaddexp(np.asarray(x), np.zeros_like(x))),
    relu=lambda x: tensor(np.maximum(np.asarray(x), 0)),
)
torch = SimpleNamespace(
    **{name: getattr(np, name) for name in ("empty_like", "exp", "flip", "logaddexp", "ones_like", "tanh", "zeros_like")},
    equal=np.array_equal,
    concatenate=lambda arrays, axis=0: tensor(np.concatenate([np.asarray(array) for array in arrays], axis)),
    cat=lambda arrays, dim: tensor(np.concatenate(arrays, axis=dim)),
    stack=_stack,
    where=lambda condition, first, second: tensor(np.where(condition, first, second)),
    zeros=lambda shape, dtype, **_: tensor(np.zeros(shape, dtype)),
    no_grad=nullcontext,
    Tensor=Tensor,
    nn=SimpleNamespace(functional=functional),
)


@dataclass(frozen=True)
class FakeGpu:
    """Random arrays and a copy, as `bench.harness.gpu.Gpu` has them, in NumPy and float32."""

    torch: Any = field(default_factory=lambda: torch)
    seed: int = 0
    name: str = "a GPU that is none"
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def dtype(self, precision: str) -> Any:
        return {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[precision]

    def normal(self, *shape: int) -> Tensor:
        return tensor(self.generator.standard_normal(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Tensor:
        return tensor(self.generator.random(shape, dtype=np.float32))

    def copy(self, moved_bytes: int) -> Contender:
        assert moved_bytes > 0
        return Contender(COPY, lambda: dict)

    def kernel_shares(self, run: Run) -> dict[str, float]:
        run()
        return {"scan_forward": 0.75, "gemm": 0.25}

    def release(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def seconds(self) -> float:
        return time.perf_counter()


class OnHost(Gpu):
    """GPU whose arrays are real torch's, on the CPU."""

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(shape, generator=self.torch.Generator().manual_seed(sum(shape)))

    def graph_of(self, run: Run) -> Run:
        run()
        return run

    def peak_bytes(self, run: Run) -> int:
        """Return the bytes of the results: torch does not count memory of the host."""
        return sum(result.nbytes for result in run().values())

    def finish(self) -> None:
        pass
