"""Torch's uses of a module, for every layer there is: compile, export, pickle, deepcopy, autocast, vmap."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
every_layer = needed("support.every_layer")
LAYERS, outcome = every_layer.LAYERS, every_layer.outcome
OF_EACH = every_layer.parameters()


@pytest.fixture(autouse=True)
def _layers_of_torch_may_be_compiled() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_no_layer_is_missing() -> None:
    """Modules that are exported, and those that any file of the package defines for others to take."""
    packages = [importlib.import_module(f"minrnn_gen.{room}") for room in ("torch", "compat")]
    exported = [getattr(module, name) for module in (wing, wing.nn) for name in module.__all__]
    defined = []
    for package in packages:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                module = importlib.import_module(found.name)
            except ImportError:
                continue  # a library that is not installed here
            defined += [kind for kind in vars(module).values() if getattr(kind, "__module__", None) == found.name]
    kinds = {one for one in (*exported, *defined) if inspect.isclass(one) and issubclass(one, torch.nn.Module)}
    public = {kind for kind in kinds if kind.__module__.startswith("minrnn_gen.") and not kind.__name__.startswith("_")}
    # Neurons have arguments and states of their libraries, which tests/compat holds.
    neurons = {kind for kind in public if kind.__module__.rpartition(".")[2] in ("snntorch", "spikingjelly")}
    assert public - neurons == {layer.kind for layer in LAYERS}
    assert {*every_layer.DIFFERENT} <= public


@pytest.mark.parametrize("layer", OF_EACH)
def test_it_is_compiled_in_one_piece(layer: Any) -> None:
    made = layer.make()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, time in ((3, 4), (2, 6)):
        x = layer.input(batch, time)
        assert_same(outcome(made, x, compiled), outcome(made, x))


@pytest.mark.parametrize("layer", OF_EACH)
def test_it_is_exported(layer: Any) -> None:
    made = layer.make().eval()
    time = torch.export.Dim("time", min=2)
    program = torch.export.export(made, (layer.input(),), dynamic_shapes=({1 if layer.batch_first else 0: time},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    x = layer.input(time=7)
    with torch.no_grad():
        assert_same(every_layer.flat(torch.export.load(buffer).module()(x)), every_layer.flat(made(x)))


@pytest.mark.parametrize("layer", OF_EACH)
def test_it_is_copied(layer: Any) -> None:
    made, x = layer.make(), layer.input()
    expected = outcome(made, x)
    saved = io.BytesIO()
    torch.save(made, saved)
    saved.seek(0)
    for again in (
        copy.deepcopy(made),
        copy.copy(made),
        pickle.loads(pickle.dumps(made)),
        torch.load(saved, weights_only=False),
    ):
        assert type(again) is layer.kind and repr(again) == repr(made)
        assert_same(outcome(again, x), expected)
    fresh = layer.make()
    fresh.load_state_dict(made.state_dict())
    assert_same(outcome(fresh, x), expected)


@pytest.mark.parametrize("layer", OF_EACH)
def test_autocast_casts(layer: Any) -> None:
    made, x = layer.make(), layer.input()
    expected = outcome(made, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = outcome(made, x)
    assert found[0].dtype is torch.bfloat16 or layer.kind in (wing.nn.GRU,)
    for one, other in zip(found, expected, strict=True):
        assert (one.float() - other).norm() <= 0.05 * other.norm()


@pytest.mark.parametrize("layer", OF_EACH)
def test_vmap_is_a_call_of_each(layer: Any) -> None:
    made, x = layer.make(), layer.input()
    made.eval()
    with torch.no_grad():
        expected, found = made(x), torch.func.vmap(made)(torch.stack((x, x)))
    for one, other in zip(found, expected, strict=True):
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) else ((one, other),)
        for batched, single in pairs:
            torch.testing.assert_close(batched, torch.stack((single, single)))
