"""`python -m benchmarks distributed` on CPUs: every rank computes what one computes alone, and the record has it all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import within

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402

from benchmarks.distributed_suite import open_host  # noqa: E402
from benchmarks.pages import filled_sections  # noqa: E402
from benchmarks.problems.distributed_problems import PASSES, problems  # noqa: E402
from benchmarks.report.distributed_record import (  # noqa: E402
    ALONE,
    DistributedRecord,
    DistributedRow,
    distributed_text,
    read_distributed,
)
from benchmarks.report.predicted_ranks import (  # noqa: E402
    COST_PAGE,
    predicted_text,
)
from benchmarks.write_pages import sections_of_ranks  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EMPTY = DistributedRecord(
    command="python -m benchmarks distributed", device="none", ranks=2, backend="gloo", clock="host", versions={}, method={}
)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ranks.started(tmp_path_factory.mktemp("ranks"), 2) as processes:
        yield processes


@pytest.mark.matrix_full
def test_every_way_has_the_results_of_one_rank(group: ranks.Ranks) -> None:
    first, second = (DistributedRecord.model_validate_json(text) for text in group.run(2, "benchmark"))
    assert first == second and first.is_complete
    assert dict.fromkeys((row.problem, row.kernel_pass) for row in first.rows) == dict.fromkeys(
        (problem, kernel_pass) for problem in problems(True) for kernel_pass in PASSES
    )
    for row in first.rows:
        assert row.failure is None and row.ms is not None and row.rounds == 3
        if row.contender == ALONE:
            continue
        results = {"y", "final", *(["dx"] if row.kernel_pass != "forward" else [])}
        # fp32: what two orders of rounding differ by.
        assert row.errors.keys() == results and max(row.errors.values()) <= 1e-6
        assert row.exchange_share is not None and 0 < row.exchange_share < 1
        assert row.bytes_contributed is not None and row.bytes_contributed > 0
        values = row.problem.batch * row.problem.head_dim * (row.problem.state_size or 1)
        if row.way in ("summary", "correct"):
            # Two values of each state, forward and backward; the final states; and in host memory what all agree on.
            passes = PASSES.index(row.kernel_pass) + 1
            assert row.bytes_contributed <= passes * 3 * values * 4 + 2048
    ways = {row.contender for row in first.rows if not row.problem.is_dense}
    assert ways == {ALONE, "summary", "correct", "pipeline", "chosen", "tuned"}
    assert {row.contender for row in first.rows if row.problem.is_dense} == {
        ALONE,
        "heads",
        "own heads",
        "micro-batches",
        "chosen",
    }


def test_a_record_is_read_as_written_and_has_its_tables(tmp_path: Path) -> None:
    problem = problems(False)[0]
    row = DistributedRow(problem=problem, kernel_pass="forward", contender=ALONE, ms=4.0, rounds=31)
    faster = row.model_copy(
        update={
            "contender": "chosen", "way": "pipeline", "micro_batches": 8, "passes": 1.25, "ms": 2.5, "exchange_share": 0.125,
            "bytes_contributed": 4096, "errors": {"y": 1e-3, "final": 2e-7},
        }
    )  # fmt: skip
    failed = row.model_copy(update={"kernel_pass": "forward and backward", "ms": None, "failure": "out of memory"})
    record = EMPTY.model_copy(update={"rows": (row, faster, failed)})
    path = tmp_path / "record.json"
    path.write_text(record.model_dump_json(exclude_defaults=True), encoding="utf-8")
    text = distributed_text(read_distributed(path))
    cells = "4.000 | 2.500 (1.60) | pipeline of 8 groups | 1.60 | 1.0e-03"
    assert f"| min_gru 1024, 1 x 1048576 bf16 | forward | {cells} |" in text
    assert "tuned" not in text, "records from before have no such column"
    assert "| step | out of memory |" in text and "The run was not completed." in text
    assert "Not measured yet" in distributed_text(None)
    tuned = faster.model_copy(update={"contender": "tuned", "way": "correct", "ms": 2.0})
    text = distributed_text(record.model_copy(update={"rows": (*record.rows, tuned)}))
    assert "4.000 | 2.500 (1.60) | 2.000 (2.00) | pipeline of 8 groups | 1.60 | correct | 1.0e-03 |" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="has no command of a run over ranks"):
        read_distributed(path)


def test_the_page_of_the_cost_has_what_the_formula_predicts_and_what_was_measured() -> None:
    page = (ROOT / COST_PAGE).read_text(encoding="utf-8")
    sections = sections_of_ranks()
    assert all(f"<!-- measured: {name} -->" in page for name in sections)
    assert filled_sections(page, COST_PAGE, sections) == page, "run: python -m benchmarks.write_pages"


def test_a_pipeline_of_eight_groups_is_predicted_to_scale_with_them() -> None:
    lines = predicted_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("| 8 x"))
    speeds = [float(cell.strip(" *")) for cell in lines[first + 3].split("|")[4:8]]
    # (C + P - 1) / C passes, and messages that cost something.
    most = [count * 8 / (7 + count) for count in (2, 4, 8, 64)]
    assert all(0 < speed < bound for speed, bound in zip(speeds, most, strict=True))


def test_the_problems_are_those_that_one_gpu_takes_long_for() -> None:
    of_scans = [problem for problem in problems(False) if not problem.is_dense]
    assert {(problem.batch, problem.time, problem.head_dim) for problem in of_scans} >= {
        (1, 1 << 20, 1024),
        (8, 1 << 19, 512),
        (1, 1 << 24, 512),
    }
    assert {(problem.model, problem.gates) for problem in of_scans} == {
        (model, gates) for model in ("min_gru", "selective") for gates in ("normal", "remembering")
    }


def test_without_ranks_it_says_how_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadInput, match="torchrun --nproc-per-node 2 -m benchmarks distributed"):
        open_host(True)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="give --quick"):
        open_host(False)


@pytest.mark.matrix_full
def test_torchrun_runs_the_command(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [*torchrun, "-m", "benchmarks", "distributed", "--quick", "--json", str(path)],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=within(60), check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert distributed_text(read_distributed(path)) in answer.stdout
