"""Records of shares as one record."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

from benchmarks.report.record import Record, Row
from benchmarks.suites import SUITES
from minrnn_gen.errors import BadInput

_SHARE = re.compile(r" --share \d+/\d+")


def joined(parts: Sequence[Record]) -> Record:
    """Return the record of all rows of `parts`, in the order of the tables.

    Raises BadInput where the parts are of different commands, GPUs, drivers, versions or methods.
    """
    first, *others = parts
    for other in others:
        for name in ("command", "gpu", "driver", "versions", "method"):
            if _known(first, name) != _known(other, name):
                raise BadInput(f"join: parts differ in their {name}; give shares of one command, measured on GPUs of one kind")
    command = f"{_known(first, 'command')}{f', in {len(parts)} shares' if others else ''}"
    rows = sorted(chain.from_iterable(part.rows for part in parts), key=_place_of(first))
    is_complete = all(part.is_complete for part in parts)
    return first.model_copy(update={"command": command, "rows": tuple(rows), "is_complete": is_complete})


def _known(record: Record, name: str) -> object:
    value = getattr(record, name)
    return _SHARE.sub("", value) if name == "command" else value


def _place_of(record: Record) -> Callable[[Row], int]:
    """Return the place of a row's problem among those of its command."""
    suite = SUITES[record.command.split()[3]]
    problems = chain.from_iterable(suite.problems(table, quick) for quick in (False, True) for table in suite.tables)
    places = {problem: place for place, problem in enumerate(dict.fromkeys(problems))}
    return lambda row: places[row.problem]
