"""The kernels of this process by their recipes, the names of kernels in graphs, which hold only text and numbers."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection

from minrnn_gen.api import builder_for, compile
from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.recipe import cell_source_of, recipe_of, spec_from
from minrnn_gen.cell.affine_stages import AffineStage, affine_stages
from minrnn_gen.cell.files import CellSource
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.syntax import without_indentation
from minrnn_gen.config.spec import load_spec
from minrnn_gen.gpu import driver
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.target import target_of

_KERNELS: dict[str, Kernel] = {}


def kernel_by(recipe: str) -> Kernel:
    """Return the kernel of a recipe, made where this process has none yet; raises the errors of `compile`.

    With a GPU, kernels for the recipe's typical sizes are compiled ahead, all others when a call needs them; calls on host
    tensors alone need none.
    """
    kernel = _KERNELS.get(recipe)
    return kernel or _KERNELS.setdefault(recipe, _made(recipe))


def _made(recipe: str) -> Kernel:
    spec = spec_from(recipe)
    is_ahead = (spec.batch or spec.time) and driver.has_device()
    return compile(spec) if is_ahead else Kernel(builder_for(spec, target_of(spec)))


@functools.lru_cache
def kernel_of_share(recipe: str, count: int) -> Kernel:
    """Return the kernel of a recipe for one of `count` equal shares of the GPU, for runs that are concurrent with others."""
    spec = spec_from(recipe)
    return Kernel(builder_of(spec, target_of(spec).share(count)))


def has_recurrent_product(source: CellSource) -> bool:
    """Say whether a cell multiplies its previous output by R."""
    return bool(parse_cell(source).recurrent_gates)


def known(kernel: Kernel) -> str:
    """Register a kernel under its recipe and return the recipe; kernels of one recipe are interchangeable."""
    _KERNELS.setdefault(kernel.recipe, kernel)
    return kernel.recipe


@functools.lru_cache
def _in_direction(recipe: str, direction: str) -> str:
    spec = spec_from(recipe)
    return recipe_of(load_spec(spec, direction=direction), cell_source_of(spec))


def recipe_in_direction(kernel: Kernel, direction: str) -> str:
    """Return the recipe of a kernel that computes one direction of a bidirectional kernel."""
    return _in_direction(kernel.recipe, direction)


@functools.lru_cache
def recipe_in_layout(recipe: str, layout: str) -> str:
    """Return the recipe of a kernel that differs from another in its layout alone."""
    spec = spec_from(recipe)
    return recipe_of(load_spec(spec, layout=layout), cell_source_of(spec))


@functools.lru_cache
def _of_heads(recipe: str, ranks: int) -> str:
    spec = spec_from(recipe)
    heads = spec.heads // ranks if spec.heads % ranks == 0 else 1
    groups = spec.groups and groups_of_share(spec.hidden_size, spec.groups, ranks)
    share = load_spec(spec, hidden_size=spec.hidden_size // ranks, heads=heads, groups=groups)
    return recipe_of(share, cell_source_of(spec))


def groups_of_share(hidden_size: int, groups: int, ranks: int) -> int:
    """Return the number of equal groups in one of `ranks` equal shares of the channels, each within one of the `groups`."""
    share = hidden_size // ranks
    return share // math.gcd(share, hidden_size // groups)


def recipe_of_heads(kernel: Kernel, ranks: int) -> str:
    """Return the recipe of a kernel that computes one rank's share of another kernel's heads."""
    return _of_heads(kernel.recipe, ranks)


@functools.lru_cache
def stages_of(recipe: str) -> tuple[AffineStage, ...]:
    """Return the stages in which pieces of time compose for a recipe's cell; none where steps do not compose."""
    return affine_stages(parse_cell(cell_source_of(spec_from(recipe))))


@functools.lru_cache
def recipe_with_products(recipe: str, place: int = 0) -> tuple[str, tuple[str, ...]]:
    """Return the recipe of a kernel that computes the forward of another and, as further states, products of one stage's maps.

    The names of these states, the `entries` of the stage at `place`, come after the recipe. If diagonal entries begin at 1 and
    others at 0, their end values are the map of the stage's states from begin to end.
    """
    spec, stage = spec_from(recipe), stages_of(recipe)[place]
    source = cell_source_of(spec)
    cell = parse_cell(source)
    used_names = {*cell.states, *cell.gates, *cell.parameters, *(symbol.name for symbol, _ in cell.definitions)}
    names: dict[tuple[str, str], str] = {}
    for row, column in stage.entries:
        name = f"product_{row}" if row == column else f"product_{row}_{column}"
        names[row, column] = _free_name(name, {*used_names, *names.values()})
    equations, _ = without_indentation(source.document.data["equations"])
    lines = []
    for (row, column), name in names.items():
        terms = [
            f"({equation_text(stage.a[row, between])}) * {names[between, column]}[t-1]"
            for between in stage.states
            if (row, between) in stage.a and (between, column) in names
        ]
        lines.append(f"{name}[t] = {' + '.join(terms) or 0}")
    wide = {state for state in cell.states if state in cell.vectors.states}
    # Values that no output reads are refused, and y is not used.
    reads = (f"sum({name}[t])" if row in wide else f"{name}[t]" for (row, _), name in names.items())
    values = ["n" if state in wide else 1 for state in (*cell.states, *(row for row, _ in names))]
    states = [*cell.states, *names.values()]
    data = {
        **source.document.data,
        "output": " + ".join((equation_text(cell.output), *reads)),
        "equations": "\n".join((equations, *lines)),
        "gates": [*cell.gates],
        "states": dict(zip(states, values, strict=True)) if wide else states,
    }
    # Products have a sign, which logarithms lack, and need no gradients.
    said = {**json.loads(recipe), "model": data, "training": False, "scan_arithmetic": "linear"}
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False), tuple(names.values())


def _free_name(name: str, used_names: Collection[str]) -> str:
    while name in used_names:
        name += "_"
    return name


@functools.lru_cache
def recipe_for_inference(recipe: str) -> str:
    """Return the recipe of a kernel that computes the forward of another, and has no gradients."""
    spec = spec_from(recipe)
    return recipe_of(load_spec(spec, training=False), cell_source_of(spec))
