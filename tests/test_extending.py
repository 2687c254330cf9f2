"""Lists of CONTRIBUTING.md for new cells, GPUs, strategies, exchanges, families, executors and fronts: their files are enough.

A copy of the package gets a toy of each kind (`tests/support/extension`), and plans, renders, compiles and runs them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import pytest
from support.everyday import one_in
from support.exported import check

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.classes import CellKind, FamilyName

ROOT = Path(__file__).parents[1]
EXTENSION = ROOT / "tests" / "support" / "extension"
GUIDE = ROOT / "CONTRIBUTING.md"
# What is shipped: the rest of a list is documentation and tests.
SHIPPED = ("minrnn_gen", "templates", "gpu_profiles")
FAMILIES, CLASSES = "minrnn_gen/plan/families.py", "minrnn_gen/plan/classes.py"
ANALYSIS, RUNS = "minrnn_gen/cell/analysis.py", "minrnn_gen/run/cells.py"
# Files of the package that a family touches at most: none of exports, of JAX or of native code.
FAMILY_FILES_MOST = 10

# Files that the toy of each kind adds, and the lines that it puts behind a line of a file that is there.
ADDED: dict[str, tuple[str, ...]] = {
    "A cell": ("minrnn_gen/cell/library/toy.yaml",),
    "A GPU": ("gpu_profiles/toy.yaml",),
    "A strategy of a kernel family": ("minrnn_gen/plan/scan/serial.py", "templates/scan_forward_serial.cu.j2"),
    "An exchange": ("templates/exchanges/rotated.cuh.j2",),
    "A kernel family": (
        "minrnn_gen/plan/memoryless/__init__.py",
        "minrnn_gen/plan/memoryless/elementwise.py",
        "minrnn_gen/run/memoryless/__init__.py",
        "minrnn_gen/run/memoryless/launch.py",
        "minrnn_gen/run/memoryless/runs.py",
        "templates/memoryless_forward.cu.j2",
    ),
    "An executor": ("minrnn_gen/run/recording/counts.py",),
    "A front of another library": ("minrnn_gen/compat/toy.py",),
}
REGISTERED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "A strategy of a kernel family": (
        (FAMILIES, r"^from minrnn_gen\.plan\.scan import .*$", "from minrnn_gen.plan.scan import serial"),
        (FAMILIES, r"^FAMILIES: .*$", "    serial.FORWARD,"),
        (
            FAMILIES,
            r'^    """Return the families that may serve.*$',
            "    if serial.serves(problem):\n        return (serial.FORWARD,)",
        ),
    ),
    "An exchange": (
        (
            "minrnn_gen/plan/exchange.py",
            r"^EXCHANGES = \($",
            '    Exchange("rotated", lambda kernel_pass, variables: kernel_pass == "forward" and _is_cluster(variables), '
            "passes_operands=True),",
        ),
    ),
    "A kernel family": (
        (ANALYSIS, r"^from minrnn_gen\.cell\.blocks import .*$", "from minrnn_gen.cell import expressions as ex"),
        (ANALYSIS, r"^Kind = Literal\[$", '    "memoryless",'),
        (
            ANALYSIS,
            r'^        return Recurrence\("dense".*$',
            """    previous = {ex.previous(state) for state in cell.states}
    expressions = (*(expression for _, expression in cell.definitions), cell.output)
    if not any(previous.intersection(ex.symbols_of(expression)) for expression in expressions):
        return Recurrence("memoryless", (), (), "memoryless: no equation reads a previous state.")""",
        ),
        (CLASSES, r"^CellKind = Literal\[$", '    "memoryless",'),
        (CLASSES, r"^FamilyName = Literal\[$", '    "memoryless",'),
        (CLASSES, r"^FAMILY_OF_CLASS: .*$", '    "memoryless": "memoryless",'),
        (CLASSES, r"^FAMILIES_IN_WORDS: .*$", '    "memoryless": "memoryless: no step waits for another",'),
        (FAMILIES, r"^from minrnn_gen\.plan\.dense import .*$", "from minrnn_gen.plan.memoryless import elementwise"),
        (FAMILIES, r"^FAMILIES: .*$", "    elementwise.FORWARD,"),
        (
            FAMILIES,
            r"^    match problem\.cell\.kind:$",
            """        case "memoryless":
            # A single step and gradients are those of a cell whose class is not known.
            return (elementwise.FORWARD,) if problem.kernel_pass == "forward" else _diagonal_families(problem)""",
        ),
        (
            "minrnn_gen/codegen/signature.py",
            r"^_KINDS: .*$",
            '    ("memoryless_forward", ""): _scan_forward,',
        ),
        (RUNS, r"^from minrnn_gen\.run\.dense\.runs import .*$", "from minrnn_gen.run.memoryless.runs import MemorylessRun"),
        (
            RUNS,
            r"^    match builder\.family:$",
            """        case "memoryless":
            return MemorylessRun(interface, builder)""",
        ),
    ),
}
# A cell of the class that the toy family serves.
GATED = {"name": "gated", "equations": "m = tanh(W.a) * scale\nh[t] = m * W.b", "parameters": ["scale"]}

# Run in the copy; prints what the test asserts.
PLANNED = """
import json, minrnn_gen
kernel = minrnn_gen.compile({spec!r})
built = kernel.built[0]
resources = [vars(one) for one in built.resources or ()]
print(json.dumps({{
    "package": minrnn_gen.__file__, "arch": kernel.plan.problem.arch, "template": kernel.plan.template,
    "entry": kernel.plan.entry, "registers": kernel.plan.budget.registers_per_thread,
    "resources": resources, "source": built.source,
}}))
"""
EMULATED = """
import json, numpy, minrnn_gen
kernel = minrnn_gen.compile({spec!r}, device="interpret")
assert "serial" in kernel.plan.template
spec, random = kernel.spec, numpy.random.default_rng(0)
x = random.normal(size=(3, 9, len(kernel.gates), spec.hidden_size)).astype(numpy.float32)
x = x if spec.layout == "BTD" else numpy.ascontiguousarray(x.swapaxes(0, 1))
bias = random.normal(size=x.shape[2:]).astype(x.dtype)
state = {{name: random.uniform(1, 2, (3, spec.hidden_size)).astype(x.dtype) for name in kernel.states}}
sequences = {{"lengths": numpy.array([9, 0, 4]), "resets": random.random((3, 9)) < 0.2}}
errors = []
for more in ({{}}, sequences, {{**sequences, "all_states": True}}):
    found, expected = (call(x, bias=bias, state=state, **more) for call in (kernel, kernel.reference))
    for one, other in zip((found[0], *found[1].values()), (expected[0], *expected[1].values()), strict=True):
        errors.append(float(numpy.abs(one.astype(float) - other.astype(float)).max()))
print(json.dumps(errors))
"""
FAMILY = """
import json, numpy, minrnn_gen
from minrnn_gen.interpret.cases import Case, inputs_of
kernel = minrnn_gen.compile({spec!r}, device="interpret")
assert (kernel.builder.family, kernel.plan.template) == ("memoryless", "memoryless_forward.cu.j2")
errors = []

def compare(found, expected):
    for one, other in zip((found[0], *found[1].values()), (expected[0], *expected[1].values()), strict=True):
        errors.append(float(numpy.abs(one.astype(float) - other.astype(float).reshape(one.shape)).max(initial=0)))

for more in (False, True):
    inputs = inputs_of(kernel.interface, Case(3, 9, more)).forward
    compare(kernel(**inputs, all_states=more), kernel.reference(**inputs, all_states=more))
if kernel.spec.layout == "BTD":
    inputs = inputs_of(kernel.interface, Case(1, 9)).forward
    states = inputs_of(kernel.interface, Case(3, 9)).forward["state"]
    inputs |= {{"cu_seqlens": numpy.array([0, 4, 4, 9]), "state": states}}
    compare(kernel(**inputs), kernel.reference(**inputs))
inputs = inputs_of(kernel.interface, Case(2, 0)).forward
compare(kernel(**inputs), kernel.reference(**inputs))
if not kernel.interface.directions:
    inputs = inputs_of(kernel.interface, Case(3, 1))
    compare(kernel.step(**inputs.step), kernel.reference(**inputs.forward))
if kernel.spec.training:
    inputs = inputs_of(kernel.interface, Case(3, 9, True))
    both = (kernel, minrnn_gen.compile({spec!r}))
    found, expected = (one.backward(one.forward(**inputs.forward)[2], inputs.dy, inputs.dstate) for one in both)
    compare((found["x"], {{"bias": found["bias"]}}), (expected["x"], {{"bias": expected["bias"]}}))
print(json.dumps(errors))
"""
DESCRIBED = """
import json, tempfile, minrnn_gen
from pathlib import Path
from support.fake_compiler import Compiler
from minrnn_gen.build import builder
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.recording.plain_program import plain_program
builder.compile_source = Compiler()
kernel = minrnn_gen.compile({spec!r})
folder = Path(tempfile.mkdtemp())
exported = kernel.export(folder, target="cuda", gpus=["toy"], sizes=[(3, 9)])
kernel.export(folder / "cpu", target="cpu")
print(json.dumps({{
    "left out": str(exported.left_out),
    "source": (folder / "rnn_gated.c").read_text(),
    "cpu": str(folder / "cpu"),
    "program": plain_program(kernel.builder, "forward", Sizes(3, 9)),
    "explained": kernel.explain(),
}}))
"""
IN_JAX = """
import json, jax, numpy, minrnn_gen
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.jax import recurrence
spec = {spec!r}
kernel = minrnn_gen.compile(spec)
inputs = inputs_of(kernel.interface, Case(3, 9, True)).forward
x = inputs.pop("x")
found = jax.jit(lambda x: recurrence(spec, x, **inputs)[0])(x)
print(json.dumps(float(numpy.abs(numpy.asarray(found, float) - kernel.reference(x, **inputs)[0]).max())))
"""
EXCHANGED = """
import json, numpy, minrnn_gen
kernel = minrnn_gen.compile({spec!r}, device="interpret")
assert kernel.plan.exchange.name == "rotated" and "store into themselves first" in kernel.source
random = numpy.random.default_rng(0)
size = kernel.spec.hidden_size
x, R = random.normal(size=(3, 9, 3, size)), random.normal(size=(3, 1, size, size)) / size**0.5
found, expected = (call(x.astype(numpy.float32), R.astype(numpy.float32))[0] for call in (kernel, kernel.reference))
print(json.dumps(float(numpy.abs(found.astype(float) - expected.astype(float)).max())))
"""
COUNTED = """
import json, minrnn_gen
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.recording.counts import Counting
from minrnn_gen.run.recording.plain_program import plain_call
builder = minrnn_gen.compile({spec!r}).builder
program, names, _ = plain_call(builder, "forward", Sizes(3, 9))
performed = Counting(program)
print(json.dumps([performed.bytes, performed.counts, sorted(names.values())]))
"""
SUMMED = """
import json, numpy
from minrnn_gen.compat.toy import running_sum
print(json.dumps(running_sum(numpy.arange(6.0).reshape(3, 2)).tolist()))
"""


def listed(kind: str) -> list[str]:
    """Return the files that the guide lists for a kind, with * for what has a name of its own."""
    section = re.search(rf"^### {kind}\n(.*?)^### ", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    assert section, f"CONTRIBUTING.md has no section {kind!r}"
    quoted = re.findall(r"`([^`]+)`", section[1])
    return [re.sub(r"<\w+>", "*", path) for path in quoted if re.fullmatch(r"\S+/\S+\.\w+", path)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a checkout has it, with the toys in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in SHIPPED:
        if (EXTENSION / name).is_dir():
            shutil.copytree(EXTENSION / name, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    profile = (ROOT / "gpu_profiles" / "h100.yaml").read_text(encoding="utf-8")
    profile = re.sub(r"^name: .*$", "name: toy", profile, flags=re.M)
    profile = re.sub(r"^device_names:\n(?:  - .*\n)+", "device_names:\n  - NVIDIA Toy\n", profile, flags=re.M)
    (folder / "gpu_profiles" / "toy.yaml").write_text(profile, encoding="utf-8")
    for lines in REGISTERED.values():
        for name, behind, line in lines:
            text = (folder / name).read_text(encoding="utf-8")
            text, count = re.subn(behind, lambda found, line=line: f"{found[0]}\n{line}", text, flags=re.M)
            assert count == 1, f"{name} has {count} lines like {behind}"
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def answer_of(copy: Path, cache: Path, program: str, **spec: Any) -> Any:
    toy = {
        "model": "toy",
        "hidden_size": 40,
        "gpu": "toy",
        "precision": "fp32",
        "batch": 3,
        "time": 9,
        "training": False,
        **spec,
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(copy), str(ROOT / "tests"))), "MINRNN_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", program.format(spec=toy)]
    answer = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in SHIPPED:
        for path in (folder / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(folder).as_posix(), path.read_bytes()


@pytest.mark.parametrize("kind", ADDED)
def test_the_guide_lists_the_files_of_the_toy(kind: str) -> None:
    shipped = [pattern for pattern in listed(kind) if pattern.startswith(SHIPPED)]
    # A folder has an empty file that says it is a part of the package.
    added = {name for name in ADDED[kind] if (EXTENSION / name).name != "__init__.py"}
    touched = {*added, *(name for name, _, _ in REGISTERED.get(kind, ()))}
    assert {name for name in touched if not any(fnmatchcase(name, pattern) for pattern in shipped)} == set()


def test_a_family_touches_few_files() -> None:
    shipped = {pattern for pattern in listed("A kernel family") if pattern.startswith(SHIPPED)}
    assert len(shipped) <= FAMILY_FILES_MOST
    assert not [pattern for pattern in shipped if re.search(r"/(export|jax|native|cpu|torch)/|\bcpu_", pattern)]


def test_nothing_asks_for_a_class_by_its_name_but_the_files_that_list_them() -> None:
    # Elsewhere a new class would be taken for what it is not: cells are asked what they have.
    words = {"kind": {*get_args(CellKind)}, "family": {*get_args(FamilyName)}}
    asks = set()
    for path in (ROOT / "minrnn_gen").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                asked = {one.attr for one in (node.left, *node.comparators) if isinstance(one, ast.Attribute)}
                said = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                asks |= {path.relative_to(ROOT).as_posix() for name in asked & {*words} if said & words[name]}
    assert asks <= {*listed("A kernel family"), "minrnn_gen/plan/problem.py"}


@pytest.mark.parametrize("kind", [*ADDED, "A command"])
def test_the_files_that_the_guide_lists_are_there(kind: str) -> None:
    assert listed(kind)
    for pattern in listed(kind):
        assert any(ROOT.glob(pattern)), pattern


def test_the_toys_are_all_that_differs(copy: Path) -> None:
    before, after = dict(files_of(ROOT)), dict(files_of(copy))
    touched = {name for names in ADDED.values() for name in names} | {
        name for lines in REGISTERED.values() for name, _, _ in lines
    }
    assert {name for name in after if after[name] != before.get(name)} == touched and set(before) <= set(after)


def test_toys_are_planned_rendered_and_compiled(copy: Path, tmp_path: Path) -> None:
    answer = answer_of(copy, tmp_path, PLANNED)
    assert Path(answer["package"]).is_relative_to(copy)
    assert (answer["arch"], answer["template"], answer["entry"]) == ("sm_90", "scan_forward_serial.cu.j2", "scan_forward")
    assert "for toy" in answer["source"] and "gpu toy (sm_90)" in answer["source"]
    if toolchain_version():
        (kernel,) = answer["resources"]
        assert kernel["spill_bytes"] == 0 and 0 < kernel["registers"] <= answer["registers"]
    # Where it does not serve, the families are as they were.
    assert answer_of(copy, tmp_path, PLANNED, hidden_size=1024)["template"] == "scan_forward_channels.cu.j2"


@pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize(
    "spec",
    one_in(3, [{"direction": "reverse", "layout": "TBD"}, {}, {"model": "min_gru_log", "scan_arithmetic": "log"}]),
    ids=str,
)
def test_the_strategy_of_the_toy_is_right(copy: Path, emulated_kernels: Path, spec: dict[str, Any]) -> None:
    assert max(answer_of(copy, emulated_kernels, EMULATED, **spec)) <= 2.0**-18


@pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")
def test_the_exchange_of_the_toy_is_right(copy: Path, emulated_kernels: Path) -> None:
    assert answer_of(copy, emulated_kernels, EXCHANGED, model="gru", hidden_size=96, precision="fp32", batch=3) <= 2.0**-18


def test_the_family_of_the_toy_is_planned_rendered_and_compiled(copy: Path, tmp_path: Path) -> None:
    answer = answer_of(copy, tmp_path, PLANNED, model=GATED)
    assert (answer["template"], answer["entry"]) == ("memoryless_forward.cu.j2", "memoryless_forward")
    if toolchain_version():
        (kernel,) = answer["resources"]
        assert kernel["spill_bytes"] == 0 and 0 < kernel["registers"] <= answer["registers"]


@pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize(
    "spec",
    one_in(
        5,
        [
            {"layout": "TBD", "direction": "bidirectional"},
            {"direction": "reverse", "input_size": 5},
            {"layout": "BDT", "direction": "reverse"},
            {"precision": "bf16"},
            {"training": True, "layout": "BDT"},
        ],
    ),
    ids=str,
)
def test_the_family_of_the_toy_is_right(copy: Path, emulated_kernels: Path, spec: dict[str, Any]) -> None:
    error = 2.0**-8 if spec.get("precision") == "bf16" else 2.0**-18
    assert max(answer_of(copy, emulated_kernels, FAMILY, model=GATED, hidden_size=12, **spec)) <= error


def test_the_family_of_the_toy_is_exported_and_explained(copy: Path, tmp_path: Path) -> None:
    answer = answer_of(copy, tmp_path, DESCRIBED, model=GATED)
    assert answer["left out"] == "()" and "memoryless_forward" in answer["source"]
    assert "launch memoryless_forward, 17 blocks of 64 threads" in answer["program"], answer["program"]
    assert "memoryless: no step waits for another" in answer["explained"]
    if has_compiler():
        ran = check(Path(answer["cpu"]), "rnn_gated")
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.matrix_full
def test_the_family_of_the_toy_runs_in_jax(copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert answer_of(copy, tmp_path, IN_JAX, model=GATED) <= 2.0**-18


def test_the_executor_of_the_toy_performs_programs_of_every_class(copy: Path, tmp_path: Path) -> None:
    # Of a scan y and the final state, of a dense cell with its projection the pre-activations and R by heads too.
    scan = answer_of(copy, tmp_path, COUNTED, model="min_gru", gpu="h100")
    assert scan[0] == 4 * (3 * 9 * 40 + 3 * 40) and scan[1] == {"cast": 0, "launch": 1}
    dense = answer_of(copy, tmp_path, COUNTED, model="lstm", gpu="h100", input_size=16)
    assert dense[1]["launch"] >= 1 and dense[1]["product"] == 1 and dense[0] > scan[0]


def test_the_front_of_the_toy_computes(copy: Path, tmp_path: Path) -> None:
    assert answer_of(copy, tmp_path, SUMMED) == [[0, 1], [2, 4], [6, 9]]
