"""The ways of spreading a scan over a GPU, and kernels that take one of them, whatever the cost model prefers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minrnn_gen.build.hinted import HintedBuilder
from minrnn_gen.build.store import Store, digest
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import Infeasible
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelKey, KernelPass
from minrnn_gen.plan.solver import Solution
from minrnn_gen.run.target import target_of


@dataclass(frozen=True)
class Strategy:
    """A way of spreading a scan, by the variables that are given with it; few steps per tile, so that tests are short."""

    name: str
    variables: Mapping[str, int]

    @property
    def takes_tickets(self) -> bool:
        return bool(self.variables.get("lookback"))

    def __str__(self) -> str:
        return self.name


def _strategy(name: str, **variables: int) -> Strategy:
    return Strategy(name, {"lookback": 0, **variables})


# With lanes along the channels (BTD and TBD), and with lanes along time (BDT).
_OF_CHANNELS = (
    _strategy("one_warp", cluster_blocks=1, time_warps=1),
    _strategy("warps", cluster_blocks=1, time_warps=4),
    _strategy("cluster_of_2", cluster_blocks=2, time_warps=1),
    _strategy("cluster_of_8", cluster_blocks=8, time_warps=2),
    _strategy("cluster_of_16", cluster_blocks=16, time_warps=2),
    _strategy("tickets", lookback=1, time_warps=4),
    Strategy("cooperative", {"lag": 1, "time_warps": 4, "steps_per_lane": 8, "channels_per_lane": 1}),
)
_OF_TIME = (
    _strategy("one_warp", time_warps=1),
    _strategy("warps", time_warps=4),
    # More than one vector per lane where steps have 4 bytes or more.
    _strategy("tickets", lookback=1, steps_per_lane=8),
)
STRATEGIES = {"BTD": _OF_CHANNELS, "TBD": _OF_CHANNELS, "BDT": _OF_TIME}
# (layout, strategy), for `parametrize`; and those in which no block waits for another.
EVERY_WAY = tuple((layout, strategy) for layout, strategies in STRATEGIES.items() for strategy in strategies)
_SERIAL = ("one_warp", "warps")
SERIAL = tuple((layout, one) for layout, one in EVERY_WAY if one.name in _SERIAL)
# Columns, at most, of the calls that are made of a cooperative kernel.
COLUMNS_MOST = 16


@dataclass(frozen=True)
class StrategyBuilder(HintedBuilder):
    """Builds the best predicted candidate that takes `strategy`; kernels of a single step and of dropout are the builder's."""

    strategy: Strategy = field(kw_only=True)

    def solutions(self, key: KernelKey) -> Iterator[Solution]:
        solutions = super().solutions(key)
        if key.kernel_pass in ("step", "dropout"):
            return solutions
        return iter(having(solution_of(solutions, self.strategy.variables), self.strategy.variables))

    def request_key(self, key: KernelKey) -> str:
        return digest(super().request_key(key), json.dumps(dict(self.strategy.variables)))


def solution_of(solutions: Iterable[Solution], variables: Mapping[str, int]) -> Solution:
    """Return the candidates of the family that has these variables; raises Infeasible where there are none."""
    for solution in solutions:
        if variables.keys() <= solution.candidates[0].keys():
            return solution
    raise Infeasible(f"no family has the variables {dict(variables)}")


def having(solution: Solution, variables: Mapping[str, int]) -> tuple[Solution]:
    """Return only the candidates with these variables; raises Infeasible where there are none."""
    candidates = tuple(one for one in solution.candidates if variables.items() <= one.items())
    if not candidates:
        raise Infeasible(f"{solution.problem.gpu.name} has no {solution.family.name} with {dict(variables)}")
    return (replace(solution, candidates=candidates),)


def kernel_taking(strategy: Strategy, store: Store, spec: Mapping[str, Any]) -> Kernel:
    """Compile `spec` for the GPU at hand (or the spec's) to a kernel all of whose scans take `strategy`.

    Raises Infeasible where the GPU has no such forward, or, where the spec asks for training, no such backward.
    """
    loaded = load_spec(spec)
    builder = StrategyBuilder(loaded, target_of(loaded), store, strategy=strategy)
    passes: tuple[KernelPass, ...] = ("forward", "backward") if loaded.training else ("forward",)
    specialization = builder.hinted_specialization
    built = tuple(builder.build(builder.key_of(one, specialization)) for one in passes)
    assert all(strategy.variables.items() <= one.plan.variables.items() for one in built)
    return Kernel(builder, built)


def round_steps(plan: KernelPlan) -> int:
    """Return how many steps of a column are walked between two exchanges."""
    if plan.strategy == "cooperative":
        return plan.launch.tile_steps * max(1, plan.launch.resident_blocks // COLUMNS_MOST)
    return plan.launch.tile_steps * plan.variables.get("cluster_blocks", 1) * plan.variables.get("time_parts", 1)


def telling_lengths(kernel: Kernel) -> tuple[int, ...]:
    """Return lengths of sequences around everything that the scans of `kernel` count by, from nothing on."""
    counted = {1, 2, 32}
    for plan in kernel.plans.values():
        counted |= {round_steps(plan), 3 * round_steps(plan)}
        if plan.launch.group_tiles:
            counted |= {
                plan.launch.group_tiles * plan.launch.tile_steps,
                (2 * plan.launch.group_tiles + 1) * plan.launch.tile_steps,
            }
    return tuple(sorted({0} | {count + beside for count in counted for beside in (-1, 0, 1)}))
