"""One GPU's share of a command's problems, where several of a host measure them at the same time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from benchmarks.problems.scan_problems import Problem
from minrnn_gen.errors import BadInput, shown


class Share(NamedTuple):
    """Number of a share, from 1 on, and how many there are."""

    number: int
    shares: int


def share_of(text: str) -> Share:
    """Return the share that `text` names, such as 2/4; raises BadInput for any other text."""
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
    share = Share(int(match[1]), int(match[2])) if match else None
    if share is None or share.number > share.shares:
        raise BadInput(f"--share: {shown(text)} is given; give its number and how many there are, from 1/4 to 4/4 for four")
    return share


def problems_of_share(problems: Sequence[Problem], share: Share) -> tuple[Problem, ...]:
    """Return every `share.shares`-th shape of `problems`, with all its precisions and tasks, which share inputs."""
    shapes = [tuple(of_shape) for _, of_shape in groupby(problems, _shape_of)]
    return tuple(problem for of_shape in shapes[share.number - 1 :: share.shares] for problem in of_shape)


def _shape_of(problem: Problem) -> Problem:
    return problem.model_copy(
        update={"precision": "fp32", "autocast": False, "task": "forward", "limit_ms": None, "goal": None}
    )
