"""Backwards whose products share an operand: which they are, what is prepared for them, and their gradients against fp64."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.built_kernels import build_nothing
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.examples import examples
from support.fake_device import as_if_on_a_device, executor_on
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.cell_programs import CellPrograms
from minrnn_gen.build.joined_choice import STEP_VALUES_LEAST, JoinedChoice
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.cell.files import library_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import MinrnnError
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import backward_of, forward_of, share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import error_allowed
from minrnn_gen.run.ahead import passes_of, plain_specialization
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.run.recording.plain_program import plain_program
from minrnn_gen.run.target import target_of

LAYER = {"model": "lstm", "hidden_size": 128, "input_size": 64, "precision": "bf16", "gpu": "h200"}
MANY = STEP_VALUES_LEAST // 128


def builder_of(**keys: Any) -> Builder:
    spec = load_spec(LAYER | keys)
    return Builder(spec, target_of(spec), Store(cache_folder()))


def programs_of(equations: str) -> CellPrograms:
    return builder_of(model={"name": "mine", "equations": equations, "output": "h"}).programs


SUMS = ("W.a + R.a", "R.a + 0.5 * h[t-1] + W.a", "2 * W.a + h[t-1] + 2 * R.a", "R.a - h[t-1] + W.a")
APART = ("W.a", "R.a", "W.a - R.a", "W.a + 2 * R.a", "detach(W.a)")
leaves = st.sampled_from((*SUMS, *SUMS, *SUMS, "h[t-1]", *APART)).map(lambda text: f"({text})")
terms = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("{}({})".format, st.sampled_from(("tanh", "sigmoid", "detach", "abs")), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("where({} > {}, {}, {})".format, inner, inner, inner, inner),
        st.builds("surrogate({}, {})".format, inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(120))
@given(terms, st.integers(0, 1 << 16))
def test_what_is_joined_depends_on_sums_alone(term: str, seed: int) -> None:
    """What moves from a gate to its product, in conditions too, changes no gradient."""
    try:
        programs = programs_of(f"c[t] = tanh({term})\nh[t] = c[t] * sigmoid(W.a + R.a)")
        added = programs.products_are_added
    except MinrnnError:  # such as a condition between numbers
        return
    if added:
        program, random = programs.backward.backward, np.random.default_rng(seed)
        values = {name: random.normal(size=64) for name in program.inputs}
        moved = {"W_a": random.normal(size=64)}
        moved["R_a"] = -moved["W_a"]
        expected = program.evaluate(values)
        found = program.evaluate({name: value + moved.get(name, 0.0) for name, value in values.items()})
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "equation", ["h[t] = tanh({})", "h[t] = where({0} > 0, tanh({0}), h[t-1])", "h[t] = 0.5 * h[t-1] + {}"]
)
def test_sums_in_any_order_are_joined(equation: str) -> None:
    assert all(programs_of(equation.format(text)).products_are_added for text in SUMS)
    assert not any(programs_of(equation.format(f"{text} + W.a")).products_are_added for text in SUMS)


@pytest.mark.parametrize(
    "factor", ["where(W.a > 0, 1, 2)", "where(W.a > R.a, 1, 2)", "detach(W.a)", "surrogate(where(W.a > 0, 1, 0), h[t-1])"]
)
def test_a_gate_that_counts_without_its_product_and_has_no_gradient_there_is_not_joined(factor: str) -> None:
    programs = programs_of(f"h[t] = tanh(W.a + R.a) * {factor}")
    results = dict(programs.backward.backward.results)
    assert results["gradient_W_a"] == results["gradient_R_a"] and not programs.products_are_added


def test_cells_layers_and_sizes_that_are_joined() -> None:
    models = {model for model in library_names() if JoinedChoice(True).serves(*_asked(model), MANY)}
    assert models == {"elman", "lstm", "peephole_lstm", "recurrent_lif", "slstm"}
    assert builder_of().joins_products(MANY) and not builder_of().joins_products(MANY - 1)
    # docs/kernels/dense.md: the most inputs on an H200.
    for units, most in ((128, 208), (512, 329)):
        of_inputs = [builder_of(hidden_size=units, input_size=most + more).joins_products(1 << 12) for more in (0, 1)]
        assert of_inputs == [True, False]
    for keys in ({"heads": 2}, {"layout": "BDT"}, {"input_size": None}, {"model": "gru"}, {"gpu": "t4"}):
        assert not builder_of(**keys).joins_products(1 << 12)
    tf32 = {"precision": "fp32", "fp32_product": "tf32"}
    wide = (tf32, {"precision": "fp32"}, {"precision": "fp64"}, tf32 | {"hidden_size": 65})
    joined = [builder_of(**{"hidden_size": 64, **keys}).joins_products(1 << 12) for keys in wide]
    assert joined == [True, False, False, False]


def _asked(model: str) -> tuple[CellPrograms, Any]:
    builder = builder_of(model=model, precision="fp32")
    return builder.programs, builder.target.profile


def test_what_is_explained_is_what_calls_run() -> None:
    builder = builder_of()
    for batch, added in ((MANY, True), (MANY - 1, False)):
        assert plain_specialization(builder, "backward", Sizes(batch, 9)).products_added == added
        assert ("joined" in plain_program(builder, "backward", Sizes(batch, 9))) == added


def test_a_share_of_the_gpu_runs_what_the_whole_chose() -> None:
    builder = builder_of(direction="bidirectional", input_size=200)
    assert builder.joins_products(MANY) and not builder.half.joins_products(MANY)
    passes = passes_of(builder.half, Sizes(MANY, 9), whole=builder)
    added = [specialization.products_added for kernel_pass, specialization in passes if kernel_pass == "backward"]
    assert added == [True, True] and "joined" in dict(passes)


@pytest.mark.parametrize(
    "keys", one_in(2, ({"direction": "reverse", "input_size": 3}, {"direction": "bidirectional", "layout": "TBD"}, {}))
)
def test_calls_of_prepared_sizes_compile_nothing(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for_host(LAYER | keys, plans_sizes=True)
    built, interface = build_nothing(monkeypatch), kernel.interface
    with (
        as_if_on_a_device(kernel, executor=executor_on(kernel, CompiledKernels(kernel.builder, ()))),
        np.errstate(all="ignore"),
    ):
        kernel.prepare([(MANY, 3)])
        backwards = {key.specialization for key in built if key.kernel_pass == "backward"}
        assert backwards and all(specialization.products_added for specialization in backwards)
        built.clear()
        y, _, saved = kernel.forward(**inputs_of(interface, Case(MANY, 3)).forward)
        kernel.backward(saved, y)
    assert built == []


@dataclass(frozen=True)
class JoiningBuilder(EmulatedBuilder):
    """Joins products wherever it `joins` and they can be."""

    joins: bool = False

    @property
    def joined(self) -> JoinedChoice:
        return JoinedChoice(is_everywhere=self.joins)


# Sizes that few vectors divide, of kernels of warps, of single steps and of warpgroups.
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "lstm", "hidden_size": 12, "input_size": 3, "precision": "bf16", "direction": "bidirectional"},
    {"model": "slstm", "hidden_size": 7, "input_size": 8, "precision": "fp16", "layout": "TBD", "direction": "reverse"},
    {"model": "elman", "hidden_size": 5, "input_size": 1, "precision": "fp32", "recurrent_gradient_clip": 0.2},
    {"model": "peephole_lstm", "hidden_size": 64, "input_size": 16, "precision": "bf16"},
    {"model": "recurrent_lif", "hidden_size": 9, "input_size": 7, "precision": "fp64", "direction": "reverse"},
)


@functools.cache
def kernels_of(number: int) -> tuple[InterpretedKernel, InterpretedKernel, Kernel]:
    """Return kernels with joined products and with products apart, and the exact one."""
    spec = load_spec({"gpu": "h200", "batch": 64, "time": 64, "recurrent_bias": True} | SPECS[number])
    builder = JoiningBuilder(spec, target_of(spec), Store(cache_folder()), joins=True)
    exact = replace(builder, spec=spec.model_copy(update={"precision": "fp64"}))
    kernels = [InterpretedKernel(one, (one.build(one.key_of("forward", one.hinted_specialization)),))
               for one in (builder, replace(builder, joins=False))]  # fmt: skip
    return kernels[0], kernels[1], Kernel(exact, kernels[0].built)


@st.composite
def drawn_inputs(draw: st.DrawFn, kernel: InterpretedKernel) -> Inputs:
    """Calls with any of what may be left out, and sequences of any lengths, whose values beyond are NaN."""
    case, interface = Case(draw(st.integers(1, 5)), draw(st.integers(1, 7))), kernel.interface
    random, forms = (
        np.random.default_rng(draw(st.integers(0, 99))),
        ["whole", "lengths", *["packed"] * (interface.layout == "BTD")],
    )
    form = draw(st.sampled_from(forms))
    whole, of_rows = inputs_of(interface, case), inputs_of(interface, Case(1 if form == "packed" else case.batch, case.time))
    forward = {**whole.forward, "x": of_rows.forward["x"]}
    for name in ("bias", "recurrent_bias", "state"):
        if draw(st.booleans()):
            forward.pop(name, None)
    if draw(st.booleans()):
        forward["resets"] = random.random((of_rows.dy.shape[interface.layout.index("B")], case.time)) < draw(
            st.sampled_from((0.2, 1))
        )
    if form == "packed":
        forward["cu_seqlens"] = np.array([0, *sorted(random.integers(0, case.time + 1, case.batch - 1)), case.time])
    if form == "lengths":
        forward["lengths"] = random.integers(0, case.time + 1, case.batch)
        forward["x"] = forward["x"].copy()
        beyond = np.arange(case.time) >= forward["lengths"][:, None]
        forward["x"][beyond if interface.layout == "BTD" else beyond.T] = np.nan
    return Inputs(forward, of_rows.dy, whole.dstate if draw(st.booleans()) else {}, {})


@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.usefixtures("cache_of_emulated_kernels")
@pytest.mark.parametrize("number", one_in(2, range(len(SPECS))))
@settings(max_examples=examples(24))
@given(data=st.data())
def test_gradients_are_those_of_products_apart_and_of_fp64(number: int, data: st.DataObject) -> None:
    joined, apart, exact = kernels_of(number)
    inputs = data.draw(drawn_inputs(joined))
    expected = _gradients(exact, inputs.in_float64())
    slack = error_allowed(joined.interface.precision)
    shares = [
        share_of(gradients[name], gradient, slack)
        for gradients in (_gradients(joined, inputs), _gradients(apart, inputs))
        for name, gradient in expected.items()
    ]
    assert np.max(shares) <= 1
    assert [{key.kernel_pass for key in kernel.plans} >= {"joined"} for kernel in (joined, apart)] == [True, False]


def _gradients(kernel: Kernel, inputs: Inputs) -> dict[str, Any]:
    return dict(backward_of(kernel, inputs, forward_of(kernel, inputs)[1]))
