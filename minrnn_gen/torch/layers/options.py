"""The keywords of layers by name and type: what editors complete, help shows, type checkers hold and errors suggest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

import torch

from minrnn_gen.call.keywords import shows_keywords
from minrnn_gen.precision import Fp32Product, FunctionAccuracy

Function = TypeVar("Function", bound=Callable[..., Any])


class SpecOptions(TypedDict, total=False):
    """The keys of a spec for which a layer has no arguments of its own (docs/spec.md)."""

    functions: FunctionAccuracy | None
    fp32_product: Fp32Product | None  # None: as torch's own settings say
    scan_arithmetic: Literal["linear", "log"]
    recurrent_gradient_clip: float | None
    state_size: int | None
    groups: int | None
    projection_size: int | None
    gpu: str | None
    batch: int | None
    time: int | None


class LayerOptions(SpecOptions, total=False):
    """The keyword arguments of all layers."""

    heads: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    precision: str | torch.dtype | None
    recurrent_bias: bool | None
    forget_bias: float | None
    device: Any
    dtype: torch.dtype | None


# As a layer has them where they are left out; of the keys of a spec, what the spec has.
_DEFAULTS: dict[str, Any] = {
    "heads": 1,
    "bias": True,
    "batch_first": True,
    "dropout": 0.0,
    "bidirectional": False,
    "proj_size": 0,
    "scan_arithmetic": "linear",
}
_TYPES = get_type_hints(LayerOptions)
OPTIONS = tuple(get_type_hints(SpecOptions))
KEYWORDS = (*(name for name in _TYPES if name not in OPTIONS), *OPTIONS)


def keywords_of(layer: type) -> tuple[str, ...]:
    """Return the names that the constructor of a layer takes by keyword, its own first."""
    own = [
        name for name, parameter in inspect.signature(layer).parameters.items() if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return tuple(dict.fromkeys((*own, *KEYWORDS)))


def shows_options(function: Function) -> Function:
    """Give a constructor with **options the signature in which each of them stands by its name."""
    return shows_keywords(function, {name: _TYPES[name] for name in KEYWORDS}, _DEFAULTS)
