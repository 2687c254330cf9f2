"""The memory: what is put in comes out, whatever happens to the file; and it never speaks of another GPU."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.everyday import in_turn
from support.examples import examples
from support.patience import within
from support.tuning_results import RESULTS, SETTING, measured

from minrnn_gen.build.store import Store, templates_digest
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import BadInput
from minrnn_gen.tune import history as memory_module
from minrnn_gen.tune.history import DISTANCE_MOST, SHIPPED, History, append_results, read_results
from minrnn_gen.tune.import_export import export_results, import_results
from minrnn_gen.tune.results import Result, Setting, result_from
from minrnn_gen.tune.t4_format import t4_of

WRITERS, LINES_OF_EACH = 4, 25
# Each example has a file of its own.
a_file_each = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25), deadline=None)


@pytest.fixture
def memory(tmp_path: Path) -> History:
    return History(Store(tmp_path))


def emptied(memory: History) -> History:
    for gpu in memory.gpus():
        memory.path(gpu).unlink()
    return memory


@given(RESULTS)
def test_a_line_is_read_as_it_was_written(result: Result) -> None:
    line = result.line()
    assert "\n" not in line and isinstance(json.loads(line), dict)
    assert result_from(line) == result == result_from(line.encode())


@a_file_each
@given(st.lists(RESULTS, min_size=1, max_size=6), st.binary(max_size=60))
@example([measured(1.0)], b'{"setting":')
@example([measured(1.0)], b"[" * 100_000)
def test_damage_costs_the_damaged_lines(memory: History, results: list[Result], damage: bytes) -> None:
    """Whatever stands between two writes, a line cut off by a kill included: what was written around it is there."""
    path = emptied(memory).path("h200")
    results = [replace(one, setting=replace(one.setting, gpu="h200")) for one in results]
    for one in results:
        memory.add([one])
        with path.open("ab") as file:
            file.write(damage.replace(b"\n", b" "))
    assert memory.results("h200") == tuple(results)
    # Files are joined by joining them.
    path.write_bytes(path.read_bytes() + b"\n" + path.read_bytes())
    assert Counter(one.line() for one in memory.results("h200")) == Counter(2 * [one.line() for one in results])


@pytest.mark.parametrize("written", [0, 1, 200])
def test_a_full_disk_costs_the_line_and_is_said_once(
    memory: History, written: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory.add([measured(1.0)])
    memory_module._notice_unwritable.cache_clear()
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) <= 200 or not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:written])

    with monkeypatch.context() as patched:
        patched.setattr(memory_module.os, "write", full)
        memory.add([measured(2.0)])
        memory.add([measured(3.0)])
    assert len([one for one in caplog.records if "results cannot be kept" in one.message]) == 1
    memory.add([measured(4.0)])
    assert [one.times_us for one in memory.results("h200")] == [(1.0,), (4.0,)]


@pytest.mark.matrix_full
def test_writers_at_once_lose_nothing_and_one_that_is_killed_loses_a_line_at_most(memory: History) -> None:
    program = f"""
import sys
import time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from support.tuning_results import measured
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.build.store import Store, templates_digest
from minrnn_gen.tune.history import History
memory, writer = History(Store(Path({str(memory.store.folder)!r}))), int(sys.argv[1])
print("ready", flush=True)
number = 0
while number < {LINES_OF_EACH} or writer == 0:
    number += 1
    memory.add([measured(float(number), writer)])
    if number == {LINES_OF_EACH}:
        print("done", flush=True)
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(number)], stdout=subprocess.PIPE) for number in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert [writer.stdout.readline() for _ in range(2)] == [b"ready\n", b"done\n"]
    writers[0].kill()
    for writer in writers:
        writer.communicate()
    memory.add([measured(0.5, WRITERS)])
    found = memory.results("h200")
    for number in range(1, WRITERS):
        its = [one.times_us[0] for one in found if one.variables["tile"] == number]
        assert its == [float(line) for line in range(1, LINES_OF_EACH + 1)]
    assert found[-1].times_us == (0.5,)
    killed = [one.times_us[0] for one in found if one.variables["tile"] == 0]
    assert killed == [float(line) for line in range(1, len(killed) + 1)] and len(killed) >= LINES_OF_EACH


def test_the_best_is_exact_else_of_the_nearest_sizes_else_nothing(memory: History) -> None:
    assert memory.best(SETTING) is None
    far, near = replace(SETTING, batch=8 * 2**3), replace(SETTING, batch=16)
    memory.add([measured(1.0, 1, far)])
    assert memory.best(SETTING) is None
    memory.add([measured(9.0, 2, near), measured(8.0, 3, near)])
    best = memory.best(SETTING)
    assert best and (best.variables, best.is_exact, best.setting) == ({"tile": 3}, False, near)
    memory.add([measured(100.0, 4)])
    best = memory.best(SETTING)
    assert best and (best.variables, best.is_exact) == ({"tile": 4}, True)


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "h100"},
        {"device": "NVIDIA GH200"},
        {"arch": "sm_100"},
        {"sm_count": 66},
        {"sources": "2" * 64},
        {"cell_digest": "3" * 64},
        {"kernel_pass": "backward"},
        {"precision": "fp32"},
        {"specialization": replace(SETTING.specialization, reverse=True)},
        {"time": int(SETTING.time * 2**DISTANCE_MOST) + 1},
    ],
    ids=lambda change: "".join(change),
)
def test_nothing_is_taken_from_another_gpu_or_for_another_kernel(memory: History, change: dict[str, Any]) -> None:
    memory.add([measured(1.0, 1, replace(SETTING, **change))])
    assert memory.best(SETTING) is None


def test_a_driver_or_toolchain_of_another_day_stands_behind_todays(memory: History) -> None:
    memory.add([measured(1.0, 1, replace(SETTING, driver="570.0"))])
    best = memory.best(SETTING)
    assert best and not best.is_exact
    memory.add([measured(2.0, 2)])
    best = memory.best(SETTING)
    assert best and best.is_exact and best.variables == {"tile": 2}
    # Without a GPU at hand its name and driver are not known: what is there is of the profile that was asked for.
    away: Setting = replace(SETTING, device="", driver="")
    assert memory.best(away)


@a_file_each
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(1, 9), st.booleans()), min_size=1))
def test_a_wrong_candidate_is_never_the_best(memory: History, found: list[tuple[int, float, bool]]) -> None:
    """However fast, before or after it was found to be wrong, here or with other sizes."""
    emptied(memory).add(
        [
            measured(us, candidate)
            if right
            else measured(us, candidate, replace(SETTING, batch=4), outcome="wrong", times_us=())
            for candidate, us, right in found
        ]
    )
    wrong = {candidate for candidate, _, right in found if not right}
    best = memory.best(SETTING)
    assert (best is None) == ({candidate for candidate, _, _ in found} == wrong)
    assert best is None or best.variables["tile"] not in wrong


def test_what_is_exported_is_imported_once(memory: History, tmp_path: Path) -> None:
    memory.add([measured(1.0), measured(2.0, setting=replace(SETTING, gpu="t4"))])
    path = tmp_path / "results.jsonl"
    assert export_results(memory, str(path)) == 2
    other = History(Store(tmp_path / "other"))
    other.store.put_request("0" * 64, {})
    assert [import_results(other, str(path)) for _ in range(2)] == [2, 0]
    assert other.store.find_request("0" * 64) is None
    assert [one for gpu in other.gpus() for one in other.results(gpu)] == [
        one for gpu in memory.gpus() for one in memory.results(gpu)
    ]
    with pytest.raises(BadInput, match="has no results"):
        path.write_text("no results\n")
        import_results(memory, str(path))
    with pytest.raises(BadInput, match="there are no results of 'l4'"):
        export_results(memory, str(path), gpu="l4")


@settings(max_examples=examples(30))
@given(st.lists(RESULTS, max_size=5))
def test_a_t4_document_has_what_its_schema_requires(results: list[Result]) -> None:
    """The fields, types and words of the results schema 1.0.0, and of "correct", which its tools write beside them."""
    document = json.loads(json.dumps(t4_of(results), allow_nan=False))
    assert document["schema_version"] == "1.0.0" and len(document["results"]) == len(results)
    for entry, result in zip(document["results"], results, strict=True):
        assert entry["configuration"].items() >= result.variables.items()
        assert entry["invalidity"] in {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
        assert (entry["invalidity"] == "correct") == (result.outcome == "measured")
        assert isinstance(entry["correctness"], int | float) and isinstance(entry["timestamp"], str)
        assert entry["times"]["runtimes"] == [us / 1e3 for us in result.times_us]
        assert all(isinstance(entry["times"][name], int | float) for name in entry["times"].keys() - {"runtimes"})
        assert all(one.keys() == {"name", "value", "unit"} for one in entry["measurements"])
        assert isinstance(entry["objectives"], list)


def test_what_ships_is_of_these_templates_and_one_candidate_of_each_setting() -> None:
    """After a change of a template it is of no use: tune the examples again, or remove it (CONTRIBUTING.md)."""
    paths = sorted(package_folder(SHIPPED).glob("*.jsonl"))
    for path in paths:
        results = list(read_results(path))
        assert len(results) == len(path.read_text().splitlines()) == len({one.setting for one in results})
        for one in results:
            assert (one.setting.gpu, one.setting.sources, one.outcome) == (path.stem, templates_digest(), "measured")


def shipping(memory: History, *results: Result) -> History:
    folder = memory.store.folder / "shipped"
    folder.mkdir()
    append_results(folder / "h200.jsonl", results)
    return replace(memory, shipped=folder)


def test_what_shipped_is_taken_for_its_own_setting_alone(memory: History) -> None:
    shipped = shipping(memory, measured(2.0, 1), measured(3.0, 2))
    for setting in (SETTING, replace(SETTING, driver="600.0"), replace(SETTING, device="", driver="")):
        best = shipped.best(setting)
        assert best is not None and best.is_shipped and best.variables == {"tile": 1}
    for other in ({"time": 4096}, {"hidden_size": 256}, {"toolchain": "nvrtc 13.9"}, {"device": "NVIDIA H200 NVL"}):
        assert shipped.best(replace(SETTING, **other)) is None


def test_what_was_measured_here_stands_before_what_shipped_and_that_before_what_is_near(memory: History) -> None:
    shipped = shipping(memory, measured(2.0, 1))
    shipped.add([measured(1.0, 2, replace(SETTING, time=4096))])
    best = shipped.best(SETTING)
    assert best is not None and best.is_shipped
    shipped.add([measured(5.0, 3)])
    best = shipped.best(SETTING)
    assert best is not None and not best.is_shipped and best.variables == {"tile": 3}
    # What turned out wrong here is not taken from what shipped either.
    shipped.add([measured(1.0, 3, outcome="wrong", times_us=()), measured(1.0, 1, outcome="wrong", times_us=())])
    best = shipped.best(SETTING)
    assert best is not None and best.variables == {"tile": 2} and not best.is_exact


# Numbers of JSON that Python reads and JSON has not, that overflow, or that are none of what a field is.
NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e308",
    "1.7976931348623157e308",
    "5e-324",
    "-1",
    "0",
    "1" + "0" * 400,
]
NUMBERS += ["1" * 5000, "true", "null", '"1"', "[]", "{}", "1e15", "9223372036854775808"]
FIELDS = [
    "predicted_us",
    "error_share",
    "compile_seconds",
    "times_us",
    "variables",
    "hidden_size",
    "sm_count",
    "alignment_bytes",
]


@pytest.mark.parametrize(("field", "number"), in_turn(FIELDS, NUMBERS), ids=lambda text: text[:16])
def test_any_number_is_refused_or_can_be_written_again(tmp_path: Path, field: str, number: str) -> None:
    """Imported, exported in every form, and ranked; beside it another result, which is kept whatever the number is."""
    data = json.loads(measured(1.0).line())
    marked = "a number"
    if field == "times_us":
        data[field] = [marked, marked]
    elif field == "variables":
        data[field] = {"tile": marked}
    else:
        (
            data["setting"]["specialization"]
            if field == "alignment_bytes"
            else data["setting"]
            if field in data["setting"]
            else data
        )[field] = marked
    path = tmp_path / "lines"
    path.write_text(json.dumps(data).replace(json.dumps(marked), number) + "\n" + measured(2.0, 7).line() + "\n")
    memory = History(Store(tmp_path / "cache"))
    assert import_results(memory, str(path)) in (1, 2)
    assert memory.best(SETTING) is not None
    for form in ("lines", "fastest", "t4"):
        out = tmp_path / form
        assert export_results(memory, str(out), form=form) in (1, 2)  # type: ignore[arg-type]
        for text in [out.read_text()] if form == "t4" else out.read_text().splitlines():
            json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert len(list(read_results(tmp_path / "lines"))) in (1, 2)


def test_many_lines_of_others_cost_little(memory: History) -> None:
    """Lines of other cells are not looked into, and those of this one only once: each uncached kernel asks anew."""
    memory.add([measured(3.0)])
    foreign = replace(SETTING, cell_digest="f" * 64)
    lines = [measured(1.0, number, foreign).line() + "\n" for number in range(100)]
    own = [measured(4.0 + number, number, replace(SETTING, batch=number + 1)).line() + "\n" for number in range(100)]
    with memory.path("h200").open("a") as file:
        file.writelines(lines * 1000)
        file.writelines(own * 20)
    started = time.process_time()
    assert memory.best(SETTING) is not None
    # Validated one by one, the foreign lines alone would take seconds.
    assert time.process_time() - started < within(1.5)
    started = time.process_time()
    for _ in range(10):
        best = memory.best(SETTING)
        assert best is not None and best.median_us == 3.0
        memory.known(SETTING)
    assert time.process_time() - started < within(1.5)


def test_what_is_added_counts_at_once(memory: History) -> None:
    for us in (5.0, 4.0, 3.0):
        memory.add([measured(us, int(us))])
        best = memory.best(SETTING)
        assert best is not None and best.median_us == us
    memory.path("h200").unlink()
    assert memory.best(SETTING) is None


@pytest.mark.parametrize("path", ["none/file", "folder", "nul\0"])
def test_what_cannot_be_exported_to_is_one_sentence(memory: History, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    memory.add([measured(1.0)])
    with pytest.raises(BadInput, match=r"^--export: .* cannot be written"):
        export_results(memory, str(tmp_path / path))
    with pytest.raises(BadInput, match=r"^--import: .* is no file"):
        import_results(memory, str(tmp_path / path))


def test_an_export_goes_where_a_link_leads(memory: History, tmp_path: Path) -> None:
    memory.add([measured(1.0)])
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert export_results(memory, str(tmp_path / "link")) == 1
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == measured(1.0).line() + "\n"
