"""`python -m benchmarks`: the measurements behind the published tables, from a checkout."""

from __future__ import annotations

import sys

from benchmarks.commands import cpu, distributed, join, picks, serve, tables, tuner
from minrnn_gen.cli.main import run_command

PROGRAM = "python -m benchmarks"

app = tables.app
for command in (tuner.tuner, picks.picks, cpu.cpu, distributed.distributed, serve.serve, join.join):
    app.command()(command)

if __name__ == "__main__":
    sys.exit(run_command(app, PROGRAM))
