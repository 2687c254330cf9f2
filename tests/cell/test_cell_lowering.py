"""Programs: the scan's two halves are the step, the CUDA text is what NumPy computes, and the same on every machine."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from support.cell_evaluation import Tree, built_in, cell_of, reading, tree_text, trees
from support.drawn_cells import DrawnCell, cells
from support.examples import examples
from support.one_step import lower_step, lower_step_backward
from support.patience import within

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.files import find_cell, library_names
from minrnn_gen.cell.functions import Comparison
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.lowering import (
    LoweredScan,
    Program,
    lower_scan,
    lower_scan_backward,
)
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.errors import BadInput

SCANS = [name for name in library_names() if classify(built_in(name)).kind == "affine-diagonal"]
MORE_SCANS = {
    "two states": cell_of("c[t] = W.f * c[t-1] + W.c\nn[t] = W.f * n[t-1] + 1", output="c[t] / max(abs(n[t]), 1)"),
    "looks back": cell_of("h[t] = W.f * h[t-1] + W.h", output="h[t] - h[t-1]"),
    "carried": cell_of(
        "h[t] = W.f * h[t-1] + W.h\nq = tanh(h[t])\ns = softplus(u)",
        output="where(W.o * 2 > q, W.o * 2, q * sigmoid(W.o + u) * W.g * s)",
        parameters=["u"],
    ),
    "carried into a condition": cell_of("h[t] = W.f * h[t-1] + W.h", output="where(W.o < 0.5, h[t], tanh(W.o))"),
    "constant": cell_of("two = 2\nh[t] = h[t-1] + W.h * 0.5 * two", output="h[t] * two"),
    "renamed": cell_of("z = W.z\nh[t] = z * h[t-1] + z", output="h"),
    "used twice": cell_of("h[t] = W.f ** 3 * h[t-1] + W.f ** 2 * tanh(W.h) - tanh(W.h) / (W.f ** 2 + 1)"),
    "same-step state": cell_of("m[t] = tanh(W.m)\nh[t] = m[t] * h[t-1] + W.h", output="h[t] + m[t] * m[t-1]"),
    # Names that would meet each other without a prefix per kind.
    "clashing names": cell_of(
        "shared_0 = W.a_h * a_h\nW_a_h = W.shared_0 + shared_0\nlet_x = W_a_h * W_a_h\nh[t] = let_x * h[t-1] + real + W.real\n"
        "state_h[t] = W.real * state_h[t-1] + let_x * (W.real + 1)",
        output="(h[t] + W.if_) * (state_h[t] + W.if_ * 2)",
        parameters=["a_h", "real"],
    ),
    "clashing carried": cell_of(
        "adjoint_let_carried_0 = W.f * 2\nh[t] = adjoint_let_carried_0 * h[t-1] + W.h\ncarried_0 = tanh(h[t])\n"
        "gradient_y = W.h * 3\ndelta_h = sigmoid(h[t-1])",
        output="carried_0 * (W.o * 2) + gradient_y * delta_h",
    ),
}


def lowered_scan(cell: Cell) -> LoweredScan:
    return lower_scan(cell, classify(cell))


def scan_cells() -> dict[str, Cell]:
    return {name: built_in(name) for name in SCANS} | MORE_SCANS


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", scan_cells())
def test_the_scan_and_the_step_agree(name: str, dtype: type) -> None:
    cell = scan_cells()[name]
    lowered, step = lowered_scan(cell), lower_step(cell)
    random = np.random.default_rng(0)
    parameters = {f"parameter_{key}": random.normal(size=64).astype(dtype) for key in cell.parameters}
    by_scan = {state: random.normal(size=(8, 64)).astype(dtype) for state in cell.states}
    by_step = dict(by_scan)
    for _ in range(5):
        gates = {f"W_{gate}": random.normal(size=(8, 64)).astype(dtype) for gate in cell.gates}
        found = lowered.coefficients.evaluate({**gates, **parameters})
        previous = by_scan
        by_scan = {state: found[f"a_{state}"] * previous[state] + found[f"b_{state}"] for state in cell.states}
        available = {
            **parameters,
            **{key: found[key] for key in lowered.carried},
            **{f"state_{state}": value for state, value in by_scan.items()},
            **{f"previous_{state}": value for state, value in previous.items()},
        }
        assert set(lowered.output.inputs) <= set(available)
        y = lowered.output.evaluate(available)["y"]
        expected = step.evaluate({**gates, **parameters, **{f"previous_{state}": value for state, value in by_step.items()}})
        by_step = {state: expected[f"state_{state}"] for state in cell.states}
        tolerance = 32 * np.finfo(dtype).eps  # a few roundings in another order, over five steps
        for one, other in [(y, expected["y"]), *((by_scan[state], by_step[state]) for state in cell.states)]:
            assert one.dtype == other.dtype == dtype
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(other).max()))


@settings(max_examples=examples(200))
@given(trees(("W.x", "W.y", "p"), depth=2), trees(("W.x", "W.y", "p", "early"), depth=2), trees(depth=4))
def test_any_output_of_a_scan_is_the_steps_to_the_last_bit(early: Tree, gated: Tree, output: Tree) -> None:
    equations = f"early = {tree_text(early)}\nh[t] = ({tree_text(gated)}) * h[t-1] + W.x * W.y * p"
    cell = cell_of(equations, parameters=["p"], gates=["x", "y"], output=reading(tree_text(output), "h[t]", "early"))
    lowered = lowered_scan(cell)
    x, y, h, p = np.random.default_rng(0).normal(size=(4, 33))
    whole = lower_step(cell).evaluate({"W_x": x, "W_y": y, "parameter_p": p, "previous_h": h})
    found = lowered.coefficients.evaluate({"W_x": x, "W_y": y, "parameter_p": p})
    available = {"state_h": whole["state_h"], "previous_h": h, "parameter_p": p, **found}
    y_found = lowered.output.evaluate({name: available[name] for name in lowered.output.inputs})["y"]
    np.testing.assert_array_equal(y_found, whole["y"])


def test_what_the_output_needs_of_the_gates_is_carried_and_nothing_else() -> None:
    carried = {name: lowered_scan(cell).carried for name, cell in scan_cells().items()}
    assert carried["qrnn"] == ("let_o",)
    assert carried["carried"] == ("carried_0", "carried_1", "W_g")
    assert carried["carried into a condition"] == ("W_o", "carried_1")
    assert carried["clashing names"] == ("W_if_", "carried_1")
    empty = set(SCANS) - {"qrnn"} | {"two states", "looks back", "constant", "renamed", "used twice", "same-step state"}
    assert all(carried[name] == () for name in empty)


def test_interfaces_of_the_programs() -> None:
    lowered = lowered_scan(MORE_SCANS["carried"])
    assert lowered.coefficients.inputs == ("W_f", "W_h", "W_o", "W_g", "parameter_u")
    assert [label for label, _ in lowered.coefficients.results] == ["a_h", "b_h", "carried_0", "carried_1", "W_g"]
    assert lowered.output.inputs == ("state_h", "carried_0", "carried_1", "W_g", "parameter_u")
    assert lowered_scan(MORE_SCANS["looks back"]).output.inputs == ("state_h", "previous_h")
    step = lower_step(built_in("lstm"))
    assert step.inputs == ("W_i", "W_f", "W_z", "W_o", "R_i", "R_f", "R_z", "R_o", "previous_h", "previous_c")
    assert [label for label, _ in step.results] == ["state_h", "state_c", "y"]


def test_a_cell_that_is_no_scan_is_not_lowered_to_one() -> None:
    cell = built_in("ind_rnn")
    with pytest.raises(BadInput, match="ind_rnn has no scan"):
        lower_scan(cell, classify(cell))


@functools.cache
def all_programs() -> dict[str, Program]:
    programs = {name: lower_step(built_in(name)) for name in library_names()}
    programs |= {f"{name}, backward": lower_step_backward(built_in(name)) for name in library_names()}
    for name, cell in scan_cells().items():
        lowered = lowered_scan(cell)
        programs |= {f"{name}, step": lower_step(cell), f"{name}, scan": lowered.coefficients, f"{name}, y": lowered.output}
        backward = lower_scan_backward(cell, classify(cell))
        programs |= {f"{name}, step backward": lower_step_backward(cell)}
        programs |= {f"{name}, adjoint": backward.adjoint, f"{name}, gradients": backward.gradients}
    return programs


def parts_of(expression: Expr) -> Iterator[Expr]:
    """Yield the operations of an expression, conditions left out: they have no name in which to be kept."""
    operands = ex.operation(expression)[1]
    if operands and not isinstance(expression, Comparison):
        yield expression
    for operand in operands:
        yield from parts_of(operand)


@pytest.mark.parametrize("name", all_programs())
def test_a_program_names_before_it_uses_computes_nothing_twice_and_nothing_in_vain(name: str) -> None:
    program = all_programs()[name]
    known = list(program.inputs)
    used = {result for _, result in program.results}
    for statement in program.statements:
        symbols = {symbol.name for symbol in ex.symbols_of(statement.expression)}
        assert symbols <= set(known)
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", statement.name)
        known.append(statement.name)
        used |= symbols
    assert len(set(known)) == len(known)
    assert {statement.name for statement in program.statements} <= used <= set(known)
    parts = [part for statement in program.statements for part in parts_of(statement.expression)]
    assert len(set(parts)) == len(parts)


# What one round multiplies is a part of what the other does.
PART_OF_ANOTHER: Tree = ("tanh", ("leaf", "h[t-1]"))
ONE_OF_ANOTHER = DrawnCell(
    "dense",
    (
        ("a", ("product", "a", PART_OF_ANOTHER)),
        ("b", ("product", "b", ("-", ("number", "1"), PART_OF_ANOTHER))),
        ("h[t]", ("tanh", ("+", ("leaf", "W.x"), ("*", ("leaf", "a"), ("leaf", "b"))))),
    ),
    ("h",),
    (),
    None,
)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cells(("dense",)))
@example(ONE_OF_ANOTHER)
def test_no_program_of_a_drawn_cell_gives_a_name_twice(drawn: DrawnCell) -> None:
    cell = parse_cell(find_cell(drawn.document, Path(), "test"))
    forward, backward = lower_steps(cell), lower_steps_backward(cell)
    programs = [(forward.levels, forward.step), (backward.levels, backward.backward)]
    programs += [(of.levels, of.program) for of in (*forward.rounds, *backward.rounds, *backward.arguments)]
    for levels, program in programs:
        for part in (program, *(level.program for level in levels)):
            names = [*part.inputs, *(statement.name for statement in part.statements)]
            assert len(names) == len({*names})


def test_common_subexpressions_and_powers_are_computed_once() -> None:
    lowered = lowered_scan(MORE_SCANS["used twice"])
    text = [f"{statement.name} = {statement.cuda}" for statement in lowered.coefficients.statements]
    assert text == [
        "shared_0 = cell_W_f * cell_W_f",
        "a_h = cell_shared_0 * cell_W_f",
        "shared_1 = fn_tanh(cell_W_h)",
        "b_h = cell_shared_0 * cell_shared_1 - fn_divide(cell_shared_1, cell_shared_0 + compute_t(1.0))",
    ]


def test_counts() -> None:
    lowered = lowered_scan(built_in("min_gru"))
    assert (lowered.operation_count, lowered.transcendental_count) == (3, 2)  # sigmoid, 1 - z, z * W.h; exp and 1/x
    lowered = lowered_scan(built_in("qrnn"))
    assert (lowered.operation_count, lowered.transcendental_count) == (6, 6)


HOST_FUNCTIONS = """
#include <cmath>
typedef double compute_t;
static compute_t fn_exp(compute_t x) { return std::exp(x); }
static compute_t fn_expm1(compute_t x) { return std::expm1(x); }
static compute_t fn_log(compute_t x) { return std::log(x); }
static compute_t fn_log1p(compute_t x) { return std::log1p(x); }
static compute_t fn_tanh(compute_t x) { return std::tanh(x); }
static compute_t fn_sqrt(compute_t x) { return std::sqrt(x); }
static compute_t fn_divide(compute_t x, compute_t y) { return x / y; }
static compute_t fn_quotient(compute_t x, compute_t y) { return x / y; }
static compute_t fn_abs(compute_t x) { return std::fabs(x); }
static compute_t fn_atan(compute_t x) { return std::atan(x); }
static compute_t fn_erf(compute_t x) { return std::erf(x); }
static compute_t fn_sin(compute_t x) { return std::sin(x); }
static compute_t fn_cos(compute_t x) { return std::cos(x); }
static compute_t fn_relu(compute_t x) { return x < 0 ? 0 : x; }
static compute_t fn_min(compute_t a, compute_t b) { return a <= b || a != a ? a : b; }
static compute_t fn_max(compute_t a, compute_t b) { return a >= b || a != a ? a : b; }
static compute_t fn_sigmoid(compute_t x) { compute_t e = std::exp(-std::fabs(x)); return (x >= 0 ? 1 : e) / (1 + e); }
static compute_t fn_silu(compute_t x) { return x * fn_sigmoid(x); }
static compute_t fn_softplus(compute_t x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::fabs(x))); }
static compute_t fn_logsigmoid(compute_t x) { return (x < 0 ? x : 0) - std::log1p(std::exp(-std::fabs(x))); }
"""


def compiled(programs: dict[str, Program], folder: Path) -> ctypes.CDLL:
    parts = [HOST_FUNCTIONS]
    for index, program in enumerate(programs.values()):
        lines = [f"const compute_t cell_{name} = in[{position}];" for position, name in enumerate(program.inputs)]
        lines += [f"const compute_t cell_{statement.name} = {statement.cuda};" for statement in program.statements]
        lines += [f"out[{position}] = cell_{name};" for position, (_, name) in enumerate(program.results)]
        parts.append(f'extern "C" void program_{index}(const compute_t* in, compute_t* out) {{\n' + "\n".join(lines) + "\n}\n")
    (folder / "programs.cpp").write_text("\n".join(parts))
    # Without contraction every operation rounds as NumPy's does.
    command = ["g++", "-O0", "-shared", "-fPIC", "-ffp-contract=off", "-o", "programs.so", "programs.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "programs.so"))


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="the printed text is compiled by a host C++ compiler, and there is none"
)
def test_the_cuda_text_computes_what_numpy_computes(tmp_path: Path) -> None:
    programs = all_programs()
    early = "early = W.x * W.y + p\n"
    collected: list[Tree] = []

    @settings(max_examples=examples(60), database=None)
    @given(trees(depth=3))
    def collect(tree: Tree) -> None:
        collected.append(tree)

    collect()
    for index, tree in enumerate(collected):
        text = f"{early}h[t] = {reading(tree_text(tree), 'early')} + 0 * (W.x + W.y + p)"
        cell = cell_of(text, parameters=["p"], gates=["x", "y"])
        programs |= {f"random {index}": lower_step(cell), f"random {index}, backward": lower_step_backward(cell)}
    library = compiled(programs, tmp_path)
    random = np.random.default_rng(3)
    for index, program in enumerate(programs.values()):
        inputs = random.normal(size=(20, len(program.inputs)))
        found = np.empty((20, len(program.results)))
        pointer = ctypes.POINTER(ctypes.c_double)
        for row in range(20):
            getattr(library, f"program_{index}")(inputs[row].ctypes.data_as(pointer), found[row].ctypes.data_as(pointer))
        expected = program.evaluate(dict(zip(program.inputs, inputs.T, strict=True)))
        for position, (label, _) in enumerate(program.results):
            # NumPy's vectorised functions and libm differ by a few units in the last place, which a difference may magnify.
            wanted = np.broadcast_to(expected[label], 20)
            known = np.isfinite(wanted) & (np.abs(wanted) < 1e6)
            np.testing.assert_allclose(found[known, position], wanted[known], rtol=1e-9, atol=1e-9)


LISTING = """
import sys
sys.path[:0] = sys.argv[1:]
from test_cell_lowering import all_programs, classify, scan_cells
for name, program in all_programs().items():
    print(name, program.inputs, program.results)
    for statement in program.statements:
        print(statement.name, "=", statement.cuda)
for cell in scan_cells().values():
    print(classify(cell).proof)
from support.cell_evaluation import cell_of
print(classify(cell_of("h[t] = (W.a * h[t-1] + W.b + W.c) ** 3 - (W.a * h[t-1]) ** 3 + where(W.a > W.b, h[t-1], W.c)")).proof)
"""


@pytest.mark.matrix_full
def test_every_hash_seed_prints_the_same_programs() -> None:
    texts = set()
    for seed in ("0", "1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        command = [sys.executable, "-c", LISTING, str(Path(__file__).parent), str(Path(__file__).parents[1])]
        texts.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(texts) == 1 and len(texts.pop()) > 5_000


def test_the_front_end_takes_a_fraction_of_a_second() -> None:
    def once() -> float:
        started = time.process_time()
        cell = parse_cell(find_cell("min_gru", Path("."), "<test>"))
        lower_scan(cell, classify(cell))
        return time.process_time() - started

    assert min(once() for _ in range(3)) < within(0.15)
