"""The host's part of a call over ranks: the operators and collectives that a call of each form asks for."""

from __future__ import annotations

from collections.abc import Iterator
from operator import le
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch is without torch.distributed", allow_module_level=True)

from support.host_of_ranks import Silent, call_on_rank, hosts_of_gpus  # noqa: E402

from benchmarks.harness.host_calls import operators_of  # noqa: E402

SPEC = {"model": "min_gru", "hidden_size": 32, "precision": "fp32"}
# For a way, and a forward or a step: the operators and the collectives of the busiest rank of two, then of four.
MOST = {
    ("correct", False): ((34, 2), (89, 3)),
    ("correct", True): ((59, 4), (138, 6)),
    ("summary", False): ((18, 2), (36, 3)),
    ("summary", True): ((34, 4), (61, 5)),
    ("pipeline", False): ((13, 2), (15, 3)),
    ("pipeline", True): ((29, 4), (32, 6)),
}


@pytest.fixture(scope="module", autouse=True)
def _hosts() -> Iterator[None]:
    with hosts_of_gpus():
        yield


@pytest.mark.parametrize("records", [False, True])
def test_a_call_asks_no_more_of_the_host_than_is_known(records: bool) -> None:
    """Each operator takes some 5 to 10 us of the host, each collective some 50, which pieces of a millisecond do not hide."""
    for way, sizes in {way: MOST[way, records] for way in ("correct", "summary", "pipeline")}.items():
        for size, most in zip((2, 4), sizes, strict=True):
            for rank in range(size if size == 2 else 3):
                counted = _counted(Silent(rank, size), way, records)
                assert all(map(le, counted, most)), (way, size, rank, counted)


def _counted(group: Silent, way: Any, records: bool) -> tuple[int, int]:
    run = call_on_rank(SPEC, group, way, records)
    run()
    group.asked.clear()
    operators = operators_of(run)
    return sum(operators.values()), len(group.asked)
