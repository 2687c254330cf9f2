"""The measured way of a group: the fastest on its slowest rank, one for all ranks, and by it the bits of that way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import within

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402
from support.examples import examples  # noqa: E402

from minrnn_gen.torch.sequence_group.clock import Clock  # noqa: E402
from minrnn_gen.torch.sequence_group.group import WAYS  # noqa: E402
from minrnn_gen.torch.sequence_group.tuned import MARGIN, ROUNDS_BEFORE, TunedSequenceGroup, fastest  # noqa: E402

RECORDS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
CHOICES = (None, *WAYS)
SIZE = 2


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ranks.Ranks]:
    with ranks.started(tmp_path_factory.mktemp("ranks"), SIZE) as started:
        yield started


def run(group: ranks.Ranks, case: str, **arguments: Any) -> list[Any]:
    return group.run(SIZE, "elsewhere", module="support.tuned_ranks", named=case, **arguments)


@given(st.fixed_dictionaries(dict.fromkeys(CHOICES, st.floats(1e-3, 1e6))))
def test_the_formula_s_choice_stays_unless_another_way_is_faster_by_the_margin(times_ms: dict[Any, float]) -> None:
    way = fastest(times_ms)
    others = [times_ms[other] for other in WAYS]
    if way is None:
        assert times_ms[None] <= min(others) * (1 + MARGIN) * (1 + 1e-12)
    else:
        assert times_ms[way] == min(times_ms.values()) < times_ms[None] / (1 + MARGIN) * (1 + 1e-12)


def test_ties_are_the_formula_s_or_the_first_of_others() -> None:
    assert fastest(dict.fromkeys(CHOICES, 1.0)) is None
    assert fastest({None: 2.0, "summary": 3.0, "correct": 1.0, "pipeline": 1.0}) == "correct"


def test_no_way_was_measured_to_be_faster_than_itself_by_the_margin() -> None:
    """A record has the way that was chosen twice: by its name, and as the formula's choice."""
    pairs = [(times_ms[None], times_ms[chosen]) for _, chosen, times_ms in recorded()]
    largest = max(max(pair) / min(pair) - 1 for pair in pairs)
    assert len(pairs) >= 40 and MARGIN / 2 < largest < MARGIN


def test_by_all_records_another_way_is_taken_where_gates_remember_alone() -> None:
    """So says the page of the cost: min_gru's channels make groups of a pipeline; those of a selective scan are one."""
    for problem, chosen, times_ms in recorded():
        if problem.get("gates", "normal") == "normal":
            assert (chosen, fastest(times_ms)) == ("correct", None), (problem, times_ms)
        elif problem["model"] == "min_gru":
            assert (chosen, fastest(times_ms)) == ("correct", "pipeline"), (problem, times_ms)


def recorded() -> Iterator[tuple[dict[str, Any], Any, dict[Any, float]]]:
    """Yield scans of the records: the problem, the way that the formula chose, and the milliseconds of all ways."""
    for path in sorted(RECORDS.glob("distributed_*.json")):
        by_call: dict[Any, dict[str, Any]] = {}
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            if "contender" in row and row["problem"]["model"] != "lstm":
                by_call.setdefault((json.dumps(row["problem"]), row["kernel_pass"]), {})[row["contender"]] = row
        for rows in by_call.values():
            chosen = rows["chosen"]
            yield chosen["problem"], chosen["way"], {None: chosen["ms"], **{way: rows[way]["ms"] for way in WAYS}}


@settings(max_examples=examples(25))
@given(
    st.fixed_dictionaries(dict.fromkeys(CHOICES, st.lists(st.floats(1e-6, 1.0), min_size=SIZE, max_size=SIZE))),
    st.integers(1, 5),
)
def test_all_ranks_take_the_way_that_is_fastest_on_its_slowest_rank(
    group: ranks.Ranks, seconds: dict[Any, list[float]], rounds: int
) -> None:
    expected = {way: 1e3 * max(of_ranks) for way, of_ranks in seconds.items()}
    first, second = run(group, "timed", seconds=seconds, rounds=rounds)
    assert first == second
    way, times_ms, runs = first
    # A difference of two readings of a clock that stands at up to a minute.
    assert times_ms == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert way == fastest(times_ms)
    assert runs == dict.fromkeys(CHOICES, 1 + ROUNDS_BEFORE + rounds)


def test_first_runs_and_one_bad_round_do_not_count(group: ranks.Ranks) -> None:
    """A step that compiles or is captured takes long once; of five rounds a median leaves two out."""
    slow_first = [100.0] * (1 + ROUNDS_BEFORE) + [1.0, 50.0, 1.0, 50.0, 1.0]
    seconds = {None: [2.0] * 8, "summary": [3.0] * 8, "correct": slow_first, "pipeline": [1.5] * 8}
    assert run(group, "drifting", seconds=seconds, rounds=5) == ["correct"] * SIZE


X, PIECES = (2, 44, 2, 3), [24, 20]


@pytest.mark.parametrize("fastest_way", CHOICES)
@pytest.mark.parametrize("mode", ["recurrence", "scan", "layers"])
def test_a_tuned_group_has_the_bits_of_its_way(group: ranks.Ranks, mode: str, fastest_way: Any) -> None:
    _check_bits(group, mode, fastest_way)


@pytest.mark.parametrize("mode", ["compiled", "parallel"])
def test_a_step_may_be_a_compiled_or_a_data_parallel_model(group: ranks.Ranks, mode: str) -> None:
    _check_bits(group, mode, "pipeline")


def _check_bits(group: ranks.Ranks, mode: str, fastest_way: Any) -> None:
    x = torch.randn(X, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = run(group, "compared", fastest=fastest_way, mode=mode, x=x, pieces=PIECES)
    assert [way for way, _ in answers] == [fastest_way] * SIZE


@pytest.mark.parametrize(
    ("models", "compiled", "ways"),
    [
        (["min_gru"], False, [None, *WAYS]),
        (["gru"], False, [None, "pipeline"]),
        (["gru"], True, [None, "pipeline"]),
        (["min_gru", "gru"], False, [None, "pipeline"]),  # refused where a part of it has run
    ],
    ids=str,
)
def test_a_way_that_a_call_refuses_is_left_out(group: ranks.Ranks, models: list[str], compiled: bool, ways: list[Any]) -> None:
    x = torch.randn((2, 6, 4), generator=torch.Generator().manual_seed(0))
    assert run(group, "ways_of", models=models, x=x, pieces=[4, 2], compiled=compiled) == [ways] * SIZE


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rounds": 0}, "rounds is 0; an integer from 1 on is expected"),
        ({"rounds": True}, "rounds is true; an integer from 1 on is expected"),
        ({"rounds": 2.5}, "rounds is 2.5; an integer from 1 on is expected"),
        ({"way": "summary"}, "sequence_group has the way 'summary', and a way is to be measured; leave it out"),
        ({"step": "train"}, "step is a str; a function of a SequenceGroup is expected"),
    ],
    ids=str,
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_wrong_arguments_of_any_rank_are_refused_on_all(
    group: ranks.Ranks, asked: dict[str, Any], message: str, everywhere: bool
) -> None:
    first, second = run(group, "refused", asked=[asked if everywhere else {}, asked])
    assert second == message
    assert first == (message if everywhere else f"rank 1 of the sequence group refuses the call: {message}")


def test_ranks_that_ask_for_other_rounds_are_refused(group: ranks.Ranks) -> None:
    messages = run(group, "refused", asked=[{"rounds": 2}, {"rounds": 3}])
    assert messages == ["rank 1 of the sequence group has rounds 3, but rank 0 has 2; call all ranks with the same"] * SIZE


def test_a_call_that_every_way_refuses_is_refused(group: ranks.Ranks) -> None:
    messages = run(group, "refused_step", shapes=[(1, 4, 2, 3), (1, 4, 2, 5)])
    assert "rank 1" in messages[0] and all("x has shape [1, 4, 2, 5]" in message for message in messages), messages


# The first run; one among those that are timed.
@pytest.mark.parametrize("at", [1, pytest.param(20, marks=pytest.mark.matrix_full)])
@pytest.mark.parametrize("before", [True, False])
def test_a_step_that_raises_on_one_rank_ends_the_others_within_the_timeout_of_their_group(
    tmp_path: Path, at: int, before: bool
) -> None:
    with ranks.started(tmp_path, SIZE, timeout=ranks.SHORT) as processes:
        (waiting, seconds), (own, _) = run(processes, "raising", at=at, before=before)
    assert own == 'ZeroDivisionError("of the step\'s own")'
    assert waiting.startswith("RuntimeError") and seconds < within(20), waiting


@pytest.mark.parametrize(
    ("backends", "has_gpu", "device"),
    [
        ("cuda:nccl", True, "cuda:1"),
        ("cpu:gloo,cuda:nccl", True, "cuda:1"),
        ("cpu:gloo,cuda:nccl", False, "cpu"),
        ("cpu:gloo,cuda:gloo", True, "cpu"),  # of gloo itself, wherever there are GPUs
    ],
)
def test_the_clock_is_that_of_the_device_on_which_ranks_exchange(
    monkeypatch: pytest.MonkeyPatch, backends: str, has_gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda _: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = Clock.of("group")
    assert str(found.device) == device and found.has_events == (device != "cpu")


def test_times_are_no_part_of_what_a_group_is() -> None:
    first, second = (TunedSequenceGroup("group", "correct", times_ms={None: time, "correct": 1.0}) for time in (2.0, 3.0))
    assert first == second and hash(first) == hash(second) and first.times_ms != second.times_ms
