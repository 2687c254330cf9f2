"""Second backwards by scans over dual numbers, thread by thread, whose gates and tangents lie in two arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in

import minrnn_gen
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

BATCH, TIME, HIDDEN = 2, 37, 24
# Of float32 in a few operations and a scan of short segments.
TOLERANCE = 64 * float(np.finfo(np.float32).eps)
# Every day along rows and along columns, with resets and without, both ways through time.
WAYS = one_in(
    2,
    (
        ("qrnn", {"layout": "BDT"}, True),
        ("min_lstm", {"layout": "TBD", "direction": "bidirectional"}, True),
        ("rg_lru", {"direction": "reverse"}, False),
        ("min_gru", {}, False),
    ),
)


@pytest.mark.parametrize(("model", "options", "has_resets"), WAYS)
def test_they_are_those_of_the_host(
    monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any], has_resets: bool
) -> None:
    """Without a race; no gradient of a tangent is written, nor gates copied."""
    spec = {"model": model, "hidden_size": HIDDEN, "gpu": "h200", **options}
    exact = minrnn_gen.compile(spec, precision="fp64")
    emulated = minrnn_gen.compile(spec, precision="fp32", device="interpret")
    made: list[InterpretedKernel] = []

    def of_recipe(kernel: InterpretedKernel, recipe: str) -> InterpretedKernel:
        made.append(kernel._like(spec_from(recipe)))
        return made[-1]

    monkeypatch.setattr(InterpretedKernel, "of_recipe", of_recipe)
    interface, generator = exact.interface, np.random.default_rng(0)
    drawn = generator.standard_normal
    x, dx = (drawn(interface.shape(interface.x_axes, BATCH, TIME)) for _ in range(2))
    vectors = [{name: drawn(HIDDEN) for name in interface.parameters} for _ in range(2)]
    state = {name: drawn(interface.shape_of_state(name, BATCH)) for name in interface.states}
    resets = {"resets": generator.random((BATCH, TIME)) < 0.1} if has_resets else {}
    dy = drawn(interface.y_shape(BATCH, TIME))

    def second(kernel: minrnn_gen.Kernel, dtype: type) -> dict[str, Any]:
        def cast(arrays: dict[str, Any]) -> Any:
            return {name: array.astype(dtype) for name, array in arrays.items()} or None

        call = {"parameters": cast(vectors[0]), "state": cast(state)}
        _, _, saved = kernel.forward(x=x.astype(dtype), **call, **resets)
        tangents = {"x": dx.astype(dtype), "parameters": cast(vectors[1])}
        return kernel.second_backward(saved, dy.astype(dtype), tangents, cast(state))

    expected, computed = (_by_name(second(*pair)) for pair in ((exact, np.float64), (emulated, np.float32)))
    assert computed.keys() == expected.keys()
    for name, one in expected.items():
        assert np.abs(computed[name] - one).max() <= TOLERANCE * np.abs(one).max(), name
    (kernel,) = made
    assert {built.plan.is_scan for built in kernel.backend.built.values()} == {True}
    assert {built.plan.problem.kernel_pass for built in kernel.backend.built.values()} == {"forward", "backward"}


def _by_name(gradients: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    computed: dict[str, Any] = {}
    for name, value in gradients.items():
        computed |= _by_name(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return computed
