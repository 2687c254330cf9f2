"""A scan with its projection in one kernel: which calls have it, and that it computes what two kernels do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.emulated_code import HAS_COMPILER
from support.small_problems import INPUTS, PROJECTED, WantedBuilder, WantedProjection
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.projected import projected_at
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.store import Store
from minrnn_gen.call.interface import Interface
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import SLOW, Case, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import leaves
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.scan.projected import TILE_STEPS
from minrnn_gen.precision import error_allowed
from minrnn_gen.run.ahead import passes_of, plain_specialization
from minrnn_gen.run.target import target_of

LARGE = {"model": "min_gru", "hidden_size": 1024, "input_size": 1024, "precision": "bf16", "gpu": "h200"}
CASE = Case(2, 2 * TILE_STEPS)


def is_projected(spec: dict[str, Any], batch: int = 8, time: int = 4096) -> bool:
    loaded = load_spec(LARGE | spec)
    return projected_at(builder_of(loaded, target_of(loaded)), Sizes(batch, time)) is not None


def test_where_two_kernels_take_longer_it_is_one() -> None:
    with nothing_compiled(plans_sizes=True):
        assert is_projected({}) and is_projected({"precision": "fp16"}) and is_projected({"model": "min_gru_log"})
        assert is_projected({"hidden_size": 768, "input_size": 768}, 16, 1024)


@pytest.fixture(autouse=True)
def _is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINRNN_PROJECTED_SCAN", raising=False)


def test_the_environment_may_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_PROJECTED_SCAN", "never")
    assert not is_projected({})
    monkeypatch.setenv("MINRNN_PROJECTED_SCAN", "sometimes")
    with pytest.raises(BadInput, match="MINRNN_PROJECTED_SCAN is 'sometimes'"):
        is_projected({})


@pytest.mark.parametrize(
    "other",
    [
        {"precision": "fp32"},
        {"gpu": "a100"},
        {"layout": "BDT"},
        {"layout": "TBD"},
        {"direction": "reverse"},
        {"direction": "bidirectional"},
        {"hidden_size": 1000},
        {"input_size": 1000},
        {"input_size": None},
        {"model": "min_lstm"},  # more gates than a lane has registers for
        {"model": "ind_rnn"},
        {"model": "lstm"},
    ],
    ids=str,
)
def test_what_has_no_such_kernel_is_two(other: dict[str, Any]) -> None:
    assert not is_projected(other)


def test_short_and_very_long_sequences_are_two_kernels() -> None:
    assert not is_projected({}, 1, 128) and not is_projected({}, 8, 4095)
    # The states would go through more tiles, one after the other, than the products take time.
    assert not is_projected({"hidden_size": 512, "input_size": 512}, 1, 65536)


def test_it_is_built_ahead_and_explained() -> None:
    spec = load_spec(LARGE)
    builder, sizes = builder_of(spec, target_of(spec)), Sizes(8, 4096)
    projected = projected_at(builder, sizes)
    assert projected is not None and plain_specialization(builder, "forward", sizes) == projected
    assert ("forward", projected) in passes_of(builder, sizes)
    assert plain_specialization(builder, "forward", Sizes(8, 100)).input_size == 0


class ApartBuilder(WantedBuilder):
    """Never projects in the kernel of a scan."""

    @property
    def projection(self) -> ProjectionChoice:
        return WantedProjection(is_wanted=False)


@pytest.fixture(scope="module")
def kernels(emulated_kernels: Path) -> Iterator[tuple[InterpretedKernel, InterpretedKernel]]:
    """The same spec by one kernel, and by two."""
    spec = load_spec({"model": "min_gru", "gpu": "h200", **INPUTS})
    made = []
    for kind in (WantedBuilder, ApartBuilder):
        builder = kind(spec, target_of(spec), Store(emulated_kernels), wanted=tuple(PROJECTED.items()))
        key = builder.choose("forward", builder.hinted_specialization, builder.hinted_sizes)
        made.append(InterpretedKernel(builder, (builder.build(key),)))
    yield made[0], made[1]


def arrays_of(interface: Interface, **changes: Any) -> dict[str, Any]:
    return inputs_of(interface, CASE).forward | changes


def entries(kernel: InterpretedKernel) -> set[str]:
    return {built.plan.entry for built in kernel.backend.built.values()}


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
def test_one_kernel_computes_what_two_do(kernels: tuple[InterpretedKernel, InterpretedKernel]) -> None:
    one, two = kernels
    slack = error_allowed(one.interface.precision)
    inputs = inputs_of(one.interface, CASE, SLOW)
    results = {}
    for name, kernel in (("one", one), ("two", two)):
        y, state, saved = kernel.forward(**inputs.forward)
        plain, plain_state = kernel(**inputs.forward)
        # What is saved for a backward changes no bit.
        assert numpy.array_equal(plain, y) and numpy.array_equal(plain_state["h"], state["h"])
        gradients = dict(leaves(kernel.backward(saved, inputs.dy, inputs.dstate)))
        results[name] = {"y": y, "h": state["h"], "preactivations": saved.arrays()[-1], **gradients}
    assert "projected_forward" in entries(one) and "projected_forward" not in entries(two)
    for name, found in results["one"].items():
        expected = results["two"][name].astype(numpy.float64)
        error = numpy.linalg.norm(found.astype(numpy.float64) - expected)
        assert error <= slack * numpy.linalg.norm(expected), name
    # Channel by channel: slow ones, whose states go from lane to lane and from tile to tile, are small beside others.
    y, expected = (results[name]["y"].astype(numpy.float64) for name in ("one", "two"))
    error, size = (numpy.linalg.norm(values, axis=(0, 1)) for values in (y - expected, expected))
    assert (error <= slack * size).all()


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
@pytest.mark.parametrize("array", ["resets", "lengths", "cu_seqlens"])
def test_calls_with_sequences_of_their_own_are_run_by_two(
    kernels: tuple[InterpretedKernel, InterpretedKernel], array: str
) -> None:
    one, two = kernels
    given = {
        "resets": numpy.arange(CASE.batch * CASE.time).reshape(CASE.batch, CASE.time) % 50 == 0,
        "lengths": numpy.array([CASE.time, 3]),
        "cu_seqlens": numpy.array([0, 5, CASE.time]),
    }
    arrays = arrays_of(one.interface, **{array: given[array]})
    if array == "cu_seqlens":
        arrays["x"] = arrays["x"][:1]
    assert numpy.array_equal(one(**arrays)[0], two(**arrays)[0])
