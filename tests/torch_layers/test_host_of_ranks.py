"""The host's part of a call over ranks: the operators and collectives that a call of each form asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support.host_of_ranks import Silent, SilentPeerBuffers, call_on_rank, counted_runs, hosts_of_gpus, in_graphs  # noqa: E402

from benchmarks.harness.host_calls import operators_of  # noqa: E402
from minrnn_gen.torch.sequence_group import heads  # noqa: E402
from minrnn_gen.torch.sequence_group.cost import GRAPH_COUNTS, HOST_COUNTS  # noqa: E402
from minrnn_gen.torch.sequence_group.group import WAYS  # noqa: E402

SPEC = {"model": "min_gru", "hidden_size": 32, "precision": "fp32"}
# Of a pipeline of one group, whose cost counts the host otherwise, as `HOST_COUNTS` of the others.
PIPELINE = {False: ((5, 2, 1), (6, 3, 1)), True: ((12, 4, 2), (16, 6, 2))}
# By then all graphs are captured: of a forward, then of its backward, whose arrays come again once the forward's do.
CALLS_BEFORE = 8
# Of a pipeline in a graph, forward and with gradients: what is allocated, and small results.
PIPELINE_OPERATORS = (2, 4)
# Operators of an array that poses as memory of a GPU.
OPERATORS_OF_ARENA = 4


@pytest.fixture(scope="module", autouse=True)
def _hosts() -> Iterator[None]:
    with hosts_of_gpus():
        yield


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_cost_formula_has_what_a_call_asks_of_the_host(way: Any, records: bool) -> None:
    """Each operator takes some 13 us of the host, each collective some 60, which pieces of a millisecond do not hide."""
    expected = PIPELINE[records] if way == "pipeline" else [astuple(counts) for counts in HOST_COUNTS[way, records]]
    for size, most in zip((2, 4), expected, strict=True):
        # The ranks between two others do the same.
        found = [_counted(Silent(rank, size), way, records) for rank in {0, size // 2, size - 1}]
        operators, *others = map(max, zip(*found, strict=True))
        # Other versions of torch write some operators by others.
        assert others == [*most[1:]] and 0.8 * most[0] <= operators <= most[0], (size, found)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("way", ["correct", "summary"])
def test_a_call_launched_as_graphs_asks_for_few_operators(way: Any, records: bool) -> None:
    """A graph for all between two exchanges; operators allocate what the call writes, and copy its small results."""
    for size, most in zip((2, 4), GRAPH_COUNTS[way, records], strict=True):
        found = [_counted_in_graphs(Silent(rank, size), way, records) for rank in {0, size // 2, size - 1}]
        assert tuple(map(max, zip(*found, strict=True))) == astuple(most), (size, found)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_one_graph_has_a_direction_of_a_call_whose_exchanges_go_through_peer_buffers(way: Any, records: bool) -> None:
    operators = {2: PIPELINE_OPERATORS, 4: PIPELINE_OPERATORS}
    if way != "pipeline":
        operators = {size: [counts.operators] * 2 for size, counts in zip((2, 4), GRAPH_COUNTS[way, records], strict=True)}
    for size, most in operators.items():
        for rank in {0, size // 2, size - 1}:
            group = Silent(rank, size)
            boxes = SilentPeerBuffers.of(group)
            found, collectives, launches = _counted_in_graphs(group, way, records)
            # Nothing is asked for outside the graph, by the backend or by peer_buffers.
            assert (collectives, launches) == (0, 2 if records else 1) and found <= most[records]
            assert boxes.asked


@pytest.mark.parametrize(("records", "most"), [(False, 3), (True, 7)])
def test_a_group_of_a_pipeline_asks_for_few_operators(records: bool, most: int) -> None:
    """Groups are views of whole arrays, all of one array by one operator."""
    few, many = (_counted(Silent(1, 2), "pipeline", records, batch=8, micro_batches=groups)[0] for groups in (4, 8))
    assert many - few <= 4 * most


@pytest.mark.parametrize("pays", [False, True])
def test_heads_are_gathered_only_where_that_pays(monkeypatch: pytest.MonkeyPatch, pays: bool) -> None:
    """What is decided is decided once for a form; where it does not pay, nothing is sent forward or backward."""
    planned: list[int] = []

    def seconds_of(*_: Any) -> dict[int, float]:
        planned.append(1)
        return {1: 1.0 if pays else 1e-6, 2: 1e-6}

    monkeypatch.setattr(heads, "seconds_of", seconds_of)
    group = Silent(1, 2)
    run = call_on_rank(SPEC, group, "heads", True)
    for _ in range(3):
        run()
    assert planned == [1] and group.asked == ["gather", "gather", "sum"] * 3 * pays


def _counted_in_graphs(group: Silent, way: Any, records: bool) -> tuple[int, int, int]:
    """Return the operators, the collectives and the launches of a call on a rank whose arrays came again."""
    launched = Counter[str]()
    run = call_on_rank(SPEC, group, way, records, graphs=True)
    with in_graphs(launched):
        for _ in range(CALLS_BEFORE):
            run()
        group.asked.clear()
        launched.clear()
        operators = operators_of(run)
    allocated = operators["aten::lift_fresh"]
    return sum(operators.values()) - OPERATORS_OF_ARENA * allocated, len(group.asked), launched.total()


def _counted(group: Silent, way: Any, records: bool, **groups: int) -> tuple[int, int, int]:
    """Return the operators, the collectives and the runs of a call on a rank."""
    run, launched = call_on_rank(SPEC, group, way, records, **groups), Counter[str]()
    run()
    group.asked.clear()
    with counted_runs(launched):
        operators = operators_of(run)
    return sum(operators.values()), len(group.asked), launched.total()
