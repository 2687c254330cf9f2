"""`python -m benchmarks serve`: its contenders compute the same step, a peer that fails says so, and the table has them all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_runner import Command
from support.uncompiled_kernels import nothing_compiled

torch = pytest.importorskip("torch")

from benchmarks import serving_suite as suite  # noqa: E402

SMALL = (suite.Problem(2, 1, 8, 4, torch.float32), suite.Problem(3, 2, 4, 4, torch.bfloat16))


class Graph:
    """A CUDA graph that replays nothing; what is captured runs."""

    def replay(self) -> None:
        """Do nothing."""


class Event:
    """An event of a stream on which a replay takes 8 microseconds."""

    def __init__(self, **_options: bool) -> None:
        """Take what an event takes."""

    def record(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, _end: Event) -> float:
        """Return milliseconds."""
        return 8e-3


@pytest.fixture
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measure small problems in host memory, as on a GPU."""
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "get_device_name": lambda: "a GPU",
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": lambda _: contextlib.nullcontext(),
        "Event": Event,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name, value in {"DEVICE": "cpu", "COLD_BYTES": 0, "LAUNCHES": 2, "problems": lambda _: iter(SMALL)}.items():
        monkeypatch.setattr(suite, name, value)
    monkeypatch.setenv("MINRNN_CPU", "numpy")
    with nothing_compiled():
        yield


def peer_of(folder: Path, body: str) -> Path:
    """Write a peer's source, with a softplus.py next to it, as its own repository has them."""
    (folder / "softplus.py").write_text("from torch.nn.functional import softplus\n")
    (path := folder / "peer_step.py").write_text(body)
    return path


THEIRS = """
from peer.softplus import softplus
def selective_state_update(pool, x, dt, a, b, c, d, z, bias, dt_softplus, state_batch_indices):
    dt = softplus((dt + bias).float())[..., None]
    h = (dt * a).exp() * pool[state_batch_indices].float() + dt * x.float()[..., None] * b.float()[:, :, None]
    y = (h * c.float()[:, :, None]).sum(-1) + d * x
    return y * z.float() * z.float().sigmoid()
"""


@pytest.mark.usefixtures("_on_a_cpu")
def test_every_contender_computes_the_step_and_is_in_the_table(command: Command, tmp_path: Path) -> None:
    ran = command("serve", "--mamba", str(peer_of(tmp_path, THEIRS)))
    assert ran.status == 0, ran.error
    heading, *lines = ran.out.splitlines()
    assert heading.startswith("a GPU, torch ")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["problem"] for row in rows] == [problem.label for problem in SMALL]
    names = ["copy", "rows", "slots", "half padded", "gathered", "compat", "mamba_ssm", "draft", "draft, states kept"]
    for row, roundoff in zip(rows, (1e-5, 2e-2), strict=True):
        assert {row[name] for name in names} == {4.0}
        assert all(row[f"{name} error"] < roundoff for name in ("slots", "gathered", "compat", "mamba_ssm"))
    shown = [line for line in lines if line.startswith("| ")]
    assert [cell.strip() for cell in shown[0].strip("|").split("|")] == ["problem", *names, "error"] and len(shown) == 4


@pytest.mark.usefixtures("_on_a_cpu")
def test_a_peer_that_fails_says_so_in_its_cell(tmp_path: Path) -> None:
    failing = suite.peer(peer_of(tmp_path, "def step(*_, **__):\n    raise RuntimeError('no\\nstates')\n"), "step")
    row = suite.measure(SMALL[0], {"theirs": failing})
    assert row["theirs"] == "RuntimeError: no states" and row["slots"] == 4.0


def test_without_a_gpu_it_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = command("serve")
    assert ran.status == 2 and "serve was asked for without a GPU; run it on a machine with one" in ran.error
