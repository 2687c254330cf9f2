"""Errors about a spec that a layer makes of its arguments speak of the layer and of its arguments, not of a dict of ours."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.compat.numpy_cells import MinGRUCell
from minrnn_gen.config.spec import ARGUMENTS_OF_LAYERS, Spec, load_spec
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

ROOMS = [Path(minrnn_gen.__file__).parent / room for room in ("compat", "jax", "layers", "torch")]
TOO_LARGE = 2**21
MODULES = [kind for name in wing.__all__ if isinstance(kind := getattr(wing, name), type) and issubclass(kind, torch.nn.Module)]
LAYERS = [kind for kind in MODULES if kind is not wing.SelectiveScan]


def message_of(make: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(BadInput) as refused:
        make(*arguments, **named)
    return str(refused.value)


@pytest.mark.parametrize("layer", [*LAYERS, *(getattr(wing.nn, name) for name in ("LSTM", "GRU", "RNN"))])
def test_layers_name_themselves(layer: type) -> None:
    first = ("lstm",) if layer is wing.RNN else ()
    expected = f"{layer.__name__}: hidden_size: {TOO_LARGE} is given; allowed: an integer from 1 to 1048576"
    assert message_of(layer, *first, 3, TOO_LARGE, device="meta") == expected


def test_layers_of_cells_name_themselves_and_the_place_in_the_cell() -> None:
    typo = {"name": "mine", "equations": "h[t] = sigmoyd(W.h) * h[t-1]"}
    assert message_of(wing.RNN, typo, 3, 4).startswith("RNN: model.equations: line 1, column 8: 'sigmoyd' is not a function")
    assert message_of(wing.RNN, "lstmm", 3, 4).startswith(
        "RNN: model: there is no built-in cell 'lstmm' (did you mean 'lstm'?)"
    )
    assert message_of(wing.LSTM, 3, 6, heads=4).startswith("LSTM: heads: 4 does not divide hidden_size 6")


@pytest.mark.parametrize(
    "name", [name for name in inspect.signature(wing.SelectiveScan).parameters if name not in ("device", "dtype")]
)
def test_a_selective_scan_has_names_of_its_own(name: str) -> None:
    sizes = {"channels": 64, "state_size": 16}
    for wrong in (0, TOO_LARGE, True, 2.0, "8", *((3,) if name == "groups" else ())):
        message = message_of(wing.SelectiveScan, **{**sizes, name: wrong})
        assert message.startswith(f"{name} is ") and message.endswith(" is expected"), message
        assert not {"hidden_size", "<dict>"} & {*message.replace(":", " ").split()}


def test_arguments_of_layers_are_answered_where_a_spec_is_asked_for(tmp_path: Path) -> None:
    spec = {"model": "lstm", "hidden_size": 4}
    path = tmp_path / "spec.yaml"
    of_layers = {*inspect.signature(wing.LSTM).parameters} - {*Spec.model_fields}
    assert of_layers == {*ARGUMENTS_OF_LAYERS}
    for name in of_layers:
        answer = f" ({ARGUMENTS_OF_LAYERS[name]})"
        assert message_of(load_spec, {**spec, name: 2}).startswith(f"<dict>: {name}: unknown key{answer}; allowed: model, ")
        overridden = message_of(load_spec, spec, **{name: 2})
        assert overridden.startswith(f"'{name}'{answer} overrides no key of a spec; allowed: model, ")
        path.write_text(f"model: lstm\nhidden_size: 4\n{name}: 2\n", encoding="utf-8")
        assert f":3: {name}: unknown key{answer}" in message_of(load_spec, path)


def test_a_numpy_cell_names_itself() -> None:
    cell = MinGRUCell(1, TOO_LARGE)
    assert message_of(cell.forward, numpy.zeros(1), numpy.zeros(TOO_LARGE)).startswith("MinGRUCell: hidden_size: ")


def test_every_dict_of_arguments_is_made_a_spec_with_its_callers_name() -> None:
    found = []
    for path in (path for room in ROOMS for path in sorted(room.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("compile", "load_spec"):
                is_dict = bool(node.args) and isinstance(node.args[0], ast.Dict)
                found += [f"{path.name}:{node.lineno}"] if is_dict else []
    assert found == []
    assert "where" not in Spec.model_fields  # a name of errors alone, not of what a spec is
