"""Candidates of the persistent kernels: a sample of them all, and kernels that are one of them."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.scan_strategies import having

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.hinted import HintedBuilder
from minrnn_gen.build.store import Store, cache_folder, digest
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelKey, KernelPass
from minrnn_gen.plan.solver import Solution
from minrnn_gen.run.target import target_of

CELLS = ("lstm", "gru", "elman", "slstm")
# A warp's units, less than two warps', whole and uneven numbers of warps and blocks, up to all of a cluster, and of a grid.
HEAD_DIMS = (16, 24, 64, 100, 128, 200, 256, 512, 600)
PRECISIONS = ("bf16", "fp16")
PASSES: tuple[KernelPass, ...] = ("forward", "backward")


@dataclass(frozen=True)
class Sample:
    """One candidate of one pass of a cell with a head of `head_dim` units."""

    kernel_pass: KernelPass
    cell: str
    head_dim: int
    precision: str
    variables: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        chosen = ", ".join(f"{name} {value}" for name, value in self.variables)
        return f"{self.kernel_pass} of {self.cell} 1 x {self.head_dim} {self.precision}: {chosen}"

    @property
    def pairs(self) -> tuple[tuple[object, ...], ...]:
        """Every two choices of it, of its cell."""
        choices = (*self.variables, ("head_dim", self.head_dim), ("precision", self.precision))
        return tuple((self.cell, *pair) for pair in itertools.combinations(choices, 2))


def spec_of(cell: str, head_dim: int, precision: str, gpu: str | None = None) -> Spec:
    return load_spec({"model": cell, "hidden_size": head_dim, "precision": precision, "recurrent_bias": True, "gpu": gpu})


@functools.cache
def everything(kernel_pass: KernelPass, gpu: str | None) -> tuple[Sample, ...]:
    """Return every candidate of the persistent kernels for `gpu`, or for the one at hand; where there are none, nothing."""
    found = []
    for cell, head_dim, precision in itertools.product(CELLS, HEAD_DIMS, PRECISIONS):
        spec = spec_of(cell, head_dim, precision, gpu)
        builder = Builder(spec, target_of(spec), Store(cache_folder()))
        solution = builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization))
        if solution.family.strategy == "persistent":
            found += [Sample(kernel_pass, cell, head_dim, precision, tuple(one.items())) for one in solution.candidates]
    return tuple(found)


@functools.cache
def sampled(kernel_pass: KernelPass, gpu: str | None = None) -> tuple[Sample, ...]:
    """Return candidates, the same every time, in which for each cell every two choices that go together do."""
    shuffled = list(everything(kernel_pass, gpu))
    random.Random(0).shuffle(shuffled)
    covered: set[tuple[object, ...]] = set()
    chosen = []
    for sample in shuffled:
        if not covered.issuperset(sample.pairs):
            chosen.append(sample)
            covered.update(sample.pairs)
    return tuple(chosen)


@dataclass(frozen=True)
class SampleBuilder(HintedBuilder):
    """Builds the candidate of `sample` for its pass, in every specialization; the other pass is as it is for everybody."""

    sample: Sample = field(kw_only=True)

    def solutions(self, key: KernelKey) -> Iterator[Solution]:
        solutions = super().solutions(key)
        if key.kernel_pass != self.sample.kernel_pass:
            return solutions
        return iter(having(next(solutions), dict(self.sample.variables)))

    def request_key(self, key: KernelKey) -> str:
        request = super().request_key(key)
        return digest(request, json.dumps(self.sample.variables)) if key.kernel_pass == self.sample.kernel_pass else request


def kernel_of_sample(sample: Sample, store: Store, gpu: str | None = None) -> Kernel:
    """Compile a sample for `gpu`, or for the one at hand; raises CompileFailed where it does not keep its plan's promises."""
    spec = spec_of(sample.cell, sample.head_dim, sample.precision, gpu)
    builder = SampleBuilder(spec, target_of(spec), store, sample=sample)

    def built(kernel_pass: KernelPass) -> BuiltKernel:
        return builder.build(builder.key_of(kernel_pass, builder.hinted_specialization))

    return Kernel(builder, tuple(map(built, PASSES[: 1 + PASSES.index(sample.kernel_pass)])))
