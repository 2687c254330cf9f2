"""`make fuzz`: drawn cells and calls, on the CPU target and as emulated kernels, held against the oracle until it is stopped.

Where torch is, attributes are set on layers too, in any order: each is the layer that would be made so, or refuses.

A failure is shrunk, printed with how to repeat it, and ends the run; `.hypothesis` keeps it for the next.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.drawn_calls import Subject, check
from support.drawn_cells import DrawnCall, DrawnCell, calls, cells

from minrnn_gen.errors import Infeasible

ROUND_EXAMPLES = 25


def main() -> int:
    """Draw until the time is over; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other round after so many")
    parser.add_argument("--only", choices=("cpu", "emulated"), help="hold this target alone against the oracle")
    asked = parser.parse_args()
    judged = total = examples = 0

    @settings(max_examples=ROUND_EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(cells(), calls())
    def round_of_examples(cell: DrawnCell, call: DrawnCall) -> None:
        nonlocal judged, total, examples
        subject = Subject(cell, call, other=call.seed % 3)
        kernels = {"cpu": lambda: subject.on_cpu, "emulated": lambda: subject.emulated}
        for target in (asked.only,) if asked.only else kernels:
            try:
                verdict = check(subject, kernels[target]())
            except Infeasible:  # too many operations for any candidate
                assume(False)
            assert not verdict.wrong, (target, cell.document, verdict.wrong)
            judged, total, examples = judged + verdict.judged, total + verdict.total, examples + 1

    rounds = [round_of_examples, *_rounds_with_torch()]
    started = time.monotonic()
    try:
        while time.monotonic() - started < 60 * asked.minutes:
            for draw in rounds:
                draw()
            minutes = (time.monotonic() - started) / 60
            print(f"{minutes:.1f} min  {examples:,} calls, {judged:,} of {total:,} numbers judged", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    except AssertionError as wrong:
        print(f"wrong: {wrong}", *getattr(wrong, "__notes__", ()), sep="\n")
        return 1
    return 0


def _rounds_with_torch() -> list[Callable[[], None]]:
    """Return the rounds of examples that need torch; none without it."""
    if importlib.util.find_spec("torch") is None:
        return []
    from support.set_later import check_drawn

    @settings(max_examples=ROUND_EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attributes_set_later(data: st.DataObject) -> None:
        check_drawn(data.draw)

    return [attributes_set_later]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="minrnn-fuzz-") as folder:
        os.environ.setdefault("MINRNN_CACHE_DIR", folder)
        sys.exit(main())
