"""Every place in the package that calls an operator of it is run here: a schema that changes finds all of its callers."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
from support.needed import needed

import minrnn_gen

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

PACKAGE = Path(minrnn_gen.__file__).parent
BATCH, TIME, INPUTS, HIDDEN = 2, 3, 2, 4


def modules() -> Iterator[tuple[Path, ModuleType]]:
    """Return the modules that may call operators: those that import torch's wing."""
    for path in sorted(path for room in ("torch", "compat") for path in (PACKAGE / room).rglob("*.py")):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield path, importlib.import_module(".".join(names).removesuffix(".__init__"))


def value_of(node: ast.expr, module: ModuleType) -> Any:
    """Return what a name, or a name of an imported module, is in a module; None for any other expression."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, module), node.attr, None)
    return None


def is_operator(value: Any) -> bool:
    return isinstance(value, torch._ops.OpOverload) and value.namespace == "minrnn_gen"


def calls() -> dict[tuple[str, int], str]:
    """Return the calls of operators, also through another function, by file and line: the text of each."""
    found = {}
    for path, module in modules():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and any(is_operator(value_of(part, module)) for part in (node.func, *node.args)):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[str(path), line] = f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.get_source_segment(text, node)}"
    return found


def run_lines(run: Callable[[], None]) -> set[tuple[str, int]]:
    """Return the files and lines from which a run calls operators; of every function between, too."""
    lines: set[tuple[str, int]] = set()
    called: CodeType = torch._ops.OpOverload.__call__.__code__

    def look(frame: FrameType | None, event: str, _: Any) -> None:
        if event == "call" and frame is not None and frame.f_code is called and is_operator(frame.f_locals["self"]):
            for _ in range(3):  # the caller, or what it passes an operator to
                frame = frame and frame.f_back
                if frame:
                    lines.add((frame.f_code.co_filename, frame.f_lineno))

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return lines


class Watching(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined,misc]
    """A mode that looks on: calls go through the dispatcher."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return function(*arguments, **(named or {}))


def layers() -> list[Callable[[Any], Any]]:
    """Return what computes through operators: a layer, several with dropout, a function, a filter and the raw scan."""
    one, several = wing.GRU(INPUTS, HIDDEN), wing.GRU(INPUTS, HIDDEN, num_layers=2, dropout=0.5)
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": HIDDEN, "input_size": INPUTS})
    weight = torch.randn(kernel.interface.weight_rows, INPUTS)

    def states(x: Any) -> Any:
        y, final, every = wing.recurrence(kernel, x, weight=weight, all_states=True)
        return y + every["h"], final["h"]

    def filtered(x: Any) -> Any:
        return wing.lfilter(x, torch.tensor([1.0, -0.5]), torch.ones(2), torch.zeros(BATCH, TIME, 1))

    return [one, several, states, filtered, lambda x: wing.scan(torch.sigmoid(x), x)]


def run_all(programs: list[Callable[[Any], Any]]) -> None:
    """Run layers and functions, watched and in part watched, with and without gradients, and exported programs."""
    for call in layers():
        with torch.no_grad(), Watching():
            call(torch.randn(BATCH, TIME, INPUTS))
        for watched_forward in (True, False):
            x = torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
            with Watching() if watched_forward else torch.enable_grad():
                y, final = call(x)
            with Watching():
                (y.sum() + final.sum()).backward()
    layer, x = wing.GRU(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    gradient.sum().backward()
    torch.func.grad(lambda x: layer(x)[0].sum())(x)
    for watched in (True, False):
        with Watching() if watched else torch.no_grad():
            layer.step(torch.randn(BATCH, INPUTS), cache=layer.cache(BATCH), slots=torch.arange(BATCH))
            layer(torch.randn(BATCH, TIME, INPUTS), cache=layer.cache(BATCH), slots=torch.arange(BATCH))
            layer.verify_draft(torch.randn(BATCH, 2, INPUTS), cache=layer.cache(BATCH, draft=2), slots=torch.arange(BATCH))
    for program in programs:
        program(torch.randn(BATCH, TIME, INPUTS))


def test_every_call_of_an_operator_fits_its_schema(tmp_path: Path) -> None:
    exported = (torch.export.export(wing.GRU(INPUTS, HIDDEN, count), (torch.randn(BATCH, TIME, INPUTS),)) for count in (1, 2))
    programs = [wing.export_operators(program, tmp_path, name="called").module() for program in exported]
    expected, run = calls(), run_lines(lambda: run_all(programs))
    assert len({*expected.values()}) > 8
    missed = {*expected.values()} - {text for place, text in expected.items() if place in run}
    assert not missed, "no call here runs these; add one to run_all:\n" + "\n".join(sorted(missed))
