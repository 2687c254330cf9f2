"""Reading of compute-sanitizer's reports; needs neither the tool nor a GPU."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
import sanitizers
from hypothesis import given
from hypothesis import strategies as st
from sanitizers import Finding, Report, read_report, verdict

STARTED = "========= COMPUTE-SANITIZER\nBTD lstm bf16 2 x 40 forward\n"
DONE = "done: 28 cases\n"
RACE = """\
========= Error: Race reported between Write access at persistent_backward+0xf820
=========     and Read access at persistent_backward+0xfa80 [18864 hazards]
=========     and Read access at persistent_backward+0xfb10 [36 hazards]
=========
"""
RACE_OF_CUBLAS = """\
========= Error: Race reported between Write access at nvjet_hsh_64x8_64x16_4x1_v_bz_TNT+0x1c40
=========     and Write access at nvjet_hsh_64x8_64x16_4x1_v_bz_TNT+0x2310 [128 hazards]
=========
"""
ACCESS = """\
========= Invalid __global__ read of size 16 bytes
=========     at {kernel}+0x160
=========     by thread (31,0,0) in block (3,0,0)
=========     Access at 0x7f671ac00001 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x331a90] in libcuda.so.1
=========
"""
CRASH = """\
========= Internal Sanitizer Error: failed to handle a hardware exception
========= Program hit CUDA_ERROR_ILLEGAL_ADDRESS (error 700) due to "an illegal memory access" on CUDA API call to cuEventQuery.
=========     Saved host backtrace up to driver entry point at error
=========
"""


def summed(count: int) -> str:
    return f"========= ERROR SUMMARY: {count} error{'s' * (count != 1)}\n"


def races_summed(count: int) -> str:
    return f"========= RACECHECK SUMMARY: {count} hazards displayed ({count} errors, 0 warnings)\n"


def test_nothing_found_is_clean() -> None:
    for summary in (summed(0), races_summed(0)):
        report = read_report(STARTED + DONE + summary, 0)
        assert report == Report((), "") and report.is_clean


def test_a_race_of_ours_fails_with_all_its_hazards() -> None:
    report = read_report(STARTED + DONE + RACE + races_summed(1), 0)
    what = "Error: Race reported between Write access at persistent_backward+0xf820"
    assert report == Report((Finding(what, "persistent_backward", 18900),), "") and not report.is_clean


def test_races_of_cublas_are_counted_and_pass() -> None:
    report = read_report(STARTED + RACE_OF_CUBLAS + "BTD gru bf16\n" + RACE_OF_CUBLAS + DONE + races_summed(2), 0)
    assert report.is_clean and [finding.hazards for finding in report.findings] == [128, 128]
    table, is_clean = verdict("racecheck", [report, report])
    assert is_clean and table.splitlines()[0] == "racecheck: clean"
    assert "cuBLAS           512 times       4 places  nvjet_hsh_64x8_64x16_4x1_v_bz_TNT" in table
    table, is_clean = verdict("racecheck", [report, read_report(STARTED + RACE + RACE_OF_CUBLAS + DONE + races_summed(2), 0)])
    assert not is_clean and table.splitlines()[0] == "racecheck: FAILED"
    assert "FAILED        18,900 times       1 places  persistent_backward" in table


@pytest.mark.parametrize("kernel", ["scan_forward", "nvjet_hsh_64x8", "void gemm<float, 2>(float *, int)"])
def test_an_access_beyond_an_array_fails_wherever_it_is(kernel: str) -> None:
    """The arrays of cuBLAS's kernels are ours."""
    report = read_report(STARTED + ACCESS.format(kernel=kernel) + DONE + summed(1), 0)
    assert [finding.kernel for finding in report.findings] == [kernel] and not report.is_clean


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (STARTED + CRASH + summed(1), 1, "before it ran every case"),
        (STARTED + summed(0), 0, "before it ran every case"),
        (STARTED, -14, "status -14"),
        (STARTED + DONE, 0, "did not sum up"),
        (STARTED + DONE + summed(0), 139, "ended with status 139"),
        (STARTED + DONE + summed(3), 0, "counts 3 and shows none"),
        (STARTED + DONE + summed(0), None, "not done after"),
        ("", 0, "before it ran every case"),
        ("undone: 28 cases\n" + summed(0), 0, "before it ran every case"),
    ],
)
def test_a_process_that_did_not_come_to_its_end_fails(output: str, status: int | None, said: str) -> None:
    report = read_report(output, status)
    table, is_clean = verdict("memcheck", [read_report(STARTED + DONE + summed(0), 0), report])
    assert said in report.broken and not report.is_clean and not is_clean
    assert f"part 2: {report.broken}" in table


def test_what_nobody_has_seen_before_fails() -> None:
    """A line of the tool's that is not one of its usual ones is a finding, whatever it says."""
    report = read_report(STARTED + "========= Warning: something new\n" + DONE + summed(0), 0)
    assert report.findings == (Finding("Warning: something new", ""),) and not report.is_clean


@given(st.lists(st.sampled_from((RACE, RACE_OF_CUBLAS, ACCESS.format(kernel="scan_step"), "BTD min_gru fp32\n"))))
def test_every_finding_is_found_once(parts: list[str]) -> None:
    found = [part for part in parts if part.startswith("=========")]
    report = read_report(STARTED + "".join(parts) + DONE + races_summed(len(found)), 0)
    assert len(report.findings) == len(found) and not report.broken
    assert report.is_clean == all(part == RACE_OF_CUBLAS for part in found)


# In place of the tool: a program that prints what it would, and runs no kernel.
TOOL = """\
#!{python}
import sys
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER", "done: 1 cases", sep="\\n")
if tool == {racing!r}:
    print({race!r}, end="")
print(f"========= ERROR SUMMARY: {{int(tool == {racing!r})}} errors")
"""


@pytest.mark.parametrize(("racing", "tools", "status"), [("", (), 0), ("racecheck", (), 1), ("racecheck", ("memcheck",), 0)])
def test_the_driver_runs_every_tool_and_says_what_each_found(
    racing: str,
    tools: tuple[str, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool, run = tmp_path / "compute-sanitizer", tmp_path / "run.py"
    tool.write_text(TOOL.format(python=sys.executable, racing=racing, race=RACE))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    run.write_text(f"import sys\nassert sys.argv[1] == '--part'\nprint('done: {sanitizers.PARTS} cases')\n")
    monkeypatch.setattr(sanitizers, "RUN", run)
    monkeypatch.setattr(sanitizers, "LOGS", tmp_path / "logs")
    assert sanitizers.main(("--sanitizer", str(tool), *tools)) == status
    said = capsys.readouterr().out
    ran = tools or sanitizers.TOOLS
    assert [one for one in sanitizers.TOOLS if f"\n{one}: " in said] == list(ran)
    assert ("persistent_backward" in said) == bool(status)
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {f"{one}-{sanitizers.PARTS}.txt" for one in ran}


def test_a_kernel_that_fails_without_a_tool_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.py"
    run.write_text("raise SystemExit('wrong')")
    monkeypatch.setattr(sanitizers, "RUN", run)
    monkeypatch.setattr(sanitizers, "LOGS", tmp_path / "logs")
    assert sanitizers.main(("--sanitizer", "nowhere")) == 1
    assert "without a tool: FAILED with status 1" in capsys.readouterr().out


def test_a_tool_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.py"
    run.write_text("print('done: 1 cases')")
    monkeypatch.setattr(sanitizers, "RUN", run)
    monkeypatch.setattr(sanitizers, "LOGS", tmp_path / "logs")
    with pytest.raises(SystemExit):
        sanitizers.main(("--sanitizer", str(tmp_path / "nowhere")))
    assert "it comes with the CUDA toolkit" in capsys.readouterr().err
