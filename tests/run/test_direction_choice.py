"""Whether both directions run beside each other: by what the cost model expects, and within what the GPU holds at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import Occupied
from minrnn_gen.run.dense import direction_choice
from minrnn_gen.run.dense.direction_choice import DirectionsChoice, choose_directions
from minrnn_gen.run.expected_time import GAIN_LEAST, BackwardOrForward, Expected, expected_of

H200 = load_profile("h200")
BOTH = {"model": "lstm", "hidden_size": 512, "precision": "bf16", "input_size": 512, "direction": "bidirectional"}
CHAIN = Sizes(16, 1024)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return builder_of(BOTH, tmp_path)


def builder_of(asked: dict[str, Any], folder: Path) -> Builder:
    return Builder(load_spec(asked), Target(H200, b"", "spec"), Store(folder))


def choice_of(kernel: Kernel, kernel_pass: BackwardOrForward = "forward", sizes: Sizes = CHAIN) -> DirectionsChoice | None:
    return kernel.executor.gpu.directions_beside(kernel_pass, sizes)


def test_directions_whose_recurrences_are_chains_run_beside_each_other(builder: Builder) -> None:
    choice = choose_directions(builder, "forward", CHAIN)
    assert choice is not None and choice.sm_count == H200.sm_count // 2
    one_us, half_us = (expected_of(one, "forward", CHAIN).us for one in (builder, builder.half))
    assert choice.one_by_one_us > 2 * one_us and choice.predicted_us > half_us
    assert choice.predicted_us * GAIN_LEAST <= choice.one_by_one_us
    for us in (choice.predicted_us, choice.one_by_one_us):
        assert f"{us:.0f} us" in choice.in_words


@pytest.mark.parametrize("sizes", [Sizes(4096, 128), Sizes(16, 16), Sizes(0, 1024), Sizes(16, 0)])
def test_what_gains_nothing_stays_in_turn(sizes: Sizes, builder: Builder) -> None:
    assert choose_directions(builder, "forward", sizes) is None


def test_a_half_that_takes_twice_as_long_gains_nothing(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = expected_of(builder, "forward", CHAIN)

    def slowed(times: float) -> Any:
        return lambda one, *_: expected if one is builder else replace(expected, us=times * expected.us)

    monkeypatch.setattr(direction_choice, "expected_of", slowed(1.0))
    assert choose_directions(builder, "forward", CHAIN)
    monkeypatch.setattr(direction_choice, "expected_of", slowed(2.0))
    assert choose_directions(builder, "forward", CHAIN) is None


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
def test_blocks_that_wait_for_each_other_are_resident_at_once(kernel_pass: BackwardOrForward, tmp_path: Path) -> None:
    builder = builder_of(BOTH | {"hidden_size": 1024}, tmp_path)
    assert choose_directions(builder, kernel_pass, CHAIN)
    half = builder.half
    plan = half.solve(half.choose(kernel_pass, half.hinted_specialization, CHAIN)).plan()
    assert plan.is_cooperative and 2 * plan.launch.resident_blocks <= H200.sm_count * plan.budget.blocks_per_sm


def test_halves_that_are_no_whole_clusters_stay_in_turn(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a GPU with so few SMs a half is said to hold a cluster of 16, and the whole no two.
    few = replace(builder, target=Target(H200.model_copy(update={"sm_count": 34}), b"few", "spec"))
    for waits_in_grid in (False, True):
        expected = Expected(1000.0, Occupied(16, 16, waits_in_grid))
        monkeypatch.setattr(direction_choice, "expected_of", lambda *_, expected=expected: expected)
        assert (choose_directions(few, "forward", CHAIN) is None) == waits_in_grid
    stepwise = Expected(1000.0, None)
    monkeypatch.setattr(direction_choice, "expected_of", lambda *_: stepwise)
    assert choose_directions(builder, "forward", CHAIN) is None


def test_the_environment_may_forbid_it(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(builder)
    for value in ("", "auto"):
        monkeypatch.setenv("MINRNN_WAVEFRONT", value)
        choice = choice_of(kernel)
        assert choice is not None and choice == choose_directions(builder, "forward", CHAIN)
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    assert choice_of(kernel) is None


@pytest.mark.parametrize("asked", [BOTH | {"direction": "reverse"}, BOTH | {"model": "min_gru"}])
def test_one_direction_and_scans_have_nothing_beside_them(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")
    assert choice_of(Kernel(builder_of(asked, tmp_path))) is None


def test_nothing_that_was_measured_is_taken_for_a_half(builder: Builder) -> None:
    known = replace(builder, preferred=lambda: pytest.fail("of the whole GPU"))
    assert known.half.preferred is None and known.half.target.profile == H200.share(2)
    assert known.half is known.half
