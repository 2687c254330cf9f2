"""Rooms of the package, and the imports between them: one way, from the ground up.

A *room* is a folder of the package or a module of its root. Rooms of one floor know nothing of each other; a room imports
from the floors below it only. Inside a room modules may import each other in any order without a cycle. An *arrow* is a
pair of rooms, of which one imports the other anywhere, inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import minrnn_gen
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.interpret.toolchain import FOLDER, HEADER, MACHINE

PACKAGE = Path(minrnn_gen.__file__).parent
# Beside the package, in a checkout alone: it may import any room, and no room imports it.
BENCHMARKS = PACKAGE.parent / "benchmarks"
LINES_MOST = 400
ARROWS_MOST = 150
# Functions whose body is one that another module or class has, of more characters than these.
TWICE_MOST, BODY_CHARACTERS = 7, 60


@dataclass(frozen=True)
class Room:
    """A folder of the package, or a module of its root, by its name."""

    name: str
    purpose: str


# From the ground up, floor by floor.
FLOORS = (
    (
        Room("errors", "the exceptions of the package, each message one sentence"),
        Room("native", "the part of a replayed call that is in C, where it was compiled"),
        Room("precision", "storage, arithmetic and roundoff of each precision"),
        Room("program", "a call as data: sizes that may be expressions, buffers, launches and products"),
    ),
    (Room("config", "what people write, read without trust: specs, GPU profiles, environment variables"),),
    (
        Room("cell", "equations to a proof of their class, to gradients, to straight-line programs"),
        Room("plan", "which kernel to generate: variables, constraints, cost models and the solver"),
    ),
    (
        Room("codegen", "a plan and a program as CUDA text"),
        Room("call", "the arrays of a call, whatever their library: described, checked, put in order"),
        Room("cpu", "the equations in NumPy: the CPU target"),
    ),
    (Room("build", "a spec to compiled kernels, through the store"),),
    (Room("gpu", "CuPy and the CUDA driver: devices, memory, streams, modules, graphs, cuBLAS"),),
    (Room("run", "a checked call executed: launches, workspaces, capture and replay"),),
    (Room("export", "a kernel as C sources, for programs without Python"),),
    (
        Room("kernel", "`Kernel`, the callable"),
        Room("raw_scan", "the recurrence h[t] = a[t] h[t-1] + b[t] without a spec"),
    ),
    (
        Room("interpret", "the kernels' own text on a CPU, thread by thread, under a race detector"),
        Room("tune", "candidates and microbenchmarks measured on the GPU at hand, and the results kept"),
    ),
    (
        Room("api", "`compile()`"),
        Room("report", "plans and measurements as drawings and pages"),
    ),
    (Room("layers", "layers of a cell before they have numbers: kernels by recipe, names and shapes of parameters"),),
    (
        Room("torch", "layers, functions and operators of torch"),
        Room("jax", "functions and layers of JAX, and the target of XLA's custom calls"),
    ),
    (Room("compat", "the functions of other libraries, computed by kernels of this one"),),
    (Room("cli", "the command line, one file per command"),),
)
ROOMS = {room.name: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ROOT_FILES = {"__init__.py", "api.py", "kernel.py", "errors.py", "precision.py", "py.typed"}

# Third-party libraries and the modules that may import them; "!" takes a module out again.
OWNERS = {
    "cupy": "build.nvrtc gpu.* benchmarks.scan_accuracy",
    "cupy_backends": "build.nvrtc gpu.*",
    "cuda": "build.nvrtc gpu.*",
    "torch": (
        "torch.* benchmarks.harness.gpu benchmarks.harness.host_calls benchmarks.distributed_suite "
        "benchmarks.contenders.baselines benchmarks.contenders.cpu_layers benchmarks.contenders.cpu_scans "
        "benchmarks.contenders.layers benchmarks.contenders.over_ranks benchmarks.contenders.raw_scans "
        "benchmarks.contenders.selective_scans benchmarks.serving_suite "
        "benchmarks.agents benchmarks.filter_accuracy benchmarks.filters benchmarks.first_calls benchmarks.forecasts "
        "benchmarks.harness.turns benchmarks.replaced_models benchmarks.second_backward benchmarks.sizes benchmarks.spiking "
        "compat.accelerated_scan.ref compat.flashrnn compat.flashrnn_states compat.fla compat.flashinfer "
        "compat.mamba_ssm compat.selective_kernels compat.mingru_pytorch "
        "compat.neurons compat.recurrent_gemma compat.snntorch compat.spikingjelly compat.torchrl "
        "compat.transformers_mamba compat.transformers_slots compat.xlstm"
    ),
    "jax": "jax.* benchmarks.contenders.baselines benchmarks.contenders.jax_calls benchmarks.contenders.jax_equations",
    "accelerated_scan": "benchmarks.contenders.baselines",
    "fla": "benchmarks.contenders.baselines",
    "flashrnn": "benchmarks.contenders.flash benchmarks.contenders.flash_build",
    "onnx": "torch.operators.onnx_translations",
    "onnxscript": "torch.operators.onnx_translations",
    "xlstm": "compat.xlstm",
    "transformers": (
        "compat.recurrent_gemma compat.transformers_mamba compat.transformers_slots benchmarks.contenders.selective_scans"
    ),
    "mamba_ssm": "benchmarks.contenders.selective_scans",
    "minGRU_pytorch": "compat.mingru_pytorch",
    "torchrl": "compat.torchrl benchmarks.agents",
    "matplotlib": "benchmarks.report.plot",
    "sympy": "cell.zeros",
    "jinja2": "codegen.render",
    "constraint": "plan.solver",
    "yaml": "config.documents",
    "platformdirs": "build.store",
    "filelock": "build.store",
    "typer": "cli.* benchmarks.commands.*",
    "rich": "cli.*",
}

# Folders that are imported by their name alone.
DOORS = {"torch", "jax", "compat.accelerated_scan"}

# What takes long to import stays out of the way of a request that is already in the cache.
HEAVY = {"sympy", "cupy", "numpy", "jinja2", "constraint", "torch", "jax"}


def name_of(path: Path) -> str:
    """Return the dotted name below the package; the package itself is ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MEASURING = {
    ".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts): path for path in sorted(BENCHMARKS.rglob("*.py"))
}
MODULES = {name: path for name, path in PATHS.items() if path.name != "__init__.py"}
FOLDERS = {name: path for name, path in PATHS.items() if path.name == "__init__.py" and name}


def room_of(name: str) -> str:
    """Return the room of a module; the package itself offers what `api` and the floors below it have."""
    return name.partition(".")[0] or "api"


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


def arrows() -> dict[tuple[str, str], list[str]]:
    """Return each pair of rooms, of which the first imports the second, and the imports that make it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, path in MODULES.items():
        for imported in house_imports(path):
            if room_of(imported) != room_of(name):
                found.setdefault((room_of(name), room_of(imported)), []).append(f"{name} imports {imported}")
    return found


def test_every_module_is_in_a_room() -> None:
    assert {room_of(name) for name in MODULES} == set(ROOMS), "give the new folder a place in FLOORS"


def test_the_root_has_no_other_files() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} <= ROOT_FILES


def test_every_import_goes_down() -> None:
    # Rooms of one floor know nothing of each other either.
    assert [imports for (room, imported), imports in arrows().items() if ROOMS[imported] >= ROOMS[room]] == []


def test_the_arrows_between_rooms_are_few() -> None:
    assert len(arrows()) <= ARROWS_MOST


def test_few_functions_stand_twice_to_the_letter() -> None:
    # Neither names nor documentation count, nor bodies of a few words.
    bodies: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                statements = node.body[ast.get_docstring(node) is not None :]
                text = "\n".join(map(ast.unparse, statements))
                if len(text) > BODY_CHARACTERS:
                    bodies.setdefault(f"{ast.unparse(node.args)}:\n{text}", []).append(f"{name}.{node.name}")
    twice = [names for names in bodies.values() if len(names) > 1]
    assert len(twice) <= TWICE_MOST, twice


def test_nothing_of_the_package_imports_the_benchmarks() -> None:
    assert [
        name for name, path in PATHS.items() if any(one.partition(".")[0] == "benchmarks" for one in imports_of(path))
    ] == []


def test_there_is_no_cycle() -> None:
    graph = {name: house_imports(path) for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_folders_import_nothing() -> None:
    # But a wing that is a front door of its own.
    assert {name: imports_of(path) for name, path in FOLDERS.items() if imports_of(path) and name not in DOORS} == {}


def test_nothing_goes_through_a_door_of_a_wing() -> None:
    assert [name for name, path in MODULES.items() if house_imports(path) & DOORS] == []


def test_only_wings_and_their_fronts_import_the_torch_wing() -> None:
    allowed = {"torch", "compat", "cli"}
    importing = {name for name, path in MODULES.items() if any(one.startswith("torch.") for one in house_imports(path))}
    assert {name for name in importing if name.partition(".")[0] not in allowed} == set()


def test_only_the_front_door_and_the_command_line_open_the_tuner() -> None:
    importing = {name for name, path in MODULES.items() if any(one.startswith("tune.") for one in house_imports(path))}
    assert {name for name in importing if name.partition(".")[0] not in {"tune", "cli"}} <= {"api"}


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


def test_one_module_reads_the_environment_variables_of_the_package() -> None:
    reads = re.compile(r"environ[^\n]*MINRNN_")
    assert [name for name, path in MODULES.items() if reads.search(path.read_text(encoding="utf-8"))] == ["config.environment"]


@pytest.mark.parametrize("library", OWNERS)
def test_only_its_owners_import(library: str) -> None:
    patterns = OWNERS[library].split()
    for name, path in (PATHS | MEASURING).items():
        if any(imported.partition(".")[0] == library for imported in imports_of(path)):
            owned = any(fnmatchcase(name, pattern) for pattern in patterns)
            assert owned and f"!{name}" not in patterns, f"{name} imports {library}, which belongs to: {OWNERS[library]}"


def test_files_are_small() -> None:
    templates = package_folder("templates")
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".h", ".cpp"}}
    paths |= {f"benchmarks/{name}": path for name, path in MEASURING.items()}
    paths |= {path.relative_to(templates).as_posix(): path for path in templates.rglob("*.j2")}
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in paths.items()}
    assert {name for name, lines in lengths.items() if lines > LINES_MOST} == set()


def test_no_two_files_of_tests_have_one_name() -> None:
    """Their folders are no packages, so that pytest would refuse the second one."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


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


@pytest.mark.parametrize("name", ["minrnn_gen", "minrnn_gen.api", "minrnn_gen.build.store", "benchmarks.report.record"])
def test_the_front_door_is_light(name: str) -> None:
    program = f"import sys, {name}; print(sorted({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("[]\n", "")
