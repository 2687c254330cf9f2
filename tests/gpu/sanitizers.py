"""Every kernel under the tools of compute-sanitizer, and what they find judged: `make sanitize`, on a GPU.

    python tests/gpu/sanitizers.py [--sanitizer PATH] [--only WORD] [TOOL ...]

First the kernels run without a tool, so that they are compiled in many processes at once and then come from the cache.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

RUN = Path(__file__).with_name("sanitize.py")
TESTS = RUN.parent.parent
LOGS = Path("build") / "sanitizers"
TOOLS = ("memcheck", "racecheck", "synccheck")
# Under a tool the GPU is what is waited for: a few processes hide the work of the host.
PARTS = 4
# More, and their contexts, of half a gigabyte each, do not fit a small GPU.
PARTS_COMPILING_MOST = 16
# A part under racecheck takes minutes; longer is a hang. The part ends itself, since a tool that is ended leaves it behind.
LONGEST_PART_SECONDS = 1800
SECONDS_TO_END = 60
# By default the tools show a hundred and keep the rest to themselves.
FINDINGS_SHOWN = 1_000_000
# What sanitize.py says last, with how many cases it ran.
DONE = re.compile(r"^done: (\d+) cases$", re.MULTILINE)

_HEAD, _DETAIL = re.compile(r"^========= (\S.*)$"), re.compile(r"^=========  +(\S.*)$")
_CHATTER = re.compile(r"COMPUTE-SANITIZER\b|.*\bSUMMARY: (?P<count>\d+)")
_KERNEL, _HAZARDS = re.compile(r"\bat (.+?)\+0x[0-9a-f]+"), re.compile(r"\[(\d+) hazards?\]")


@dataclass(frozen=True)
class Finding:
    """Report of a tool: in which kernel, "" where it names none; `hazards` is how often it saw a race, else 1."""

    what: str
    kernel: str
    hazards: int = 1

    @property
    def is_of_cublas(self) -> bool:
        """A race in a kernel of cuBLAS, some of which order their accesses in ways that racecheck does not know.

        Nothing else is let pass there: an access beyond an array is of an array that we gave it.
        """
        return "Race reported" in self.what and self.kernel.startswith("nvjet")


@dataclass(frozen=True)
class Report:
    """Result of one process under a tool; `broken` says why it cannot be trusted, "" where it can."""

    findings: tuple[Finding, ...]
    broken: str

    @property
    def is_clean(self) -> bool:
        return not self.broken and all(finding.is_of_cublas for finding in self.findings)


def read_report(output: str, status: int | None) -> Report:
    """Read what a process under a tool printed, and its exit status, None where it had to be ended.

    A finding is a line of the tool's that is none of its usual ones, with the indented lines below it. The process is to be
    trusted when it ran every case, when the tool summed up, and when what it counted is what it showed.
    """
    findings = tuple(_findings(output))
    counted = [int(one["count"]) for one in map(_CHATTER.match, _heads(output)) if one and one["count"]]
    broken = ""
    if status is None:
        broken = f"not done after {LONGEST_PART_SECONDS} seconds"
    elif not DONE.search(output):
        broken = f"it ended before it ran every case, with status {status}"
    elif status:
        broken = f"it ran every case and ended with status {status}"
    elif not counted:
        broken = "the tool did not sum up"
    elif any(counted) and not findings:
        broken = f"the tool counts {sum(counted)} and shows none"
    return Report(findings, broken)


def _heads(output: str) -> Iterator[str]:
    return (head[1] for head in map(_HEAD.match, output.splitlines()) if head)


def _findings(output: str) -> Iterator[Finding]:
    told: list[str] = []
    for line in (*output.splitlines(), "========= COMPUTE-SANITIZER"):
        if told and (detail := _DETAIL.match(line)):
            told.append(detail[1])
        elif head := _HEAD.match(line):
            if told:
                yield _finding(told)
            told = [] if _CHATTER.match(head[1]) else [head[1]]


def _finding(told: Sequence[str]) -> Finding:
    kernels = (found[1] for found in map(_KERNEL.search, told) if found)
    hazards = sum(int(count) for line in told for count in _HAZARDS.findall(line))
    return Finding(told[0], next(kernels, ""), hazards or 1)


def verdict(tool: str, reports: Sequence[Report]) -> tuple[str, bool]:
    """Return a table of what `tool` found, kernel by kernel, and whether all is well."""
    hazards: Counter[tuple[bool, str]] = Counter()
    places: Counter[tuple[bool, str]] = Counter()
    for finding in (finding for report in reports for finding in report.findings):
        row = (finding.is_of_cublas, finding.kernel or finding.what)
        hazards[row] += finding.hazards
        places[row] += 1
    broken = [f"part {number}: {report.broken}" for number, report in enumerate(reports, 1) if report.broken]
    lines = [f"{tool}: {'clean' if all(report.is_clean for report in reports) else 'FAILED'}"]
    for row in sorted(places):
        is_of_cublas, name = row
        word = "cuBLAS" if is_of_cublas else "FAILED"
        lines.append(f"  {word}  {hazards[row]:12,} times  {places[row]:6,} places  {name}")
    lines += [f"  FAILED  {one}" for one in broken]
    return "\n".join(lines), all(report.is_clean for report in reports)


def output_of(command: Sequence[str], part: int, parts: int, log: Path, only: str = "") -> tuple[str, int | None]:
    """Run one part of the cases, keep what is printed in `log`, and return it with the exit status."""
    run = (sys.executable, str(RUN), "--part", f"{part}/{parts}", "--seconds", str(LONGEST_PART_SECONDS), "--only", only)
    # In a debug build waits end after seconds, which a tool may well take.
    paths = os.pathsep.join((str(TESTS), *filter(None, (os.environ.get("PYTHONPATH"),))))
    environment = os.environ | {"MINRNN_DEBUG": "0", "PYTHONPATH": paths}
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                (*command, *run),
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=LONGEST_PART_SECONDS + SECONDS_TO_END,
                check=False,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = None
    return log.read_text(encoding="utf-8", errors="replace"), status


def run_parts(command: Sequence[str], name: str, parts: int, only: str = "") -> list[tuple[str, int | None]]:
    """Run all parts of the cases at once, of those with the word `only` in their names."""
    with ThreadPoolExecutor(parts) as pool:
        return list(
            pool.map(lambda part: output_of(command, part, parts, LOGS / f"{name}-{part}.txt", only), range(1, parts + 1))
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="where compute-sanitizer is")
    parser.add_argument("--only", default="", metavar="WORD", help="the cases with this in their names, such as large")
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(TOOLS)}; all without")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.tools) - set(TOOLS):
        parser.error(f"{', '.join(sorted(unknown))} is given; allowed: {', '.join(TOOLS)}")
    LOGS.mkdir(parents=True, exist_ok=True)

    started = time.monotonic()
    plain = run_parts((), "plain", min(os.cpu_count() or 1, PARTS_COMPILING_MOST), chosen.only)
    for output, status in plain:
        if status != 0 or not DONE.search(output):
            print(f"without a tool: FAILED with status {status}; what it printed is in {LOGS}\n{output[-2000:]}")
            return 1
    print(f"without a tool: every case ran ({time.monotonic() - started:.0f} s)", flush=True)

    # A tool complains about a process that calls nothing.
    parts = min(PARTS, sum(int(count) for output, _ in plain for count in DONE.findall(output)))
    is_clean = True
    for tool in chosen.tools or TOOLS:
        started = time.monotonic()
        command = (chosen.sanitizer, "--tool", tool, "--print-limit", str(FINDINGS_SHOWN))
        try:
            reports = [read_report(*one) for one in run_parts(command, tool, parts, chosen.only)]
        except FileNotFoundError:
            parser.error(f"{chosen.sanitizer} is not there; it comes with the CUDA toolkit, and --sanitizer says where it is")
        table, tool_is_clean = verdict(tool, reports)
        print(f"{table}\n  ({time.monotonic() - started:.0f} s)", flush=True)
        is_clean &= tool_is_clean
    if not is_clean:
        print(f"what the tools printed is in {LOGS}")
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
