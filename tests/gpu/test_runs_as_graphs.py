"""Runs that come again on the same memory are launched as graphs: every result has the bits that it had without."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.native import trip
from minrnn_gen.run.recording.operations import Program

torch = pytest.importorskip("torch")
layers = needed("minrnn_gen.torch.nn")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(trip.LIBRARY is None, reason="the package was installed without its C part")]

KINDS = [("LSTM", "float32", False), ("LSTM", "bfloat16", False), ("GRU", "float16", True), ("RNN", "float32", False)]


class Case:
    """A layer and its input, and the gradient of its output.

    A test has units of its own, and so programs of its own: a graph that another test left is not captured again.
    """

    def __init__(self, kind: str, dtype: str, bidirectional: bool, units: int) -> None:
        torch.manual_seed(1)
        settings = {"batch_first": True, "bidirectional": bidirectional, "device": "cuda", "dtype": getattr(torch, dtype)}
        self.layer = getattr(layers, kind)(24, units, **settings)
        self.x = torch.randn(7, 33, 24, device="cuda").to(settings["dtype"]).requires_grad_()
        self.dy = torch.randn(7, 33, 2 * units if bidirectional else units, device="cuda").to(settings["dtype"])

    def step(self) -> list[Any]:
        """Return the results of a training step; what it leaves behind is free again."""
        y, states = self.layer(self.x)
        y.backward(self.dy)
        gradients = [self.x.grad, *(parameter.grad for parameter in self.layer.parameters())]
        found = [array.detach().cpu() for array in (y, *(states if isinstance(states, tuple) else (states,)), *gradients)]
        self.x.grad = None
        self.layer.zero_grad(set_to_none=True)
        return found

    def inference(self) -> list[Any]:
        """Return the results of a call without gradients."""
        with torch.no_grad():
            y, states = self.layer(self.x)
        return [y.cpu(), *(state.cpu() for state in (states if isinstance(states, tuple) else (states,)))]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that were asked to become graphs."""
    asked: list[Program] = []
    capture = Program._capture

    def note(self: Program, *arguments: Any) -> None:
        asked.append(self)
        capture(self, *arguments)

    monkeypatch.setattr(Program, "_capture", note)
    return asked


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype and torch.equal(one, other)


@pytest.mark.parametrize(("kind", "dtype", "bidirectional"), KINDS)
def test_steps_that_repeat_keep_their_bits(kind: str, dtype: str, bidirectional: bool, captured: list[Program]) -> None:
    case = Case(kind, dtype, bidirectional, units=64)
    first, inferred = case.step(), case.inference()
    for _ in range(8):
        assert_same(case.step(), first)
    for _ in range(8):
        assert_same(case.inference(), inferred)
    assert len(captured) >= (0 if bidirectional else 3), "forward, backward, and the forward without gradients"
    with torch.no_grad():  # values that changed in place are read
        for parameter in case.layer.parameters():
            parameter.mul_(0.5)
    other = Case(kind, dtype, bidirectional, units=64)
    other.layer.load_state_dict(case.layer.state_dict())
    assert_same(case.step(), other.step())


def test_other_memory_and_other_streams_are_other_runs(captured: list[Program]) -> None:
    case = Case("LSTM", "float32", False, units=48)
    first, kept = case.step(), []
    for _ in range(12):
        y, _ = case.layer(case.x)
        kept.append(y)
        assert torch.equal(y.detach().cpu(), first[0])
    # A graph of autograd that is alive would have its gradients arrive on its own stream.
    kept.clear()
    del y
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(4):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                assert_same(case.step(), first)
            torch.cuda.current_stream().wait_stream(stream)
    assert captured


def test_a_graph_of_the_callers_has_the_launches(captured: list[Program]) -> None:
    case = Case("LSTM", "bfloat16", False, units=40)
    for _ in range(4):
        inferred = case.inference()
    assert captured
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y, states = case.layer(case.x)
    with torch.no_grad():
        case.x.mul_(2)
    expected = case.inference()
    graph.replay()
    assert_same([y.cpu(), *(state.cpu() for state in states)], expected)
    assert not torch.equal(expected[0], inferred[0])


def test_a_capture_goes_on_while_a_kernel_with_graphs_is_collected(captured: list[Program]) -> None:
    """Destroying a graph would end the capture of the thread that collects."""
    case = Case("LSTM", "float32", False, units=56)
    expected = case.inference()
    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": 72, "input_size": 24, "precision": "fp32"})
    x, weight, R = (torch.randn(*shape, device="cuda") / 9 for shape in ((3, 17, 24), (4 * 72, 24), (4, 1, 72, 72)))
    for _ in range(4):
        y, state = kernel(x, R, weight=weight)
        del y, state
    assert captured
    cycle = [kernel]
    cycle.append(cycle)  # type: ignore[arg-type]
    del kernel, cycle
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        gc.collect()
        y, states = case.layer(case.x)
    graph.replay()
    assert_same([y.cpu(), *(state.cpu() for state in states)], expected)
