"""The host's work in a call over ranks, in every way, compared with that of one rank alone."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic

from benchmarks.contenders.over_ranks import Host, Inputs, asked_of
from benchmarks.harness.host_calls import LIBRARIES, HostCalls, host_calls
from benchmarks.problems.distributed_problems import PASSES, DistributedProblem, KernelPass
from benchmarks.report.distributed_record import ALONE
from minrnn_gen.kernel import Kernel


class HostRow(pydantic.BaseModel):
    """The host's work of one contender: of the rank whose host takes longest."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    problem: DistributedProblem
    kernel_pass: KernelPass
    contender: str
    rank: int
    calls: HostCalls


def host_rows_of(problem: DistributedProblem, kernel: Kernel, host: Host) -> tuple[HostRow, ...]:
    """Return the rows of a problem, the same on all ranks; one rank alone computes a piece, as the others do."""
    inputs, rows = Inputs(problem, kernel, host), []
    for kernel_pass in PASSES:
        records = kernel_pass != "forward"
        asked = {row.contender: asked for row, asked in asked_of(problem, kernel_pass, kernel, host)}
        for name, groups in {ALONE: {}, **asked}.items():
            arrays = inputs.of(groups) if groups else inputs.piece(host.rank)
            found = host_calls(inputs.run_of(arrays, groups, records), host.start_together)
            of_ranks = host.all_of(found)
            rank = max(range(host.size), key=lambda rank: of_ranks[rank].us)
            rows.append(HostRow(problem=problem, kernel_pass=kernel_pass, contender=name, rank=rank, calls=of_ranks[rank]))
    return tuple(rows)


def host_text(rows: Sequence[HostRow]) -> str:
    """Return rows as a table: microseconds, those above one rank alone, operators, and functions by library."""
    functions = [f"{name} (share)" for name in LIBRARIES]
    titles = ("", "pass", "", "us", f"above {ALONE}", "operators", "collectives", *functions)
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|" + "---:|" * (len(titles) - 3)]
    alone = {(row.problem, row.kernel_pass): row.calls.us for row in rows if row.contender == ALONE}
    for row in rows:
        calls = row.calls
        above = "" if row.contender == ALONE else f"{calls.us - alone[row.problem, row.kernel_pass]:.0f}"
        collectives = sum(count for name, count in calls.operators.items() if name.startswith("c10d::"))
        cells = (row.problem.label, row.kernel_pass, row.contender, f"{calls.us:.0f}", above, f"{calls.operator_count}")
        shares = (f"{calls.functions[name]} ({calls.shares[name]:.0%})" for name in LIBRARIES)
        lines.append(f"| {' | '.join((*cells, str(collectives), *shares))} |")
    return "\n".join(lines) + "\n"
