"""`replace` on subclasses of torch.nn's layers: ours behind their own methods, or one sentence why not."""

from __future__ import annotations

import abc
import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")


class Plain(torch.nn.GRU):
    """Another name."""


class Scaled(abc.ABC, torch.nn.LSTM):
    """Around super().forward, with a state and methods of its own."""

    def __init__(self, *sizes: int, scale: float = 2.0, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.scale = torch.nn.Parameter(torch.tensor(scale))
        self.calls = 0

    def widened(self, x: Any) -> Any:
        return x * self.scale

    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> Any:
        self.calls += 1
        y, states = super().forward(self.widened(x), hx=hx)
        return y if lengths is None else y[:lengths], states


class Deeper(Scaled):
    def forward(self, x: Any, *more: Any) -> Any:
        run = super().forward
        return (lambda: run(x, *more))()


class OlderWay(torch.nn.RNN):
    def forward(self, x: Any, hx: Any = None) -> Any:
        return super(OlderWay, self).forward(x, hx)  # noqa: UP008


class WithStep(torch.nn.LSTM):
    """Names of its own that ours have too, and need not."""

    def step(self) -> str:
        return "theirs"


class ByName(torch.nn.LSTM):
    def forward(self, x: Any, hx: Any = None) -> Any:
        return torch.nn.LSTM.forward(self, 2 * x, hx)


class Itself(torch.nn.GRU):
    def forward(self, x: Any) -> Any:
        return super().extra_repr(), x


class Wrapped(Scaled):
    forward = Itself.forward


class OwnChecks(torch.nn.LSTM):
    def check_input(self, *_: Any) -> None:
        raise RuntimeError("only ones are expected")


class OwnNames(torch.nn.LSTM):
    def _run(self) -> None: ...


class OwnBase(torch.nn.RNNBase):
    def __init__(self) -> None:
        super().__init__("LSTM", 3, 4)


class OfOurs(wing.nn.LSTM):
    """A subclass of ours, which needs nothing."""


TAKEN = (Plain, Scaled, Deeper, OlderWay, WithStep)
LEFT: dict[type, str] = {
    ByName: r"the forward of .*ByName does not call super\(\)\.forward",
    Itself: r"the forward of .*Itself does not call super\(\)\.forward",
    Wrapped: r"the forward of .*Wrapped does not call super\(\)\.forward",
    OwnChecks: r"it has its own check_input, which only the forward of torch\.nn\.LSTM calls",
    OwnNames: r"it has its own _run, a name that layers of minrnn_gen need",
    OwnBase: r"it is a subclass of torch\.nn\.RNNBase, and it has no forward of torch's to take the place of",
    OfOurs: r"it is computed by the kernels already",
}
X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0)).double()


def outcome(layer: Any) -> list[Any]:
    x = X.clone().requires_grad_()
    y, last = layer(x)
    last = last[0] if isinstance(last, tuple) else last
    return [y, last, *torch.autograd.grad(y.square().sum() + last.sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: kind.__name__)
def test_those_that_call_super_are_replaced(kind: Any) -> None:
    layer = kind(3, 4, num_layers=2).double()
    theirs, model = copy.deepcopy(layer), torch.nn.ModuleDict({"layer": layer})
    left = wing.replace(model)
    assert left.left[0].reason.endswith("; replace(model, subclasses=True) takes it") and type(layer) is kind
    report = wing.replace(model, subclasses=True)
    (base,) = (base for base in ("LSTM", "GRU", "RNN") if issubclass(kind, getattr(torch.nn, base)))
    assert report.replaced[0].after == f"{__name__}.{kind.__name__} over minrnn_gen.torch.nn.{base}" and not report.left
    assert isinstance(layer, kind) and isinstance(layer, getattr(wing.nn, base)) and repr(layer) == repr(theirs)
    for one, other in zip(outcome(layer), outcome(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert getattr(layer, "calls", 0) == getattr(theirs, "calls", 0)
    assert wing.replace(model, subclasses=True).left[0].reason == "it is computed by the kernels already"
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False)):
        assert type(again) is type(layer)
        assert all(map(torch.equal, outcome(again), outcome(layer)))
    with pytest.raises(BadInput, match="dropout is 2"):
        layer.dropout = 2
    back = wing.replace(model, back=True)
    assert type(layer) is kind and len(back.replaced) == 1
    assert all(map(torch.equal, outcome(layer), outcome(theirs)))


@pytest.mark.parametrize("kind", LEFT, ids=lambda kind: kind.__name__)
def test_all_others_are_left_and_say_why(kind: Any) -> None:
    layer = kind() if kind is OwnBase else kind(3, 4)
    for subclasses in (False, True):
        report = wing.replace(layer, subclasses=subclasses)
        assert type(layer) is kind and not report.replaced
        assert re.search(LEFT[kind], report.left[0].reason), report.left[0].reason


def test_attributes_that_ours_need_are_not_hidden() -> None:
    layer = Plain(3, 4)
    layer.states = ["theirs"]
    report = wing.replace(layer, subclasses=True)
    assert "it has its own states, a name that layers of minrnn_gen need" in report.left[0].reason
    assert layer.states == ["theirs"] and WithStep(3, 4).step() == "theirs"
    with pytest.raises(BadInput, match="subclasses is 1; True or False is expected"):
        wing.replace(layer, subclasses=1)


def test_a_method_of_their_own_stays_theirs() -> None:
    layer = WithStep(3, 4)
    wing.replace(layer, subclasses=True)
    assert layer.step() == "theirs" and isinstance(layer, wing.nn.LSTM)


def test_projected_layers_are_replaced() -> None:
    layer = torch.nn.LSTM(3, 4, proj_size=2).double()
    theirs = copy.deepcopy(layer)
    report = wing.replace(layer)
    assert str(report.replaced[0]).endswith("is now minrnn_gen.torch.nn.LSTM")
    assert type(layer) is wing.nn.LSTM
    torch.testing.assert_close(outcome(layer), outcome(theirs))


# Pieces of a forward, and whether it is cooperative with them.
PIECES: dict[str, tuple[Callable[[type], Callable[..., Any]], bool]] = {
    "super": (lambda kind: lambda self, x, hx=None: super(kind, self).forward(x, hx), True),
    "by name": (lambda _kind: lambda self, x, hx=None: torch.nn.GRU.forward(self, x, hx), False),
    "none": (lambda _kind: lambda _self, x, hx=None: (x, hx), False),
}


@given(st.lists(st.sampled_from((*PIECES, "inherited")), min_size=1, max_size=4))
def test_any_chain_of_subclasses(pieces: list[str]) -> None:
    """Replaced is a chain in which every forward of its own hands on; what it computes stays."""
    kind: Any = torch.nn.GRU
    cooperates = True
    for piece in pieces:
        kind = type(kind)("Link", (kind,), {})
        if piece != "inherited":
            make, hands_on = PIECES[piece]
            kind.forward = make(kind)
            cooperates = cooperates and hands_on
    layer = kind(3, 4).double()
    with torch.no_grad():
        expected = layer(X)[0]
        report = wing.replace(layer, subclasses=True)
        assert bool(report.replaced) == cooperates, report
        torch.testing.assert_close(layer(X)[0], expected, rtol=0, atol=1e-12)
