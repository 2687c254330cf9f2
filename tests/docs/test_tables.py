"""The tables of the documentation are complete and current: modules, templates, GPUs, cells, variables, constraints, errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from support.documentation import ROOT, code, table, tables
from test_layering import ROOMS

import minrnn_gen
from minrnn_gen.cell.files import library_names
from minrnn_gen.config.gpu_profile import load_profile, profile_names
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import MinrnnError
from minrnn_gen.plan.classes import CellKind
from minrnn_gen.plan.families import FAMILIES, families_of
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import CellShape, PhaseShape, Problem
from minrnn_gen.plan.scan import projected
from minrnn_gen.plan.solver import Family, solve
from minrnn_gen.precision import PRECISION_NAMES, precision_of

DOCS = ROOT / "docs"
ARCHITECTURE, CELLS, GPU_PROFILES = DOCS / "architecture.md", DOCS / "cells.md", DOCS / "gpu-profiles.md"
NUMERICS, PYTHON, SPEC = DOCS / "numerics.md", DOCS / "python.md", DOCS / "spec.md"
KERNELS = sorted((DOCS / "kernels").glob("*.md"))


def problems() -> Iterator[tuple[Problem, Family]]:
    """Yield problems that between them make every family declare whatever it may declare."""
    for kind in get_args(CellKind):
        yield from problems_of(kind)
    yield from problems_of("diagonal", state_size=16)
    yield from problems_of("dense", means=(2, 2, 1))
    yield from problems_of("dense", rounds=(("h",),))
    yield from ((replace(problem, heads=8), family) for problem, family in problems_of("dense"))  # of one block each


def problems_of(
    kind: CellKind, state_size: int = 0, means: tuple[int, int, int] = (0, 0, 0), rounds: tuple[tuple[str, ...], ...] = ()
) -> Iterator[tuple[Problem, Family]]:
    cell = CellShape(
        "cell",
        kind,
        gates=("z", "h"),
        recurrent_gates=("z", *itertools.chain.from_iterable(rounds)) if kind == "dense" else (),
        states=("h",),
        parameters=(),
        carried_count=0,
        read_count=4,
        written_count=2,
        operation_count=4,
        transcendental_count=1,
        vector_states=("h",) if state_size else (),
        shared=("b",) if state_size else (),
        means=means,
        rounds=rounds,
        waits=((1, 1),) if any(means) else (),
        phases=(PhaseShape("scalar", 1, 2, True),) if kind == "block-affine" else (),
    )
    for kernel_pass, layout, precision, gpu, alignment in itertools.product(
        ("forward", "backward", "step", "arguments", "joined", "dropout", "filter", "filter_backward"),
        ("BTD", "TBD", "BDT"),
        ("fp32", "bf16"),
        ("h200", "t4"),
        (2, 16),
    ):
        specialization = Specialization(max(alignment, precision_of(precision).storage_bytes))
        sizes = (512, precision_of(precision), layout, 8, 2048, specialization, load_profile(gpu))
        problem = Problem(kernel_pass, cell, *sizes, state_size=state_size)
        for family in families_of(problem):
            yield problem, family
        with_projection = replace(problem, specialization=replace(specialization, input_size=512))
        if kind == "affine-diagonal" and not projected.refusal(with_projection) and kernel_pass == "forward":
            yield with_projection, projected.FORWARD


def owners_in(rows: list[tuple[str, ...]]) -> dict[str, set[str]]:
    """Return from a table of (name, families, …) which families each name is said to belong to."""
    owned: dict[str, set[str]] = {}
    for name, owners, *_ in rows:
        owned.setdefault(code(name)[0], set()).update(owners.split(", "))
    return owned


def test_every_room_is_explained_once_and_in_the_order_of_the_floors() -> None:
    listed = [code(row[0])[0].removesuffix("/").removesuffix(".py") for row in table(ARCHITECTURE, "room")]
    assert listed == list(ROOMS), "give every room one row in docs/architecture.md"


def test_every_template_is_explained_once() -> None:
    listed = [code(row[0])[0] for row in table(DOCS / "templates.md", "template")]
    folder = ROOT / "templates"
    assert sorted(listed) == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.j2"))


def test_the_table_of_gpus_is_that_of_the_profiles() -> None:
    def row(name: str) -> tuple[str, ...]:
        profile = load_profile(name)
        shared_kib = f"{profile.shared_bytes_per_block_max / 1024:g}"
        bandwidth = f"{profile.memory_bandwidth_bytes_per_s / 1e12:.2f}"
        names = ", ".join(profile.device_names)
        kernels = "run" if profile.checked else "never run"
        return (f"`{name}`", names, profile.compute_capability, str(profile.sm_count), shared_kib, bandwidth, kernels)

    assert table(GPU_PROFILES, "profile") == [row(name) for name in sorted(profile_names())]


def test_the_built_in_cells_are_those_of_the_table() -> None:
    listed = [name for row in table(CELLS, "cell", "W gates") for name in code(row[0])]
    assert sorted(listed) == sorted(library_names())


def test_the_precisions_are_those_of_the_table() -> None:
    stored = {
        code(row[0])[0]: (row[1].split(" ")[0], row[2]) for row in table(NUMERICS, "precision", "x, weight and y in memory")
    }
    assert stored == {name: (precision_of(name).storage_dtype, precision_of(name).arithmetic_dtype) for name in PRECISION_NAMES}


def test_every_variable_is_explained() -> None:
    declared: dict[str, set[str]] = {}
    for problem, family in problems():
        for name in family.variables(problem):
            declared.setdefault(name, set()).add(family.name)
    assert owners_in(tables(KERNELS, "variable")) == declared


def test_every_constraint_is_explained() -> None:
    declared = {constraint.name for problem, family in problems() for constraint in family.constraints(problem)}
    assert {code(row[0])[0] for row in tables(KERNELS, "constraint")} == declared, "docs/kernels/plan.md and families differ"


def test_every_term_and_every_part_of_shared_memory_is_explained() -> None:
    terms: set[str] = set()
    parts: dict[str, set[str]] = {}
    for problem, family in problems():
        solution = solve(problem, family)
        for candidate in solution.candidates[::7]:
            terms |= family.predicted_us(problem, candidate).keys()
            for part in family.resources(problem, candidate).shared_map:
                parts.setdefault(part, set()).add(family.name)
    assert {code(row[0])[0] for row in tables(KERNELS, "term")} == terms
    assert owners_in(tables(KERNELS, "part of shared memory")) == parts


def test_every_family_has_its_section() -> None:
    lines = [line for page in KERNELS for line in page.read_text(encoding="utf-8").splitlines()]
    headings = [line for line in lines if line.startswith("## ")]
    for family in FAMILIES:
        assert any(heading.startswith(f"## {family.name}:") for heading in headings), family.name


def test_every_error_is_explained() -> None:
    offered = {name: getattr(minrnn_gen, name) for name in minrnn_gen.__all__}
    errors = {
        name: offer
        for name, offer in offered.items()
        if isinstance(offer, type) and issubclass(offer, MinrnnError) and offer is not MinrnnError
    }
    listed = {code(row[0])[0]: (code(row[1]), row[3]) for row in table(PYTHON, "error")}
    also = {name: [base.__name__ for base in error.__bases__ if base is not MinrnnError] for name, error in errors.items()}
    assert listed == {name: (also[name], str(error.exit_status)) for name, error in errors.items()}


def test_every_key_of_a_spec_is_explained() -> None:
    assert [code(row[0])[0] for row in table(SPEC, "key")] == list(Spec.model_fields)
