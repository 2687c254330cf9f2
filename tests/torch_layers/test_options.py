"""Keywords of layers: help, editors and type checkers know them, and a typo is answered by the nearest."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed

from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
options = needed("minrnn_gen.torch.layers.options")
KEYWORDS, OPTIONS = options.KEYWORDS, options.OPTIONS

LAYERS = [getattr(wing, name) for name in wing.__all__ if isinstance(getattr(wing, name), type)]
# A selective scan is one recurrence between maps of its own, not a stack of recurrences.
LAYERS = [layer for layer in LAYERS if issubclass(layer, torch.nn.Module) and layer is not wing.SelectiveScan]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_every_keyword_stands_in_the_signature(layer: type) -> None:
    parameters = inspect.signature(layer).parameters
    assert {*KEYWORDS} <= {*parameters}
    assert not [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD]


def test_types_and_signatures_name_the_same_keywords() -> None:
    """Type checkers, help, accepted arguments and the spec's own keys agree on one list."""
    own = [
        name
        for name, parameter in inspect.signature(wing.RNN).parameters.items()
        if name not in OPTIONS and parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert {*get_type_hints(options.LayerOptions)} == {*own, *OPTIONS}
    assert {*get_type_hints(options.SpecOptions)} <= {*Spec.model_fields}


@pytest.mark.parametrize("layer", [wing.LSTM, wing.Elman, wing.MinGRU], ids=lambda layer: layer.__name__)
def test_defaults_of_the_signature_may_be_given(layer: Any) -> None:
    parameters = inspect.signature(layer).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if parameter.default is not parameter.empty}
    plain, explicit = layer(5, 6), layer(5, 6, **defaults)
    assert plain._made == explicit._made


@given(st.sampled_from((*KEYWORDS, "nonlinearity")), st.data())
def test_a_typo_is_answered_by_the_nearest_keyword(name: str, data: st.DataObject) -> None:
    if len(name) > 4:
        place = data.draw(st.integers(0, len(name) - 2))
        swapped = name[:place] + name[place + 1] + name[place] + name[place + 2 :]
        if swapped != name:
            with pytest.raises(BadInput, match=rf"did you mean '{name}'"):
                wing.Elman(5, 6, **{swapped: None})


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_arguments_that_torch_takes_by_position_are_asked_for_by_name(layer: Any) -> None:
    first = ("lstm",) if layer is wing.RNN else ()
    with pytest.raises(BadInput, match=rf"^{layer.__name__} got positional arguments after num_layers, .* bidirectional=True"):
        layer(*first, 3, 4, 2, True, True)
    parameters = inspect.signature(layer).parameters
    assert [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL] == []


def test_a_subclass_has_the_signature_of_its_own() -> None:
    class Own(wing.LSTM):
        def __init__(self, width: int) -> None:
            super().__init__(width, width)

    assert [*inspect.signature(Own).parameters] == ["width"]


@pytest.mark.matrix_full
def test_type_checkers_find_a_typo(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    source = tmp_path / "model.py"
    source.write_text(
        "from minrnn_gen.torch.layers.named import LSTM\n"
        "LSTM(3, 4, batch_first=True, functions='fast')\n"
        "LSTM(3, 4, batch_fist=True)\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), str(source)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ":3: error: Unexpected keyword argument" in answer.stdout and ":2:" not in answer.stdout, answer.stdout


def test_a_precision_may_be_a_dtype() -> None:
    assert wing.LSTM(5, 6, precision=torch.bfloat16)._made == wing.LSTM(5, 6, precision="bf16")._made


def test_host_tensors_alone_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sizes a layer is hinted at: where there is no GPU there is nobody to compile for."""

    def compiled(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("minrnn_gen.gpu.driver.has_device", lambda: False)
    monkeypatch.setattr("minrnn_gen.gpu.device.live_device", lambda: None)
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", compiled)
    for layer in (wing.LSTM(5, 7, batch=2, time=3), wing.MinGRU(5, 7, batch=2, time=3), wing.IndRNN(5, 7, 2)):
        layer(torch.randn(2, 3, 5))[0].sum().backward()
