"""Calls over ranks as graphs: when they are captured, and that they compute what they compute without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch is without torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ranks.Ranks]:
    with ranks.started(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.mark.parametrize("way", ["correct", "summary", "pipeline"])
@pytest.mark.parametrize("size", [2, 3])
def test_graphs_over_ranks_change_no_bit(group: ranks.Ranks, size: int, way: str) -> None:
    """Each rank decides for itself: some may launch what others enqueue."""
    for forwards, backwards in group.run(size, "in_graphs", way=way, calls=14, time=96):
        assert forwards and backwards
