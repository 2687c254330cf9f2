"""A cell's names meet no keyword, macro, CUDA name or identifier of a template, whatever they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.everyday import for_each
from support.odd_names import (
    CUDA_NAMES,
    KEYWORDS,
    MACROS,
    template_identifiers,
    template_texts,
    without_comments,
)

import minrnn_gen
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.cell.cuda_names import PREFIX, cuda_name
from minrnn_gen.codegen.render import render
from minrnn_gen.codegen.signature import names_of, signature, suffixes_of
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.families import FAMILIES, MOVING
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.target import target_of

PASSES: tuple[KernelPass, ...] = ("forward", "backward", "step")
ON_POOLS: tuple[KernelPass, ...] = ("step", "slots")
# What an argument that a cell has by name is called before that name.
ARRAYS = (
    *("parameter_", "initial_", "final_", "kept_", "saved_", "dinitial_", "dfinal_"),
    *("shared_", "strides_", "dshared_", "dstrides_", "dparameter_"),
    *("pool_", "slot_stride_", "rows_", "width_"),
)

# A cell of every class; a slot is a gate g, a state s, a parameter p or a value v.
AFFINE = """
v0 = sigmoid(W.g0)
s1[t] = v0 * s1[t-1] + tanh(W.g1)
v1 = W.g2 * v0 + p0
s0[t] = v0 * s0[t-1] + v1 * p1
s2[t] = p0 * s2[t-1] + W.g1
"""
# Of two gates, with its projection in the same kernel.
PROJECTED = """
v0 = sigmoid(W.g0 + p0)
s0[t] = v0 * s0[t-1] + W.g1 * p1
"""
DIAGONAL = """
v0 = sigmoid(W.g0 + p0 * s0[t-1])
v1 = tanh(W.g1 + W.g2 * s1[t-1])
s1[t] = v0 * s1[t-1] + v1
s2[t] = s2[t-1] * v0 + p1
s0[t] = tanh(s1[t] + s2[t])
"""
COUPLED = """
v0 = sigmoid(W.g0 + p0)
s1[t] = v0 * s1[t-1] - 0.5 * s2[t-1] + W.g1
s2[t] = 0.5 * s1[t-1] + p1 * s2[t-1]
v1 = s1[t-1] * W.g2
s0[t] = tanh(p1) * s0[t-1] + tanh(s2[t]) * v1
"""
DENSE = """
v0 = sigmoid(W.g0 + R.g0)
v1 = tanh(W.g1 + R.g1) * s2[t-1]
s1[t] = v0 * s1[t-1] + v1 * p0
s2[t] = 0.5 * s2[t-1] + tanh(W.g2 + R.g2) * p1
s0[t] = v0 * tanh(s1[t] + s2[t])
"""
ROUNDS = """
v0 = sigmoid(W.g0 + R.g0)
v1 = tanh(W.g1 + R.g1(v0 * s0[t-1] + p0)) * s2[t-1]
s1[t] = v0 * s1[t-1] + v1 * p1
s2[t] = 0.5 * s2[t-1] + tanh(W.g2 + R.g2(v1))
s0[t] = v0 * tanh(s1[t] + s2[t])
"""
NORMS = """
v0 = sigmoid(W.g0 + mean(R.g0, all))
v1 = rms_norm(W.g1 + R.g1(v0 * s0[t-1]), head, 1e-3) * s2[t-1]
s1[t] = v0 * s1[t-1] + layer_norm(v1, [v1, R.g2], head, 1e-5) * p0
s2[t] = 0.5 * s2[t-1] + tanh(W.g2 + R.g2) * p1
s0[t] = v0 * tanh(s1[t] + s2[t])
"""
VECTORS = """
v0 = sigmoid(W.g0 + p0)
v1 = sum(S.i0 * s1[t-1]) * W.g1
s1[t] = v0 * s1[t-1] + v1 * S.i1 + p1
s2[t] = v0 * s2[t-1] + W.g2
s0[t] = v0 * s0[t-1] + sum(p1 * s1[t])
"""
OUTPUTS = {
    AFFINE: "tanh(W.g2 + v0) * (s0[t] - s0[t-1]) + p1 * s1[t] + s2[t]",
    PROJECTED: "tanh(s0[t]) * s0[t-1]",
}
SLOTS = ("g0", "g1", "g2", "s0", "s1", "s2", "p0", "p1", "v0", "v1", "i0", "i1")
SPECS: dict[str, tuple[dict[str, Any], ...]] = {
    AFFINE: ({"precision": "bf16"}, {"precision": "fp32", "layout": "BDT"}),
    PROJECTED: ({"precision": "bf16", "hidden_size": 128, "input_size": 64},),
    DIAGONAL: ({"precision": "bf16"}, {"precision": "fp32", "layout": "BDT"}),
    COUPLED: ({"precision": "bf16"},),
    DENSE: ({"precision": "bf16"}, {"precision": "fp32"}),
    ROUNDS: ({"precision": "bf16"},),
    NORMS: ({"precision": "bf16"},),
    VECTORS: ({"precision": "bf16", "state_size": 4}, {"precision": "fp32", "layout": "BDT", "state_size": 6}),
}
# What has the axis n in a cell that has it.
WITH_N = ("s1", "p1")
# The templates that print programs, whose statements come with their prefix.
PROGRAMS = {
    *(
        f"parts/{name}.cuh.j2"
        for name in ("cell", "cell_backward", "step", "step_behind_sums", "step_in_parts", "step_backward")
    ),
    "parts/coupled_phase.j2",
    "parts/coupled_phases.cuh.j2",
    "parts/rounds.j2",
    "parts/waits.j2",
    *(f"bodies/{name}.cuh.j2" for name in ("step_statements", "step_results", "prepared_statements")),
}
# Names in the order of the slots: those that once met others first.
NAMES = {
    "scan 1": (AFFINE, "of stream state of stream state sum state_h place initial"),
    "scan 2": (AFFINE, "new template NULL saved_state stage tile float32_vectors batch carry sum"),
    "diagonal": (DIAGONAL, "threadIdx float4 half state INFINITY saved x long short previous"),
    "coupled": (COUPLED, "own before running map end tile step constant value turn entering all"),
    "vectors": (VECTORS, "gate lane x constant state previous shared all_h this arriving k result"),
    "dense 1": (DENSE, "gate product dy gate product dy sum float32_vectors real storage_t"),
    "dense 2": (DENSE, "new template NULL CELL_COLUMNS this default READ_GATES is_storage errno bool"),
}


def cell_with(text: str, names: dict[str, str]) -> dict[str, Any]:
    """Return the cell of `text` with a name for each slot."""

    def named(code: str) -> str:
        return re.sub(r"\b[gspvi]\d\b", lambda slot: names[slot[0]], code)

    parameters, states, shared = (
        [slot for slot in SLOTS if slot[0] == kind and (slot in text or text != PROJECTED)] for kind in "psi"
    )
    output = {"output": named(OUTPUTS[text])} if text in OUTPUTS else {}
    cell = {"name": "odd", "equations": named(text), **output}
    if text != VECTORS:
        return cell | {"parameters": [names[slot] for slot in parameters], "states": [names[slot] for slot in states]}
    listed = {"parameters": parameters, "states": states}
    axes = {key: {names[slot]: "n" if slot in WITH_N else 1 for slot in slots} for key, slots in listed.items()}
    return cell | axes | {"shared": [names[slot] for slot in shared], "output": named("s0[t] + s2[t]")}


def builder_with(text: str, names: dict[str, str], spec: dict[str, Any]) -> Builder:
    loaded = load_spec({"model": cell_with(text, names), "hidden_size": 64, "gpu": "h200", **spec})
    return Builder(loaded, target_of(loaded), Store(Path("/nowhere")))


@cache
def plans_of(text: str) -> tuple[tuple[dict[str, Any], KernelPlan], ...]:
    """Return the first plan of every family that serves a cell, each with its spec: no plan depends on names."""
    plans = []
    for spec in SPECS[text]:
        builder = builder_with(text, dict(zip(SLOTS, SLOTS, strict=True)), spec)
        of_rounds: tuple[KernelPass, ...] = ("arguments",) if builder.cell.rounds else ()
        for kernel_pass in (*PASSES, *of_rounds):
            kept = {"states_out": "arithmetic"} if kernel_pass == "forward" else {}
            for solution in builder.solutions(builder.key_of(kernel_pass, replace(builder.hinted_specialization, **kept))):
                plans.append((spec, solution.plan(0)))
        for kernel_pass in ON_POOLS:
            on_pool = builder.key_of(kernel_pass, replace(builder.hinted_specialization, pool="arithmetic"))
            plans.append((spec, builder.solve(on_pool).plan(0)))
        if input_size := builder.spec.input_size:
            alone = replace(builder.hinted_specialization, input_size=input_size)
            plans.append((spec, builder.solve(builder.key_of("forward", alone)).plan(0)))
    return tuple(plans)


def kernels_of(text: str, names: dict[str, str], specs: int | None = None) -> Iterator[tuple[KernelPlan, str]]:
    """Yield those plans, of so many first specs or of all, each with the text of its kernel."""
    for spec, plan in plans_of(text):
        if spec not in SPECS[text][:specs]:
            continue
        yield plan, render(plan, builder_with(text, names, spec).lowered_for(plan.problem.kernel_pass), ())


def words_of(code: str) -> set[str]:
    return {word for word in re.findall(r"\w+", without_comments(code)) if not word[0].isdigit()}


def test_nothing_else_has_the_prefix_of_a_cells_names() -> None:
    machine = Path(minrnn_gen.__file__).parent / "interpret" / "machine"
    of_machine = {word for path in machine.iterdir() for word in words_of(path.read_text(encoding="utf-8"))}
    others = {*template_identifiers(), *of_machine, *KEYWORDS, *MACROS, *CUDA_NAMES}
    assert [name for name in others if name.startswith(PREFIX)] == []
    assert len(template_identifiers()) > 900 and len(of_machine) > 400


@for_each(sorted({*template_texts()} - PROGRAMS))
def test_a_template_writes_the_cells_names_behind_the_prefix(template: str) -> None:
    text = re.sub(r"\{%.*?%\}", "", without_comments(template_texts()[template]))
    for before in re.findall(r"(\w*)\{\{ (?:name|cell\.output_state) \}\}(?! = )", text):
        assert before.startswith(PREFIX), before


@pytest.mark.parametrize(
    "text", SPECS, ids=("affine", "projected", "diagonal", "coupled", "dense", "rounds", "norms", "vectors")
)
def test_texts_differ_by_prefixed_identifiers_alone(text: str) -> None:
    """Two sets of names, none of them in a template: what differs between the kernels is of the cell."""
    first, second = ({slot: f"{mark}{slot}" for slot in SLOTS} for mark in ("qqq", "zzz"))
    for (plan, one), (_, other) in zip(kernels_of(text, first), kernels_of(text, second), strict=True):
        own = words_of(one) ^ words_of(other)
        assert own and [word for word in own if not word.startswith(PREFIX)] == [], plan.entry
        assert without_comments(one).replace("qqq", "zzz") == without_comments(other)


def test_every_family_is_there() -> None:
    # Dropout is between layers, drafts are integers, joined rows any values, and filters functions: none has a name of a cell.
    without = {"dropout.cu.j2", "joined.cu.j2", "drafts.cu.j2", "filter_forward.cu.j2", "filter_backward.cu.j2"}
    of_cells = {family.template for family in (*FAMILIES, *MOVING)} - without
    assert {plan.template for text in SPECS for _, plan in plans_of(text)} == of_cells


def test_arguments_of_launches_do_not_meet() -> None:
    """An argument that every cell has is called like no array that a cell has by name."""
    names = dict(zip(SLOTS, SLOTS, strict=True))
    for text in SPECS:
        for spec, plan in plans_of(text):
            lowered = builder_with(text, names, spec).lowered_for(plan.problem.kernel_pass)
            for suffix in suffixes_of(plan.entry):
                for parameter in signature(plan, names_of(lowered), suffix):
                    assert parameter.is_of_cell == parameter.name.startswith(ARRAYS), parameter
                    assert parameter.identifier == (cuda_name(parameter.name) if parameter.is_of_cell else parameter.name)


# Every day a scan and a dense cell, in the first precision of each.
@pytest.mark.parametrize(
    ("text", "names", "specs"),
    [
        *(pytest.param(*NAMES[name], 1, id=f"{name} in one precision") for name in ("scan 1", "dense 2")),
        *(pytest.param(*cell, None, marks=pytest.mark.matrix_full, id=name) for name, cell in NAMES.items()),
    ],
)
def test_kernels_compile_whatever_the_names(text: str, names: str, specs: int | None) -> None:
    for plan, source in kernels_of(text, dict(zip(SLOTS, names.split(), strict=False)), specs):
        check_syntax(plan, source)


def check_syntax(plan: KernelPlan, source: str) -> None:
    """Compile to PTX, which shows what the language refuses without the time of ptxas."""
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs NVRTC")
    program = nvrtc.createProgram(source, f"{plan.entry}.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("-arch=compute_90", "--std=c++17", "--device-as-default-execution-space"))
    except nvrtc.NVRTCError:
        pytest.fail(f"{plan.template}: {nvrtc.getProgramLog(program)[:600]}")
    finally:
        nvrtc.destroyProgram(program)
