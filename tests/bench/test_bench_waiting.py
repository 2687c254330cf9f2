"""Contenders of cells with several products or norms in a step, in fp32 on the host against the loop in float64."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch
from support.fake_gpu import OnHost

from benchmarks import suites
from benchmarks.contenders import waiting_cells
from benchmarks.problems import dense_problems
from benchmarks.problems.scan_problems import Problem, Task
from benchmarks.reference.waiting_steps import WAITING_STEPS
from minrnn_gen.precision import error_allowed, precision_of

# The call of TorchRL's kernel in torch: inputs before a in the rows of a block, r, n and z side by side in its gates.
PEER = """
    from torchrl._utils import _triton_version_at_least
    import torch

    assert _triton_version_at_least("3.3") and not _triton_version_at_least("99.0")

    def dreamer_v3_block_gru_triton(x, h, _, matrix, bias, scale, dynamic, gates, *others):
        first, first_bias, first_scale = dynamic
        _, act, eps, update_bias, n, _ = others

        def rms(v):
            return v * (v.square().mean(-1, keepdim=True) + eps).rsqrt()

        ys = []
        for x_t in x.unbind(1):
            a = act(rms(h @ matrix.T + bias) * scale)
            shared = torch.cat((x_t, a), -1)[:, None].expand(-1, n, -1)
            into = torch.cat((h.reshape(len(h), n, -1), shared), -1)
            k = act(rms(torch.einsum("bni,nio->bno", into, first).reshape(len(h), -1) + first_bias) * first_scale)
            products = torch.einsum("bni,nio->bno", k.reshape(len(h), n, -1), gates)
            r, c, u = (part.reshape(len(h), -1) for part in products.chunk(3, -1))
            u = torch.sigmoid(u + update_bias)
            h = u * torch.tanh(torch.sigmoid(r) * c) + (1 - u) * h
            ys.append(h)
        return torch.stack(ys, 1), h
"""


def problem_of(model: str, task: Task) -> Problem:
    heads, projected = (2, 12) if model == "block_gru" else (1, 6 if model == "lstm_projected" else None)
    sizes = {"batch": 3, "time": 5, "channels": 12, "heads": heads, "projection_size": projected}
    return Problem(table="waiting", task=task, model=model, precision="fp32", **sizes)


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with the interface of TorchRL's kernel, and a version of Triton that it takes."""
    monkeypatch.setattr(waiting_cells.metadata, "version", lambda _: "3.6.0")
    for name in ("torchrl", "torchrl._utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    path = tmp_path / "peer.py"
    path.write_text(textwrap.dedent(PEER), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("task", ["forward", "forward + backward"])
@pytest.mark.parametrize("model", sorted(WAITING_STEPS))
def test_every_contender_computes_the_cell(model: str, task: Task, peer: str) -> None:
    problem, names = problem_of(model, task), {*waiting_cells.NAMES} - {waiting_cells.COMPILED}
    found = waiting_cells.contenders(problem, OnHost(torch), names, {}, peer)
    assert {contender.name for contender in found} == {
        "minrnn-gen",
        *(names if model == "block_gru" else names - {waiting_cells.PEER}),
    }
    for contender in found:
        assert contender.judge is not None
        errors = contender.judge(contender.prepare()())
        assert len(errors) == (1 if task == "forward" else 2)
        assert max(errors.values()) < error_allowed(precision_of("fp32")), (contender.name, errors)


def test_the_peer_is_left_out_without_its_file() -> None:
    (problem, *_) = dense_problems.problems_of("waiting", quick=True)
    suite = suites.recurrent_suite(None)
    found = suite.contenders(problem, OnHost(torch), suite.baselines, {})
    assert [contender.name for contender in found] == ["minrnn-gen", *waiting_cells.NAMES[:-1]]


def test_the_problems_are_those_that_were_asked_for() -> None:
    labels = {problem.label: problem.limit_ms for problem in dense_problems.problems_of("waiting")}
    assert labels["block_gru 8 x 64, 16 x 512 bf16"] == pytest.approx(3.5 * 0.512)
    assert labels["layer_norm_lstm 1 x 512, 16 x 512 bf16 forward + backward"] == pytest.approx(5 * 0.512)
