"""`python -m benchmarks picks`: a record's plans next to the picks of today, as a table and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_runner import Command
from support.uncompiled_kernels import planned_again

from benchmarks.cost_model.picks import FOLDER
from benchmarks.report.plan_facts import plans_of
from benchmarks.report.record import Record, read_record, write_record

DENSE = read_record(FOLDER / "results" / "recurrent_h200.json")


@pytest.fixture
def elman(tmp_path: Path) -> tuple[Record, Path]:
    """A record of elman 1 x 768, forward and backward, and its file."""
    rows = [row for row in DENSE.rows if row.problem.model == "elman" and row.problem.heads == 1]
    record = DENSE.model_copy(update={"rows": tuple(rows)})
    write_record(record, tmp_path / "record.json")
    return record, tmp_path / "record.json"


def test_differences_are_a_table_and_entries_of_the_list(command: Command, elman: tuple[Record, Path]) -> None:
    _, path = elman
    with planned_again():
        said, data = command("picks", path), command("picks", path, "--json").json
    assert (said.status, said.error) == (0, "")
    assert "| elman 1 x 768, 16 x 1024 bf16 BTD backward | split_k_warps 2 | split_k_warps 1 |" in said.out
    assert said.out.endswith("2 plans, 2 differ, 0 of them unsettled\n")
    entry = next(entry for entry in data["differences"] if "backward" in entry["kernel"])
    assert (entry["recorded"]["split_k_warps"], entry["picked"]["split_k_warps"]) == (2, 1)
    assert entry["picked_ms"] == 0.8472 and entry["reason"].endswith(".")


def test_plans_of_a_gpu_without_a_profile_and_by_another_path_are_left_out(
    command: Command, elman: tuple[Record, Path]
) -> None:
    record, path = elman
    assert any("alternating" in row.contender and list(plans_of(row)) for row in record.rows)
    write_record(record.model_copy(update={"gpu": "a GPU that is none"}), path)
    assert command("picks", path).out.endswith("0 plans, 0 differ, 0 of them unsettled\n")


def test_a_file_that_is_no_record_is_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}", encoding="utf-8")
    said = command("picks", path)
    assert said.status == 2 and "python -m benchmarks" in said.error
