"""Arguments of every front in other dtypes, ranks, sizes and containers: taken, or one sentence that names the argument."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

torch = pytest.importorskip("torch")

from support.differentiable import Front, fronts  # noqa: E402

from minrnn_gen.errors import BadInput  # noqa: E402

NAMES = fronts()
# Functions that another package calls with tensors of its own, and layers, whose own tests have their arguments.
_OF_OTHERS = ("layer", "nn.", "replace", "a module", "transformers", "xlstm", "recurrent_gemma", "torchrl")
CALLED = [name for name in NAMES if not name.startswith(_OF_OTHERS)]
WRONG: dict[str, Callable[[Any], Any]] = {
    "complex numbers": lambda tensor: tensor.to(torch.complex64),
    "integers": lambda tensor: tensor.to(torch.int64),
    "flags": lambda tensor: tensor != 0,
    "8 bits": lambda tensor: tensor.to(torch.float8_e5m2),
    "16 bits": lambda tensor: tensor.to(torch.float16),
    "32 bits": lambda tensor: tensor.to(torch.float32),
    "a list": lambda tensor: tensor.tolist(),
    "an array": lambda tensor: tensor.numpy(),
    "a mapping": lambda tensor: {"x": tensor},
    "text": lambda _: "x",
    "a number": lambda _: 1.0,
    "no axes": lambda tensor: tensor.sum(),
    "an axis more": lambda tensor: tensor[None],
    "an axis less": lambda tensor: tensor[0],
    "another size at the end": lambda tensor: torch.cat((tensor, tensor), -1),
    "another size at the start": lambda tensor: torch.cat((tensor, tensor, tensor)),
    "sparse": lambda tensor: tensor.to_sparse(),
    "nowhere": lambda tensor: tensor.to("meta"),
}
# Other sizes may be found wrong by those of another argument.
OF_SEVERAL = ("an axis", "another size", "nowhere")


@functools.cache
def front_of(name: str) -> Front:
    return NAMES[name]()


def spelling(name: str) -> str:
    """Return the name of an argument as a caller knows it."""
    what, _, inner = name.partition(" ")
    return f"{what}['{inner}']" if inner and what != "its" else name.removeprefix("its ")


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@settings(max_examples=examples(150))
@given(data=st.data())
def test_wrong_arguments_are_taken_or_named(data: st.DataObject) -> None:
    front = front_of(data.draw(st.sampled_from(CALLED)))
    name = data.draw(st.sampled_from([name for name in front.shapes if not name.startswith("its ")]))
    kind = data.draw(st.sampled_from(sorted(WRONG)))
    arguments = {one: tensor.detach() for one, tensor in front.leaves().items()}
    right = arguments[name]
    # Casts of complex numbers to real ones warn.
    wrong = WRONG[kind](right.real.clone() if right.is_complex() and kind != "complex numbers" else right)
    arguments |= {name: wrong, **front.without_gradients()}
    try:
        front.call(arguments)
    except BadInput as error:
        text = str(error)
        assert text.isprintable() and len(text) < 400 and not text.endswith("."), text
        named = [*front.shapes, *front.others] if kind.startswith(OF_SEVERAL) else [name]
        assert any(re.search(rf"(?<!\w){re.escape(spelling(one))}(?!\w)", text) for one in named), f"{kind}: {text}"
