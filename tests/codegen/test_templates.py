"""The rules every template of CUDA keeps, read off the templates themselves; those of C: test_cpu_source.py."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
import pytest
from support.everyday import for_each

from minrnn_gen.codegen.context import CellBackwardText, CellText, StepsBackwardText
from minrnn_gen.codegen.coupled_text import CoupledText
from minrnn_gen.codegen.dual_text import DualBackwardText, DualText
from minrnn_gen.codegen.render import RankExchange, environment
from minrnn_gen.codegen.vectors_text import VectorsBackwardText, VectorsText
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.plan.families import FAMILIES, MOVING
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.solver import Family

FOLDER = package_folder("templates")
TEMPLATES = {
    path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(FOLDER.rglob("*.j2"))
    if path.parent.name not in {"cpu", "export"}
}
KERNELS = sorted(name for name in TEMPLATES if "/" not in name)
WRAPPERS = sorted(name for name in TEMPLATES if name.startswith("ptx/"))
RULERS = sorted(name for name in TEMPLATES if name.startswith(("microbenchmarks/", "ranks/")))
CONTEXT = {"plan", "cell", "header", "signature"}

# How lists of parameters and truth values are printed, and where statements stand.
FILTERS = {"length", "join", "indent", "parameters", "members", "initializer", "literal"}

# Numbers that need no name: none, one, two (a pair, a half, a doubling).
PLAIN_NUMBERS = {"0", "1", "2"}
# Numbers the language wants written out where they are used.
NUMBERS_IN_PLACE = {
    r"__align__\(16\)": "the alignment of dynamic shared memory, that of the widest access",
    r"[\d.]+f /\*.*?\*/": "a constant with its name beside it",
}


def parsed(name: str) -> jinja2.nodes.Template:
    return environment().parse(TEMPLATES[name])


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of CUDA, without comments and Jinja."""
    for number, line in enumerate(text.splitlines(), 1):
        yield number, re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", line).split("//")[0].rstrip()


def test_there_is_nothing_else_beside_the_templates() -> None:
    others = [path.name for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".j2"]
    assert others == []


def test_every_template_is_used() -> None:
    assert set(TEMPLATES) == reached_from(*RULERS, *(family.template for family in (*FAMILIES, *MOVING)))


def reached_from(*names: str) -> set[str]:
    """Return templates and all that they include, directly or not."""
    reached: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += included(name)
    return reached


def included(name: str) -> list[str]:
    """Return the templates that `name` includes; of a name put together from a value, all that it can mean."""
    found = []
    for node in parsed(name).find_all((jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport)):
        parts = node.template.nodes if isinstance(node.template, jinja2.nodes.Concat) else [node.template]
        pattern = "".join(re.escape(part.value) if isinstance(part, jinja2.nodes.Const) else r"\w+" for part in parts)
        meant = [other for other in TEMPLATES if re.fullmatch(pattern, other)]
        assert meant, f"{name} includes {pattern}, which is not there"
        found += meant
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_says_whether_its_kernel_copies(family: Family) -> None:
    assert family.copies == bool({"ptx/async_copy.cuh.j2", "ptx/tensor_map.cuh.j2"} & reached_from(family.template))


@for_each(TEMPLATES)
def test_the_context_is_plan_cell_header_and_signature(name: str) -> None:
    assert jinja2.meta.find_undeclared_variables(parsed(name)) <= CONTEXT


# Of a scan, of steps and of cells with the axis n, forward and backward.
TEXTS = {
    False: (CellText, CoupledText, DualText, VectorsText),
    True: (CellBackwardText, DualBackwardText, StepsBackwardText, VectorsBackwardText),
}


@for_each(TEMPLATES)
def test_templates_read_what_plans_and_cells_have(name: str) -> None:
    """Attributes, filters and tests that exist; calls of macros alone: a template computes nothing."""
    plan = RankExchange if name.startswith("ranks/") else KernelPlan
    members = {
        "plan": {*(field.name for field in dataclasses.fields(plan)), *vars(plan)},
        "cell": {member for text in TEXTS["backward" in name] for member in dir(text) if not member.startswith("_")},
        "signature": {"begin", "step", "call"},
    }
    tree = parsed(name)
    for node in tree.find_all(jinja2.nodes.Getattr):
        if isinstance(node.node, jinja2.nodes.Name) and node.node.name in members:
            assert node.attr in members[node.node.name], f"{node.node.name}.{node.attr} in line {node.lineno}"
    macros = {macro.name for macro in tree.find_all(jinja2.nodes.Macro)}
    imported = {each.target for each in tree.find_all(jinja2.nodes.Import) if not each.with_context}
    for call in tree.find_all(jinja2.nodes.Call):
        called = call.node.node if isinstance(call.node, jinja2.nodes.Getattr) else call.node
        assert isinstance(called, jinja2.nodes.Name), f"a call in line {call.lineno}"
        assert called.name in (imported if isinstance(call.node, jinja2.nodes.Getattr) else macros), f"line {call.lineno}"
    assert {node.name for node in tree.find_all(jinja2.nodes.Filter)} <= FILTERS


def test_the_environment_is_strict() -> None:
    made = environment()
    assert made.undefined is jinja2.StrictUndefined
    assert (made.trim_blocks, made.lstrip_blocks, made.keep_trailing_newline) == (True, True, True)
    with pytest.raises(jinja2.UndefinedError):
        made.from_string("{{ plan.colour }}").render(plan=object())


@for_each(TEMPLATES)
def test_structure_is_one_level_deep(name: str) -> None:
    """`if` and `for` do not nest in their own kind: what is rendered can be read off the template."""

    def depth(node: jinja2.nodes.Node, kind: type[jinja2.nodes.Node]) -> int:
        below = max((depth(child, kind) for child in node.iter_child_nodes()), default=0)
        return below + isinstance(node, kind)

    for kind in (jinja2.nodes.For, jinja2.nodes.If):
        # An elif is an If inside an If, and no deeper structure.
        deepest = max((depth(node, kind) for node in parsed(name).body), default=0)
        chains = TEMPLATES[name].count("{% elif") if kind is jinja2.nodes.If else 0
        # The functions come in three precisions: by arithmetic, and in it by storage.
        assert deepest - chains <= (2 if name == "parts/functions.cuh.j2" else 1)


@for_each(sorted(set(TEMPLATES) - set(WRAPPERS)))
def test_assembly_stays_in_its_folder(name: str) -> None:
    assert not re.search(r"\basm\b", TEMPLATES[name])


@for_each(WRAPPERS)
def test_every_wrapper_has_a_twin_for_the_host(name: str) -> None:
    """`#ifdef __CUDACC__` assembly `#else` a function of minrnn_host `#endif`, and assembly nowhere else."""
    branch, called_host = None, True
    for number, line in code_lines(TEMPLATES[name]):
        directive = line.strip()
        if directive.startswith("#"):
            assert directive in ("#ifdef __CUDACC__", "#else", "#endif"), f"line {number}: {directive}"
            expected = {None: "#ifdef __CUDACC__", "device": "#else", "host": "#endif"}[branch]
            assert directive == expected, f"line {number}: {directive}, expected {expected}"
            assert directive != "#endif" or called_host, f"line {number}: the host's branch calls nothing of minrnn_host"
            branch = {None: "device", "device": "host", "host": None}[branch]
            called_host = False
        if re.search(r"\basm\b", line):
            assert branch == "device", f"line {number}: assembly outside #ifdef __CUDACC__"
        if "minrnn_host::" in line:
            assert branch == "host", f"line {number}: minrnn_host outside #else"
            called_host = True
    assert branch is None


@for_each(TEMPLATES)
def test_nothing_is_included_from_outside(name: str) -> None:
    text = TEMPLATES[name]
    assert not re.search(r"#\s*include|cooperative_groups|cuda::|cub::|<cuda|__half|nv_bfloat", text)


@for_each(TEMPLATES)
def test_text_is_plain(name: str) -> None:
    """ASCII, no tabs, no continued lines."""
    text = TEMPLATES[name]
    assert text.isascii() and "\t" not in text and "\\\n" not in text and text.endswith("\n")


@for_each(TEMPLATES)
def test_strings_end_on_their_line(name: str) -> None:
    """A wrapped template line must not wrap a string: C++ has none over two lines."""
    wrapped = [f"line {number}: {line.strip()}" for number, line in code_lines(TEMPLATES[name]) if line.count('"') % 2]
    assert wrapped == []


@for_each([name for name in TEMPLATES if name not in WRAPPERS])
def test_numbers_have_names(name: str) -> None:
    """A number stands in a constexpr with its name, or is one of those that need none."""
    text = re.sub("|".join(NUMBERS_IN_PLACE), "", TEMPLATES[name])
    bare = []
    is_in_list = False  # of values, which a constexpr wraps after a comma
    for number, line in code_lines(text):
        is_constant = is_in_list or line.lstrip().startswith("constexpr")
        is_in_list = is_constant and line.rstrip().endswith(",")
        if not is_constant:
            numbers = re.findall(r"(?<![\w.])(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?)", line)
            bare += [f"line {number}: {each}" for each in numbers if each not in PLAIN_NUMBERS]
    assert bare == []


@for_each(KERNELS)
def test_the_plan_is_written_down_once(name: str) -> None:
    """Every number of the plan goes into a constant; below them only its name is used."""
    for number, line in enumerate(TEMPLATES[name].splitlines(), 1):
        if "{{ plan." in line and "{{ plan.symbol }}" not in line:
            assert line.startswith("constexpr"), f"line {number}: {line.strip()}"


@for_each(KERNELS)
def test_entry_points_are_c_and_bounded(name: str) -> None:
    """`extern "C"`, both launch bounds (with one alone ptxas spills), and the parameters of the signature.

    Clusters only where the plan has them: for GPUs without, the attribute does not compile.
    """
    text = re.sub(
        r"\{% if plan\.variables\.cluster_blocks > 1 %\}__cluster_dims__\(CLUSTER_BLOCKS, 1, 1\) \{% endif %\}\n?",
        "",
        TEMPLATES[name],
    )
    assert "__cluster_dims__" not in text
    found = re.findall(
        r'extern "C" __global__ void __launch_bounds__\((\w+), (\w+)\) \{\{ plan\.symbol \}\}(\w*)\((.*?)\) \{\n', text, re.S
    )
    assert {(threads, blocks) for threads, blocks, _, _ in found} == {("THREADS", "BLOCKS_PER_SM")}
    # A file has one kernel, or one that prepares a call and one that does a step of it.
    assert [suffix for _, _, suffix, _ in found] in ([""], ["_begin", "_step"])
    assert text.count("__global__") == len(found)
    for _, _, suffix, parameters in found:
        assert parameters == f"\n{{{{ signature{suffix.replace('_', '.')} | parameters }}}}"


def test_rendering_hands_over_exactly_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.rendered_kernels import rendered_case

    seen: list[set[str]] = []
    original = jinja2.Template.render

    def render(self: jinja2.Template, *positional: Any, **named: Any) -> str:
        assert not positional
        seen.append(set(named))
        return original(self, *positional, **named)

    monkeypatch.setattr(jinja2.Template, "render", render)
    rendered_case("min_gru")
    assert seen == [CONTEXT]
    assert not environment().globals.keys() - jinja2.defaults.DEFAULT_NAMESPACE.keys()


def test_the_templates_are_those_of_this_package() -> None:
    assert Path(environment().loader.searchpath[0]) == FOLDER  # type: ignore[union-attr]
