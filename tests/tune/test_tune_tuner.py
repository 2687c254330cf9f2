"""Tuning a spec: the winner is right and nearly the fastest, an interruption costs one visit, and compile() takes what won."""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_compiler import BuilderOf, Compiler
from support.fake_measurer import FakeMeasurer, spread_us

from minrnn_gen import api
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.explain import explain
from minrnn_gen.build.projected import projected_at
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.tune import device, lookup, session, tuner
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.history import History, open_history
from minrnn_gen.tune.lookup import TunedLookup
from minrnn_gen.tune.racing import ALIKE
from minrnn_gen.tune.results import CandidateKey, key_of
from minrnn_gen.tune.tuner import KernelTuning, Limits, TunedKernel, kernels_of, tune

FEW = 6
# Times follow what is measured, not what is predicted, so that the first pick is seldom the fastest.
a_cache_each = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4, deadline=None)


def pool_of(builder: Builder, measurer: FakeMeasurer) -> CandidatePool:
    key = builder.key_of("forward", builder.hinted_specialization)
    return CandidatePool(builder, key, measurer, open_history(builder.store))


def raced(builder: Builder, measurer: FakeMeasurer, top: int | None = FEW, seconds: float = 60.0) -> TunedKernel:
    """Race the candidates of the forward alone."""
    return KernelTuning(pool_of(builder, measurer), top, seconds, lambda _: None).run()


def candidates_of(builder: Builder, top: int | None = FEW) -> list[CandidateKey]:
    return list(pool_of(builder, FakeMeasurer()).ranked)[:top]


def winner_of(tuned: TunedKernel) -> CandidateKey:
    assert tuned.winner is not None
    return key_of(tuned.winner.plan.name, tuned.winner.plan.variables)


def emptied(builder: Builder) -> Builder:
    shutil.rmtree(builder.store.folder, ignore_errors=True)
    return builder


def taken(builder: Builder) -> CandidateKey:
    plan = builder.build(builder.key_of("forward", builder.hinted_specialization)).plan
    return key_of(plan.name, plan.variables)


@pytest.mark.usefixtures("compiler")
@a_cache_each
@given(st.integers(0, 2**32), st.floats(0, 0.02), st.sets(st.integers(0, FEW - 1), max_size=4))
def test_the_winner_is_right_and_nearly_the_fastest(builder_of: BuilderOf, seed: int, noise: float, wrong: set[int]) -> None:
    """Where the fastest are the wrong ones, too: each of them is checked before it has a time, and never has one."""
    builder = emptied(builder_of())
    entrants = candidates_of(builder, FEW + len(wrong))
    bad = {entrants[one] for one in wrong}

    def truth_us(one: CandidateKey) -> float:
        return 0.1 if one in bad else 10 + 5 * random.Random(f"{seed} {one}").random()

    measurer = FakeMeasurer(truth_us, noise, bad.__contains__, seed=seed)
    tuned = raced(builder, measurer)
    # What is wrong took its place among those that were asked for, as it was measured.
    right = set(entrants[:FEW]) - bad
    assert tuned.outcomes == {"measured": len(right)} | ({"wrong": len(bad)} if bad else {})
    assert not bad & set(measurer.timed) and bad <= set(measurer.checked)
    assert truth_us(winner_of(tuned)) <= (1 + ALIKE + 5 * noise) * min(map(truth_us, right))
    assert taken(builder_of()) == winner_of(tuned)


@pytest.mark.matrix_full
@a_cache_each
@given(st.integers(0, 20))
def test_an_interruption_at_any_point_costs_the_visit_that_it_met(compiler: Compiler, builder_of: BuilderOf, at: int) -> None:
    builder = emptied(builder_of())
    first = FakeMeasurer(interrupt_at=at)
    before = raced(builder, first)
    assert before.ended == ("interrupted" if first.interrupt_at is None else "decided")
    # What is known by then is taken.
    assert (before.winner is None) == (at == 0)
    assert not first.timed or spread_us(winner_of(before)) <= (1 + 0.1) * min(map(spread_us, first.timed))
    second = FakeMeasurer(seed=1)
    after = raced(builder_of(), second)
    # Nobody is checked twice in one setting, nor visited first twice, and a race that is over stays over.
    assert set(first.checked[: len(first.timed)]).isdisjoint(second.checked) and after.ended == "decided"
    assert spread_us(winner_of(after)) <= (1 + ALIKE + 0.05) * min(map(spread_us, candidates_of(builder)))
    third = FakeMeasurer()
    calls = compiler.calls
    again = raced(builder_of(), third)
    assert (third.timed, third.checked, winner_of(again)) == ([], [], winner_of(after)) and compiler.calls <= calls + 1


@pytest.mark.usefixtures("compiler")
def test_what_was_measured_by_a_longer_run_is_not_forgotten_by_a_shorter(builder_of: BuilderOf) -> None:
    last = candidates_of(builder_of())[-1]

    def truth_us(one: CandidateKey) -> float:
        return 1.0 if one == last else 9.0

    raced(builder_of(), FakeMeasurer(truth_us))
    assert winner_of(raced(builder_of(), FakeMeasurer(truth_us), top=1, seconds=0.0)) == last


def test_who_breaks_a_promise_makes_room_and_who_fails_is_not_asked_again(compiler: Compiler, builder_of: BuilderOf) -> None:
    builder = builder_of()
    everyone = candidates_of(builder, None)
    broken, failing = everyone[0], everyone[1]
    compiler.breaks = lambda variables: dict(variables) == dict(broken[1])
    tuned = raced(builder, FakeMeasurer(failing=failing.__eq__))
    assert tuned.outcomes == {"broken": 1, "failed": 1, "measured": FEW - 1} and tuned.first_us is None
    # The next run asks neither of them, and so reaches one further.
    calls = compiler.calls
    again = FakeMeasurer()
    assert raced(builder_of(), again).outcomes == {"broken": 1, "failed": 1, "measured": FEW}
    assert failing not in again.checked and compiler.calls > calls


def test_who_spills_a_few_values_is_raced_and_found_again(compiler: Compiler, builder_of: BuilderOf) -> None:
    """A kernel that `compile` would take is one that tuning measures, and a winner of tuning one that `compile` takes."""
    builder = builder_of()
    spilling = candidates_of(builder)[0]
    compiler.spill_bytes, compiler.breaks = 16, lambda variables: dict(variables) == dict(spilling[1])
    tuned = raced(builder, FakeMeasurer(lambda one: 1.0 if one == spilling else 9.0))
    assert tuned.outcomes == {"measured": FEW} and winner_of(tuned) == spilling


@pytest.mark.usefixtures("compiler")
def test_a_budget_ends_after_the_first_pick_at_the_least(builder_of: BuilderOf) -> None:
    builder = builder_of()
    tuned = raced(builder, FakeMeasurer(), seconds=0.0)
    assert (tuned.ended, tuned.outcomes, winner_of(tuned)) == ("budget", {"measured": 1}, candidates_of(builder)[0])


@pytest.mark.usefixtures("compiler")
def test_every_kernel_of_a_call_and_its_gradients_is_tuned(builder_of: BuilderOf) -> None:
    def passes(**spec: Any) -> list[tuple[str, bool, str]]:
        kernels = kernels_of(builder_of(**spec))
        return [(key.kernel_pass, key.specialization.reverse, key.specialization.states_out) for key in kernels]

    assert passes() == [("forward", False, "none"), ("step", False, "none")]
    assert passes(model="min_gru_log", direction="reverse")[0] == ("forward", True, "none")
    assert [name for name, _, _ in passes(model="lstm", training=True)] == ["forward", "forward", "backward"]
    both = passes(direction="bidirectional", training=True)
    assert {one for one in both if one[0] == "backward"} == {("backward", False, "none"), ("backward", True, "none")}
    builder = builder_of(training=True)
    tuned = list(tune(builder, FakeMeasurer(), open_history(builder.store), Limits(60.0, 2)))
    settings_of = [one.setting for one in tuned]
    assert [(its.kernel_pass, its.specialization, (its.batch, its.time)) for its in settings_of] == list(kernels_of(builder))
    assert all(one.ended == "decided" and one.winner for one in tuned)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("model", ["min_gru", "gru"])
def test_every_strategy_has_its_turn_and_one_that_wins_is_taken(builder_of: BuilderOf, model: str) -> None:
    """Whatever the model thinks of it: its first pick is measured, however few are."""
    builder = builder_of(model=model, precision="bf16")
    families = [
        solution.family.name for solution in builder.solutions(builder.key_of("forward", builder.hinted_specialization))
    ]
    assert len(families) > 1
    for family in families:
        measurer = FakeMeasurer(truth_us=lambda one, family=family: 1.0 if one[0] == family else 100.0)  # type: ignore[misc]
        won = raced(emptied(builder), measurer, top=len(families))
        assert {one[0] for one in measurer.timed} == set(families)
        assert winner_of(won)[0] == taken(builder)[0] == taken(builder_of(model=model, precision="bf16"))[0] == family


@pytest.mark.usefixtures("compiler")
def test_a_scan_that_multiplies_x_itself_is_tuned_and_found_again(builder_of: BuilderOf) -> None:
    """By calls of these sizes, and of sizes near them: also where kernels are compiled anew, from the results alone."""
    spec = {"hidden_size": 512, "input_size": 512, "precision": "bf16", "batch": 1024, "time": 512}
    builder = builder_of(**spec)
    key = next(key for key in kernels_of(builder) if key.specialization.input_size)
    pool = CandidatePool(builder, key, FakeMeasurer(), open_history(builder.store))
    first, *_, last = pool.ranked
    assert taken_by_calls(builder, 1024, 512) == first
    pool.measurer = FakeMeasurer(lambda one: 1.0 if one == last else 9.0)
    assert winner_of(KernelTuning(pool, None, 60.0, lambda _: None).run()) == last
    builder_of().store.clear()
    for _ in ("compiled anew", "as it was kept"):
        again = builder_of(**spec)
        assert [taken_by_calls(again, *sizes) for sizes in ((1024, 512), (700, 512))] == [last] * 2
        assert "measured" in again.build(again.choose("forward", key.specialization, key.sizes)).chosen
    assert taken_by_calls(builder_of(**spec), 64, 512) == first


@pytest.mark.usefixtures("compiler")
def test_a_backward_of_joined_products_is_tuned_and_takes_what_was_best_apart_until_then(builder_of: BuilderOf) -> None:
    spec = {"model": "lstm", "hidden_size": 128, "input_size": 64, "precision": "bf16", "training": True, "time": 64}
    builder = builder_of(**spec, batch=1024)
    keys = {key.kernel_pass: key for key in kernels_of(builder)}
    assert keys.keys() == {"forward", "backward"} and keys["backward"].specialization.products_added
    apart = next(
        key for key in kernels_of(builder_of(**spec | {"input_size": None}, batch=1024)) if key.kernel_pass == "backward"
    )
    history, taken = open_history(builder.store), []
    for key, place in ((apart, 1), (keys["backward"], 2)):
        pool = CandidatePool(builder, key, FakeMeasurer(), history)
        best = [*pool.ranked][place]
        pool.measurer = FakeMeasurer(lambda one, best=best: 1.0 if one == best else 9.0)  # type: ignore[misc]
        assert winner_of(KernelTuning(pool, None, 60.0, lambda _: None).run()) == best
        builder.store.clear()
        again = builder_of(**spec, batch=1024)
        built = again.build(again.choose(*keys["backward"]))
        taken.append((key_of(built.plan.name, built.plan.variables), best))
    assert [found == best for found, best in taken] == [True, True]


def taken_by_calls(builder: Builder, batch: int, time: int) -> CandidateKey:
    specialization = projected_at(builder, Sizes(batch, time))
    assert specialization is not None
    plan = builder.build(builder.choose("forward", specialization, Sizes(batch, time))).plan
    return key_of(plan.name, plan.variables)


@pytest.mark.usefixtures("compiler")
def test_what_was_measured_is_taken_without_measuring(builder_of: BuilderOf) -> None:
    """By what was there, by an empty cache, for sizes that are near; never for another GPU; and explain says so."""
    model_pick = taken(builder_of())
    slow_first = FakeMeasurer(lambda one: 100.0 if one == model_pick else spread_us(one))
    tuned = raced(builder_of(), slow_first)
    found = builder_of().build(builder_of().key_of("forward", builder_of().hinted_specialization))
    assert found.cached and taken(builder_of()) == winner_of(tuned) != model_pick
    assert "on NVIDIA H200" in found.chosen and found.chosen in explain(found)
    builder_of().store.clear()
    anew = builder_of().build(builder_of().key_of("forward", builder_of().hinted_specialization))
    assert not anew.cached and anew.plan == found.plan and anew.source == found.source
    near = builder_of(batch=16)
    assert "batch 8" in near.build(near.key_of("forward", near.hinted_specialization)).chosen
    for other in (builder_of("h100"), builder_of(batch=512), builder_of(precision="bf16"), builder_of(model="hgrn")):
        assert not other.build(other.key_of("forward", other.hinted_specialization)).chosen


def test_a_choice_that_does_not_fit_or_keep_its_promise_is_the_models(
    compiler: Compiler, builder_of: BuilderOf, caplog: pytest.LogCaptureFixture
) -> None:
    first, other, *_ = candidates_of(builder_of())
    raced(builder_of(), FakeMeasurer(lambda one: 1.0 if one == other else 9.0))
    compiler.breaks = lambda variables: dict(variables) == dict(other[1])
    builder_of().store.clear()
    with caplog.at_level(logging.WARNING):
        assert taken(builder_of()) == first
    assert "spills 400 bytes" in caplog.text


@pytest.mark.usefixtures("compiler")
def test_a_choice_is_verified_on_first_use_and_a_wrong_one_is_remembered(
    builder_of: BuilderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other, *_ = candidates_of(builder_of())
    raced(builder_of(), FakeMeasurer(lambda one: 1.0 if one == other else 9.0))
    builder_of().store.clear()
    memory: History = open_history(builder_of().store)
    here = FakeMeasurer(wrong=other.__eq__)

    def remember() -> TunedLookup:
        return TunedLookup(memory, here.gpu, here.device, here.driver, lambda: here)

    monkeypatch.setattr(lookup, "remembered", remember)
    assert taken(builder_of()) == first and here.checked == [other]
    # The next in line is taken from then on, without asking for what is wrong.
    builder_of().store.clear()
    assert taken(builder_of()) != other and other not in here.checked[1:]
    assert [one.outcome for one in memory.results("h200") if one.candidate == other][-1] == "wrong"


@pytest.mark.usefixtures("compiler", "cache")
def test_compile_tunes_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"model": "min_gru", "hidden_size": 64, "gpu": "h200", "training": False}
    monkeypatch.setattr(device.device, "live_device", lambda: None)
    with pytest.raises(ToolchainMissing, match="tuning measures on a GPU"):
        api.compile(spec, tune=True)
    model_pick = api.compile(spec).plan
    fake = FakeMeasurer(lambda one: 100.0 if one[1] == key_of("", model_pick.variables)[1] else spread_us(one))
    monkeypatch.setattr(session, "open_measurer", lambda: fake)
    tuned = api.compile(spec, tune=True).plan
    assert tuned.variables != model_pick.variables and api.compile(spec).plan == tuned
    with pytest.raises(BadInput, match="the spec is for t4, but the GPU here is h200"):
        api.compile(spec, tune=True, gpu="t4")
    fake.interrupt_at = len(fake.timed)
    with pytest.raises(KeyboardInterrupt):
        api.compile(spec, tune=True, hidden_size=128)


@pytest.mark.usefixtures("compiler", "cache")
def test_without_a_disk_the_winner_is_taken_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"model": "min_gru", "hidden_size": 64, "gpu": "h200", "training": False}
    model_pick = api.compile(spec).plan
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "file" / "no_folder"))
    fake = FakeMeasurer(lambda one: 100.0 if one[1] == key_of("", model_pick.variables)[1] else spread_us(one))
    monkeypatch.setattr(session, "open_measurer", lambda: fake)
    assert api.compile(spec, tune=True).plan.variables != model_pick.variables


@pytest.mark.usefixtures("compiler")
def test_debug_builds_are_not_tuned(builder_of: BuilderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_DEBUG", "1")
    builder = builder_of()
    with pytest.raises(BadInput, match="MINRNN_DEBUG is set"):
        next(tuner.tune(builder, FakeMeasurer(), open_history(builder.store)))
