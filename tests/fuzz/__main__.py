"""`make fuzz`: cells, calls, names and whatever else `subjects.py` draws, held to what it has to be until it is stopped.

A failure is shrunk, printed with how to repeat it, and ends the run; `.hypothesis` keeps it for the next.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

import subjects
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def round_of(name: str, counts: Counter[str]) -> Callable[[], None]:
    """Return a round of examples of a subject, which adds to its count."""
    check, examples = subjects.SUBJECTS[name]

    @settings(max_examples=examples, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        check(data.draw)
        counts[name] += 1

    return draw


def main() -> int:
    """Draw until the time is over; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other round after so many")
    parser.add_argument("--only", choices=subjects.SUBJECTS, help="draw this subject alone")
    asked = parser.parse_args()
    counts = Counter[str]()
    rounds = {name: round_of(name, counts) for name in ([asked.only] if asked.only else subjects.SUBJECTS)}
    started, drawn = time.monotonic(), ""
    try:
        while time.monotonic() - started < 60 * asked.minutes:
            for drawn, draw in rounds.items():  # noqa: B007  # the last is told where it is wrong
                draw()
            minutes = (time.monotonic() - started) / 60
            print(f"{minutes:.1f} min  " + ", ".join(f"{count:,} {of}" for of, count in counts.items()), flush=True)
    except KeyboardInterrupt:
        print("stopped")
    except AssertionError as wrong:
        print(f"{drawn} is wrong: {wrong}", *getattr(wrong, "__notes__", ()), sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="minrnn-fuzz-") as folder:
        os.environ.setdefault("MINRNN_CACHE_DIR", folder)
        sys.exit(main())
