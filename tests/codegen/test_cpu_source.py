"""The templates of C, and the text they make: plain C99 with vectors, from a cell that nobody has to trust."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2.meta
import jinja2.nodes
import pytest

from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.codegen.cpu_source import CpuPlan, cpu_source, pool_source
from minrnn_gen.codegen.render import environment
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.precision import PRECISION_NAMES, precision_of

FOLDER = package_folder("templates")
TEMPLATES = {f"cpu/{path.name}": path.read_text(encoding="utf-8") for path in sorted((FOLDER / "cpu").glob("*.j2"))}
ROOTS = tuple(
    f"cpu/{name}.c.j2" for name in ("forward", "backward", "vectors_forward", "vectors_backward", "maps", "filter", "threads")
)
# All of the C library, of POSIX and of compilers that kernels use.
HEADERS = {"arm_neon.h", "immintrin.h", "math.h", "pthread.h", "stdint.h", "string.h", "time.h"}


def reached(name: str) -> set[str]:
    """Return a template and all that it includes."""
    tree = environment().parse((FOLDER / name).read_text(encoding="utf-8"))
    included = [node.template.value for node in tree.find_all(jinja2.nodes.Include)]
    return {name}.union(*map(reached, included))


def test_every_template_is_used() -> None:
    assert set(TEMPLATES) <= set().union(*map(reached, ROOTS))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_plain(name: str) -> None:
    """ASCII, no tabs, no assembly, of other headers none; the context is `plan` and `header`."""
    text = TEMPLATES[name]
    assert text.isascii() and "\t" not in text and text.endswith("\n")
    assert not re.search(r"\basm\b", text)
    assert set(re.findall(r"#include <(.*)>", text)) <= HEADERS and '#include "' not in text
    assert jinja2.meta.find_undeclared_variables(environment().parse(text)) <= {"plan", "header"}


def plans_of(document: dict[str, object], precision: str) -> list[CpuPlan]:
    cell = parse_cell(find_cell(document, Path("."), "<test>"))
    named = precision_of(precision)
    dtypes = (named.arithmetic_dtype, named.storage_dtype, named.storage_dtype)
    return [
        CpuPlan("forward", lower_steps(cell), precision, *dtypes),
        CpuPlan("backward", lower_steps_backward(cell), precision, *dtypes),
    ]


@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_names_of_a_cell_do_not_meet_those_of_c(precision: str) -> None:
    """Keywords, types and functions of C, and members of the arguments."""
    document = {
        "name": "odd",
        "parameters": ["register"],
        "equations": "load_real = exp(W.x)\nint = tanh(W.rows + R.rows) * register\nh[t] = int + load_real * h[t-1]\n",
    }
    for plan in plans_of(document, precision):
        names = [field.name for field in plan.fields]
        assert len(names) == len(set(names))
        text = cpu_source(plan)
        assert text == cpu_source(plan) and text.isascii()
        for name in ("int", "register", "load_real"):
            assert not re.search(rf"const vr {name}\b", text)


def test_the_pool_is_no_kernel() -> None:
    assert "void parallel(" in pool_source()
