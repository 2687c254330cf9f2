"""Imports go one way: a module knows only what lies below it. The tables are the house's floor plan."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import minrnn_gen
from minrnn_gen.interpret.toolchain import FOLDER, HEADER, MACHINE

PACKAGE = Path(minrnn_gen.__file__).parent
LINES_MOST = 400


@dataclass(frozen=True)
class Layer:
    """Modules on one level: each imports from the levels above it in the table, never from its own unless `together`."""

    modules: str
    purpose: str
    together: bool = False


# From the ground up. An exact name beats a pattern.
LAYERS = (
    Layer("errors", "one family of exceptions"),
    Layer("config.validation", "a refused value in one sentence"),
    Layer(
        "precision config.package_files config.documents config.environment",
        "tables, files and settings that know nothing of kernels",
    ),
    Layer("config.spec config.gpu_profile build.store", "what the user wants, what the GPU has, what is already made"),
    Layer("gpu.calibration", "what was measured of the GPU here"),
    Layer("cell.files cell.syntax", "a cell as a file and as text"),
    Layer("cell.functions", "what an equation may call"),
    Layer("cell.expressions", "the operations of an expression"),
    Layer("cell.printing", "expressions as text"),
    Layer("cell.program", "expressions as a list of statements"),
    Layer("cell.ranges", "what values can be"),
    Layer("cell.value_numbering", "what is computed once"),
    Layer("cell.liveness", "which names are used"),
    Layer("cell.language", "text to Cell"),
    Layer("cell.analysis", "the proof of its class"),
    Layer("cell.gradient", "its vector-Jacobian product"),
    Layer("cell.program_names", "its symbols, each with its name in a program"),
    Layer("cell.lowering_steps", "one step of any cell to statements for every target"),
    Layer("cell.lowering", "a scan to statements for every target"),
    Layer("cell.operation_counts cell.gradient_text", "what a step takes, and its gradient for people"),
    Layer("plan.kernel_plan plan.occupancy plan.gpu_rates", "the decision, how many blocks an SM holds, and how fast it is"),
    Layer("plan.problem", "cell, sizes and GPU in one"),
    Layer("plan.solver", "every candidate, and the best of them"),
    Layer("plan.scan.cost", "what the plans of one family share"),
    Layer("plan.elementwise plan.dense.mma", "what the plans of steps share"),
    Layer("plan.dense.partition", "who has what of all steps"),
    Layer("plan.*", "variables, constraints, resources and cost of a forward and its backward, or of all steps"),
    Layer("plan.families", "which of them a problem is for"),
    Layer("codegen.render build.tuned_choice", "the decision as CUDA text, and what was decided by measuring"),
    Layer("build.nvrtc", "CUDA text as a cubin"),
    Layer("gpu.driver", "the CUDA driver, and launches by it"),
    Layer("call.address call.key", "where an array is, and all that a launch depends on besides"),
    Layer("call.array", "arrays of three libraries"),
    Layer("call.validate", "what a single array has to be"),
    Layer("call.sequences", "where sequences begin, end and start anew"),
    Layer("call.interface", "what a kernel accepts"),
    Layer("call.arguments", "what a kernel is called with, checked"),
    Layer("call.directions call.gradients", "a call run by run, and what a backward returns"),
    Layer("cpu.recurrence", "h[t] = a h[t-1] + b over time in NumPy"),
    Layer("gpu.cuda cpu.scan cpu.matmul run.scan_launch", "the GPU, the CPU, and the launch between"),
    Layer("gpu.cublas gpu.graph gpu.timer", "products on the GPU, launches recorded with memory of their own, and timed"),
    Layer("run.projection run.replay", "products on the GPU, and runs on it that are done again"),
    Layer("run.slots run.saved", "the form of a call, and what a backward needs of a forward"),
    Layer("cpu.scan_backward cpu.steps", "gradients of scans on the CPU, and the cells there that are none"),
    Layer("cpu.steps_backward", "their gradients"),
    Layer("build.recipe", "a spec and its cell as one line of text"),
    Layer("build.artifact", "a kernel from the compiler and the store"),
    Layer("build.builder", "a spec all the way to a compiled kernel, through the store"),
    Layer("raw_scan.arguments", "what a raw scan is called with, checked"),
    Layer("raw_scan.arrangement raw_scan.host", "a raw scan on host arrays, and what a kernel sees of others"),
    Layer("raw_scan.kernels", "its compiled kernels"),
    Layer("raw_scan.device", "a raw scan on CUDA arrays"),
    Layer("raw_scan.scan", "scan() and scan_backward()"),
    Layer("build.explain", "why this decision"),
    Layer("run.host_views", "arrays in the order in which time runs"),
    Layer("run.cpu run.scan", "a call on host arrays, and on a GPU"),
    Layer("run.dense_launch", "what the kernels of dense cells are called with"),
    Layer("run.stepwise", "their steps one by one"),
    Layer("run.dense", "a dense cell's call on a GPU"),
    Layer("kernel", "the callable"),
    Layer("interpret.*", "a wing that only the front door and the command line open: kernels run on the host", together=True),
    Layer("tune.*", "a wing that only the front door and the command line open", together=True),
    Layer("api", "compile()"),
    Layer("tune.pool", "specs tuned at once"),
    Layer("torch.dtypes torch.recorded torch.dispatch torch.kernels", "torch's names, and what it is told of a call"),
    Layer("torch.calls", "a kernel as functions of tensors"),
    Layer("torch.kernel_operator torch.raw_scan", "operators of torch"),
    Layer("torch.functional torch.architecture torch.initial", "a kernel as a function, and what a layer is made of"),
    Layer("torch.checks", "what a layer is called with, checked"),
    Layer("torch.layer", "a layer of any cell"),
    Layer("torch.layers", "layers of the built-in cells"),
    Layer(
        "bench.* compat.* calibrate.*",
        "wings: they import the house, never the reverse",
        together=True,
    ),
    Layer("cli.*", "one file per command", together=True),
)

# Third-party libraries that not every module may import; "!" takes a module out again.
OWNERS = {
    "cupy": "build.nvrtc gpu.cuda",
    "cupy_backends": "build.nvrtc gpu.cuda",
    "cuda": "build.nvrtc gpu.cuda",
    "torch": "torch.* bench.gpu bench.peers bench.layers bench.raw compat.flashrnn compat.flashrnn_states compat.fla",
    "jax": "bench.peers",
    "accelerated_scan": "bench.peers",
    "fla": "bench.peers",
    "flashrnn": "bench.flash bench.flash_build",
    "matplotlib": "bench.plot",
    "sympy": "cell.* !cell.files",
    "jinja2": "codegen.render",
    "constraint": "plan.solver",
    "yaml": "config.documents",
    "platformdirs": "build.store",
    "filelock": "build.store",
    "typer": "cli.*",
    "rich": "cli.*",
}

# Folders that are imported by their name alone.
DOORS = {"torch"}

# What takes long to import stays out of the way of a request that is already in the cache.
HEAVY = {"sympy", "cupy", "numpy", "jinja2", "constraint", "torch"}


def name_of(path: Path) -> str:
    """Return the dotted name below the package; the package itself is ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {name: path for name, path in PATHS.items() if path.name != "__init__.py"}
FOLDERS = {name: path for name, path in PATHS.items() if path.name == "__init__.py" and name}


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the dotted names that `path` imports anywhere, inside functions and under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    found.add(inner if inner.removeprefix("minrnn_gen.") in PATHS else module)
                    if inner == "minrnn_gen.__version__":
                        found.discard(module)  # a constant, not what the house offers
            case ast.ImportFrom():
                found.add("relative import")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[argument, *_]):
                if called in {"import_module", "__import__"}:
                    text = argument.value if isinstance(argument, ast.Constant) else None
                    found.add(text if isinstance(text, str) else "computed import")
    return frozenset(found)


def house_imports(path: Path) -> set[str]:
    names = {name for name in imports_of(path) if name.partition(".")[0] == "minrnn_gen"}
    return {name.removeprefix("minrnn_gen").removeprefix(".") for name in names}


def level_of(name: str) -> int | None:
    """Return the level of the module in LAYERS, from 0 at the ground, or None where it has no place."""
    for matches in (str.__eq__, fnmatchcase):
        for level, layer in enumerate(LAYERS):
            if any(matches(name, pattern) for pattern in layer.modules.split()):
                return level
    return None


def test_every_module_has_its_place() -> None:
    assert [name for name in MODULES if level_of(name) is None] == [], "give the new module a place in LAYERS"


def test_every_import_goes_down() -> None:
    upward = []
    for name, path in MODULES.items():
        level = level_of(name)
        for imported in house_imports(path):
            # The front door offers what api and the modules below it have.
            below = level_of(imported or "api")
            if level is None or below is None or below > level or (below == level and not LAYERS[level].together):
                upward.append(f"{name} imports {imported or 'the package itself'}")
    assert upward == []


def test_there_is_no_cycle() -> None:
    graph = {name: house_imports(path) for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_folders_import_nothing() -> None:
    # But a wing that is a front door of its own.
    assert {name: imports_of(path) for name, path in FOLDERS.items() if imports_of(path) and name not in DOORS} == {}


def test_nothing_goes_through_a_door_of_a_wing() -> None:
    assert [name for name, path in MODULES.items() if house_imports(path) & DOORS] == []


def test_only_wings_and_their_fronts_import_the_torch_wing() -> None:
    allowed = {"torch", "bench", "compat", "cli"}
    importing = {name for name, path in MODULES.items() if any(one.startswith("torch.") for one in house_imports(path))}
    assert {name for name in importing if name.partition(".")[0] not in allowed} == set()


def test_only_the_front_door_and_the_command_line_open_the_tuner() -> None:
    importing = {name for name, path in MODULES.items() if any(one.startswith("tune.") for one in house_imports(path))}
    assert {name for name in importing if name.partition(".")[0] not in {"tune", "cli", "bench"}} <= {"api"}


def test_only_the_front_door_and_the_command_line_run_kernels_on_the_host() -> None:
    importing = {name for name, path in MODULES.items() if any(one.startswith("interpret.") for one in house_imports(path))}
    assert {name for name in importing if name.partition(".")[0] not in {"interpret", "cli"}} <= {"api"}


def test_cells_of_numpy_reach_no_torch() -> None:
    reached, ahead = set(), ["compat.numpy_cells"]
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead += [one for one in house_imports(PATHS[name]) if one in PATHS and one not in reached]
    assert "kernel" in reached and not any("torch" in imports_of(PATHS[name]) for name in reached)


def test_imports_are_absolute_and_written_out() -> None:
    # Only the front door computes what to import: the names it offers, when they are asked for.
    assert [name for name, path in MODULES.items() if imports_of(path) & {"relative import", "computed import"}] == []


@pytest.mark.parametrize("library", OWNERS)
def test_only_its_owners_import(library: str) -> None:
    patterns = OWNERS[library].split()
    for name, path in PATHS.items():
        if any(imported.partition(".")[0] == library for imported in imports_of(path)):
            owned = any(fnmatchcase(name, pattern) for pattern in patterns)
            assert owned and f"!{name}" not in patterns, f"{name} imports {library}, which belongs to: {OWNERS[library]}"


def test_modules_are_small() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in PATHS.items()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MOST} == {}


def test_the_machine_is_built_from_the_ground_up() -> None:
    """Each of its files includes some of those before it, and the last one has all."""
    assert {path.relative_to(FOLDER).as_posix() for path in (FOLDER / "machine").iterdir()} == set(MACHINE)
    known: dict[str, set[str]] = {}
    for name in MACHINE:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LINES_MOST
        included = {f"machine/{one}" for one in re.findall(r'#include "(.+)"', text) if one != HEADER}
        assert included <= known.keys()
        known[name] = {name}.union(*(known[one] for one in included))
    assert known[MACHINE[-1]] == set(MACHINE)


@pytest.mark.parametrize("name", ["minrnn_gen", "minrnn_gen.api", "minrnn_gen.build.store", "minrnn_gen.bench.record"])
def test_the_front_door_is_light(name: str) -> None:
    program = f"import sys, {name}; print(sorted({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("[]\n", "")
