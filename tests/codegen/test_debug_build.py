"""A debug build: the same kernels, in which no wait is without end. Offline, without a GPU."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass, replace

import pytest
from support.rendered_kernels import builder_of
from support.small_problems import FAMILIES, solution_wanted
from test_templates import TEMPLATES, code_lines

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.codegen.render import render
from minrnn_gen.config.environment import debug_build_is_asked_for
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution

PASSES: tuple[KernelPass, ...] = ("forward", "backward")


@dataclass(frozen=True)
class Way:
    """The best predicted kernels of a problem with these values of variables."""

    model: str
    gpu: str
    precision: str
    layout: str
    variables: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return "-".join(
            (self.model, self.gpu, self.precision, self.layout, *(f"{name}_{value}" for name, value in self.variables))
        )

    @property
    def builder(self) -> Builder:
        return builder_of(self.model, self.gpu, precision=self.precision, layout=self.layout, hidden_size=64)

    def built(self, kernel_pass: KernelPass, is_debug: bool) -> BuiltKernel:
        return replace(self.builder, waits_are_bounded=is_debug).build_candidate(*ranked(self, kernel_pass))


@functools.cache
def ranked(way: Way, kernel_pass: KernelPass) -> tuple[Solution, int]:
    """Return the candidates of a way and the rank of the best predicted, which both builds have."""
    builder = way.builder
    key = builder.key_of(kernel_pass, builder.hinted_specialization)
    solution = solution_wanted(builder.solutions(key), dict(way.variables))
    return solution, next(rank for rank, one in enumerate(solution.candidates) if set(way.variables) <= set(one.items()))


CLUSTER, GRID, TICKETS = (("cluster_blocks", 4),), (("grid_blocks", 4),), (("lookback", 1),)
WARPGROUPS = (("row_tiles", 1), ("column_groups", 1))
# What waits for mail, for memory, and for tiles, with lanes along the channels and along time.
WAITING = (
    Way("lstm", "h100", "bf16", "BTD", CLUSTER),
    Way("gru", "rtx5090", "fp16", "TBD", CLUSTER),
    Way("lstm", "a100", "bf16", "BTD", GRID),
    Way("lstm", "h200", "bf16", "BTD", WARPGROUPS),
    Way("slstm", "rtx4090", "fp32", "TBD", GRID),
    Way("min_lstm", "h100", "fp32", "BTD", CLUSTER),
    Way("min_gru", "h200", "bf16", "BDT", TICKETS),
    Way("qrnn", "a100", "fp64", "BTD", TICKETS),
    Way("rg_lru", "rtx5090", "fp32", "BDT", TICKETS),
)
NOT_WAITING = (
    Way("lstm", "a100", "bf16", "BTD", (("cluster_blocks", 1), ("grid_blocks", 1))),
    Way("min_gru", "h200", "fp32", "BTD", (("cluster_blocks", 1), ("lookback", 0))),
    Way("ind_rnn", "h200", "fp32", "BTD", (("threads", 32), ("channels_per_lane", 1))),
)
OF_DEBUG_BUILDS = ("check_timeout", "report_timeout", "printf", "trap", "globaltimer", "debug build")


def missing(*_: object) -> None:
    raise ToolchainMissing("only the text is wanted")


@pytest.mark.parametrize("way", (*WAITING, *NOT_WAITING), ids=str)
def test_waits_end_exactly_where_it_is_asked_for(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the release is left out or changed but the lines that wait; where nothing waits only the header says it."""
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", missing)
    for kernel_pass in PASSES:
        release, debug = (way.built(kernel_pass, is_debug) for is_debug in (False, True))
        assert replace(debug.plan, waits_are_bounded=False) == release.plan and debug.plan.waits_are_bounded
        assert not any(word in release.source for word in OF_DEBUG_BUILDS)
        lines = difflib.unified_diff(release.source.splitlines(), debug.source.splitlines(), n=0, lineterm="")
        differing = [line for line in lines if line[0] in "+-" and line not in ("--- ", "+++ ")]
        removed = [line for line in differing if line[0] == "-"]
        assert "debug build" in debug.source.split("*/")[0] and release.digest != debug.digest
        if way in NOT_WAITING:
            assert len(differing) == 1
        else:
            assert all(word in debug.source for word in OF_DEBUG_BUILDS)
            assert all("mbarrier_wait(" in line or "wait_for(" in line or "is_empty()" in line for line in removed)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_section_stands_twice(family: str) -> None:
    """Templates that a kernel includes may include the same wrapper, which is then defined twice."""
    name, given, wanted, _, passes = FAMILIES[family][0]
    spec = {"precision": "fp32", "gpu": "h200"} | given
    model, gpu, precision = (spec.pop(key) for key in ("model", "gpu", "precision"))
    builder = replace(builder_of(model, gpu, precision=precision, **spec), waits_are_bounded=True)
    input_size = spec.get("input_size", 0) if "channel_warpgroups" in wanted else 0
    specialization = replace(builder.hinted_specialization, input_size=input_size)
    kernel_pass = "forward" if input_size else passes[0]
    solution = solution_wanted(builder.solutions(builder.key_of(kernel_pass, specialization)), wanted)
    plan = replace(solution.plan(0), waits_are_bounded=True)
    text = render(plan, builder.lowered_for(kernel_pass), ())
    sections = re.findall("^// ---- .*", text, re.M)
    assert [section for section in sections if sections.count(section) > 1] == [], name


# Every day one pass of those that wait for mail and of those that wait for tiles.
@pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
@pytest.mark.parametrize(
    ("way", "kernel_pass"),
    [
        pytest.param(way, kernel_pass, marks=() if at == 0 and turn % 8 == 0 else pytest.mark.matrix_full)
        for turn, way in enumerate(WAITING)
        for at, kernel_pass in enumerate(PASSES)
    ],
    ids=str,
)
def test_it_keeps_the_promises_of_the_release(way: Way, kernel_pass: KernelPass) -> None:
    """`build_candidate` holds both to one plan, so that a debug build runs what hangs and not its neighbour."""
    for is_debug in (False, True):
        assert way.built(kernel_pass, is_debug).resources


def test_every_loop_without_a_count_is_bounded() -> None:
    """The templates that wait in a loop, and no others, have an end for it."""
    looping = {name for name in TEMPLATES if any(re.search(r"\bwhile\b", line) for _, line in code_lines(TEMPLATES[name]))}
    bounded = {name for name, text in TEMPLATES.items() if "check_timeout(since" in text}
    assert (
        looping
        == bounded
        == {
            "ptx/mbarrier.cuh.j2",
            "exchanges/means_grid.cuh.j2",
            "parts/affine_packet.cuh.j2",
            "parts/coupled_enter.cuh.j2",
            "parts/decode_gather.cuh.j2",
            "parts/diagonal_exchange.cuh.j2",
            "parts/state_packet.cuh.j2",
            "parts/grid_exchange.cuh.j2",
            "parts/large_batch_grid.cuh.j2",
            "parts/large_batch_fetch.cuh.j2",
        }
    )


@pytest.mark.parametrize(("value", "is_asked_for"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch, value: str | None, is_asked_for: bool) -> None:
    """When a builder is made, and not before or after."""
    monkeypatch.delenv("MINRNN_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("MINRNN_DEBUG", value)
    assert debug_build_is_asked_for() is is_asked_for
    builder = builder_of("min_gru")
    monkeypatch.setenv("MINRNN_DEBUG", "1")
    assert builder.waits_are_bounded is is_asked_for


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_DEBUG", "yes")
    with pytest.raises(BadInput, match=r"MINRNN_DEBUG is 'yes'; allowed: 1 .* 0"):
        builder_of("min_gru")
