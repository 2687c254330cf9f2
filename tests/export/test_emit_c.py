"""Programs of calls as C: numbers have the values that Python gives them, and kernels that differ in numbers one function."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.exported import run_in

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.codegen.render import environment
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.export.describe import Described, Paths
from minrnn_gen.export.emit_c import Functions, number_in_c
from minrnn_gen.program.data import At, Called
from minrnn_gen.program.number import ROOT_STEPS, Number, bounds, divided_up, least, most, overlapped, symbol, value

SIZES = {"batch": 37, "time": 1025, "x_batch": 4096}
FUNCTIONS = ("least", "most", "divided_up", "overlapped")
HEAD = "#include <stdint.h>\n#include <stdio.h>\n"


def drawn(source: random.Random, depth: int) -> Any:
    """Draw an expression of sizes, none of whose dividends is negative."""
    if not depth or source.random() < 0.2:
        return symbol(source.choice(list(SIZES)), 1) if source.random() < 0.7 else source.randint(0, 1 << 33)
    first, second = drawn(source, depth - 1), drawn(source, depth - 1)
    kind = source.choice(("+", "-", "*", "//", "up", "min", "max", "<", "==", "overlapped"))
    if kind in {"//", "up"}:
        first, second = (number if bounds(number)[0] >= 0 else 7 for number in (first, second))
        by = most(second, 1)
        return first // by if kind == "//" else divided_up(first, by)
    if kind == "overlapped":
        return overlapped(*(least(most(number, 0), 1 << 50) for number in (first, second)))
    operations = {"+": first + second, "-": first - second, "min": least(first, second), "max": most(first, second)}
    operations |= {"*": least(first, 1000) * least(second, 1000), "<": first < second, "==": first == second}
    return operations[kind]


def test_numbers_in_c_are_those_of_python(tmp_path: Path) -> None:
    try:
        compiler = c_compiler().program
    except ToolchainMissing:
        pytest.skip("no C compiler")
    source = random.Random(1)
    expressions = [drawn(source, 4) for _ in range(300)]
    sizes = " ".join(f"const int64_t {name} = {size};" for name, size in SIZES.items())
    lines = [f'printf("%lld\\n", (long long)({number_in_c(expression)}));' for expression in expressions]
    code = SimpleNamespace(calls=FUNCTIONS, root_steps=ROOT_STEPS)
    functions = environment().get_template("export/numbers.c.j2").render(code=code)
    text = (
        f"{HEAD}{functions}\nint main(void) {{ {sizes} (void)batch, (void)time, (void)x_batch; {' '.join(lines)} return 0; }}"
    )
    (tmp_path / "numbers.c").write_text(text)
    built = run_in(tmp_path, compiler, "-std=c99", "numbers.c", "-o", "numbers")
    assert built.returncode == 0, built.stderr
    printed = subprocess.run([tmp_path / "numbers"], capture_output=True, text=True, check=True).stdout.split()
    assert [int(line) for line in printed] == [int(value(expression, SIZES)) for expression in expressions]


def test_a_dividend_that_may_be_negative_is_not_printed() -> None:
    with pytest.raises(AssertionError, match="rounds towards 0"):
        number_in_c((symbol("batch", 0) - 3) // 2)


def filling(size_bytes: Number, fill: int) -> Paths:
    return (((), Described((), (Called("fill", (At(0, 0), fill, size_bytes * symbol("batch", 1))),))),)


class Source:
    """Names in an export."""

    name, slots = "rnn_cell", ("x",)


def test_programs_that_differ_in_numbers_are_one_function() -> None:
    functions = Functions(Source())  # type: ignore[arg-type]
    served = functions.serving([filling(8, 0), filling(16, 0), filling(16, 255), filling(8, 0)])
    assert [function for function, _ in served] == [0, 0, 0, 0]
    assert [numbers for _, numbers in served] == [(0, 8), (0, 16), (255, 16), (0, 8)]
    (text,) = functions.texts
    assert "fill(run, at[AT_x], k[0], k[1] * batch);" in text


def test_paths_share_what_they_have_in_common() -> None:
    has_lengths, (always,) = symbol("has_lengths", 0, 1), filling(8, 0)[0][1].operations
    more = Called("fill", (At(0, 0), 255, 3))
    program: Paths = (
        (((has_lengths == 0, True),), Described((), (always,))),
        (((has_lengths == 0, False),), Described((), (more, always))),
    )
    functions = Functions(Source())  # type: ignore[arg-type]
    functions.serving([program])
    (text,) = functions.texts
    assert text.count("fill(run, at[AT_x], 0, 8 * batch);") == 1
    assert "if (has_lengths) {\n        fill(run, at[AT_x], 255, 3);\n    }" in text
