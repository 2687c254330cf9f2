"""Output of `MINRNN_LOG`: a line for each kernel on stderr, and calls as ranges of NVTX."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy
import pytest
from support.fake_compiler import Compiler

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import Case, inputs_of

LSTM = {"model": "lstm", "hidden_size": 32, "gpu": "h200", "precision": "bf16"}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
    monkeypatch.setenv("MINRNN_CPU", "numpy")


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where a stand-in of NVTX writes down the ranges, an end as nothing."""
    said: list[str] = []
    package, cuda, nvtx = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.nvtx")
    modules: dict[str, Any] = {"cupy": package, "cupy.cuda": cuda, "cupy.cuda.nvtx": nvtx}
    vars(nvtx).update(RangePush=said.append, RangePop=lambda: said.append(""))
    vars(package).update(cuda=cuda)
    vars(cuda).update(nvtx=nvtx)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return said


def called(**spec: Any) -> None:
    kernel = minrnn_gen.compile(LSTM | spec)
    inputs = inputs_of(kernel.interface, Case(batch=2, time=3, has_resets=False))
    *_, saved = kernel.forward(**inputs.forward)
    kernel.backward(saved, inputs.dy)
    kernel.step(**inputs.step)


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("named", ["", "plan", "plan, ranges"])
def test_every_kernel_is_a_line_that_says_what_it_serves_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    monkeypatch.setenv("MINRNN_LOG", named)
    kernel = minrnn_gen.compile(LSTM)
    kernel.prepare([(16, 64)])
    lines = capsys.readouterr().err.splitlines()
    if not named:
        assert not lines
        return
    assert len(lines) == len(kernel.plans) > 1
    for key, plan in kernel.plans.items():
        states_out = key.specialization.states_out
        keeps = f", states out in {states_out} dtype" if states_out != "none" else ""
        sizes = f"planned for batch {key.sizes.batch}, time {key.sizes.time}, on h200"
        begin = f"minrnn-gen: lstm 32, bf16, BTD: {key.kernel_pass}{keeps}, {sizes}: {plan.symbol} of {plan.template} "
        (line,) = (line for line in lines if line.startswith(begin))
        assert f"us as predicted, most of it {plan.limit.partition(' (term')[0]}" in line


def test_calls_are_ranges_by_cell_and_pass(monkeypatch: pytest.MonkeyPatch, ranges: list[str]) -> None:
    called()
    assert ranges == []
    monkeypatch.setenv("MINRNN_LOG", "ranges")
    called()
    assert ranges == ["minrnn_gen lstm forward", "", "minrnn_gen lstm backward", "", "minrnn_gen lstm step", ""]


def test_a_range_ends_where_a_call_is_refused(monkeypatch: pytest.MonkeyPatch, ranges: list[str]) -> None:
    monkeypatch.setenv("MINRNN_LOG", "ranges")
    with pytest.raises(BadInput):
        minrnn_gen.compile(LSTM)(numpy.zeros(3))
    assert ranges == ["minrnn_gen lstm forward", ""]


def test_what_else_is_named_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_LOG", "plans")
    with pytest.raises(BadInput, match=r"^MINRNN_LOG is 'plans'; allowed: plan for a line per kernel, ranges for calls"):
        minrnn_gen.compile(LSTM)
