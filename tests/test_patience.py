"""Limits of time scale with the machine, and all of them stand in one place."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import patience

TESTS = Path(__file__).parent
CLOCKS = {"perf_counter", "monotonic", "process_time", "time"}
# Methods whose only argument is a limit of time.
WAITS = {"wait", "join"}


def has_number(node: ast.AST, constants: dict[str, ast.expr]) -> bool:
    """Say whether a limit is written as a number: there, or where its name is given one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "within":
        return False
    if isinstance(node, ast.Name) and node.id in constants:
        return has_number(constants[node.id], {})
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value > 0 and node.value is not True
    return any(has_number(inner, constants) for inner in ast.iter_child_nodes(node))


def is_duration(node: ast.AST) -> bool:
    """Say whether an expression is a time that passed: a difference of clocks, or what is called seconds."""
    if isinstance(node, ast.BinOp):
        calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        return any(isinstance(called, ast.Attribute) and called.attr in CLOCKS for called in calls)
    return isinstance(node, ast.Name) and node.id.endswith(("seconds", "elapsed"))


def has_clock(text: str) -> bool:
    return any(f".{clock}(" in text for clock in CLOCKS)


def reads_a_clock(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr in CLOCKS - {"time"} for inner in ast.walk(node))


def times_in(tree: ast.AST) -> set[str]:
    """Return the names that stand for times: functions, but for tests, that read a clock, and what is assigned from one."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_")]
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and reads_a_clock(node.value)]
    targets = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    return targets | {node.name for node in functions if reads_a_clock(node)}


def program_in(node: ast.AST) -> str:
    """Return the program of a process that a text holds and that reads a clock, or nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value and has_clock(node.value):
        with contextlib.suppress(SyntaxError):
            ast.parse(node.value)
            return node.value
    return ""


def limits_in(text: str) -> Iterator[int]:
    """Yield the lines of a module where a limit of time is a number; conftest.py scales those of pytest's markers."""
    tree = ast.parse(text)
    times = times_in(tree) if has_clock(text) else set()
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    constants = {name.id: node.value for node in assigned for name in node.targets if isinstance(name, ast.Name)}
    asserted = [inner for node in ast.walk(tree) if isinstance(node, ast.Assert) for inner in ast.walk(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                given += [one for one in node.args if isinstance(one, ast.Constant | ast.Name)]
            if any(has_number(limit, constants) for limit in given):
                yield node.lineno
        elif isinstance(node, ast.Compare) and node in asserted:
            for left, how, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                is_time = is_duration(left) or any(isinstance(one, ast.Name) and one.id in times for one in ast.walk(left))
                if isinstance(how, ast.Lt | ast.LtE) and is_time and has_number(right, constants):
                    yield node.lineno
        elif program := program_in(node):
            yield from (node.lineno + line - 1 for line in limits_in(program))


def test_no_limit_of_time_is_a_number() -> None:
    """On a busy machine it would fail; `support.patience.within` says for how long to wait.

    Scripts that are started by hand have limits of their own: of half an hour, for what takes minutes.
    """
    paths = [path for path in sorted(TESTS.rglob("*.py")) if path.name.startswith("test_") or path.parent.name == "support"]
    paths.remove(Path(__file__))
    found = {f"{path.relative_to(TESTS)}:{line}" for path in paths for line in limits_in(path.read_text(encoding="utf-8"))}
    assert found == set()


def measured_at_import(tree: ast.Module) -> Iterator[int]:
    """Yield the lines where a module asks for a limit when it is imported."""
    nodes: list[ast.AST] = [*tree.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += [*node.args.defaults, *getattr(node, "decorator_list", ())]
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "within":
            yield node.lineno
        nodes += ast.iter_child_nodes(node)


def test_limits_are_those_of_the_load_while_a_test_runs() -> None:
    """Tests are collected long before, when the machine may have been idle."""
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    asking = {path: ast.parse(text) for path, text in texts.items() if "within(" in text}
    assert {f"{path.relative_to(TESTS)}:{line}" for path, tree in asking.items() for line in measured_at_import(tree)} == set()


@pytest.mark.parametrize(
    ("text", "is_limit"),
    [
        ("process.communicate(timeout=60)", True),
        ("MOST = 5\nsubprocess.run(command, timeout=MOST)", True),
        ("subprocess.run(command, timeout=within(60))", False),
        ("started(timeout=datetime.timedelta(seconds=3))", True),
        ("child.wait(10)", True),
        ("assert time.perf_counter() - began < 5", True),
        ("assert time.perf_counter() - began < within(5)", False),
        ("assert cold_seconds < 2.0", True),
        ("def test():\n    def once(): return process_time()\n    assert min(once() for _ in range(3)) < 0.4", False),
        ("def test():\n    def once(): return time.process_time()\n    assert min(once() for _ in range(3)) < 0.4", True),
        ("PROGRAM = 'import time\\nassert time.monotonic() - sent < 2.5'", True),
        ("@pytest.mark.timeout(600)\ndef test() -> None: ...", False),
    ],
)
def test_limits_are_found(text: str, is_limit: bool) -> None:
    assert bool(list(limits_in(text))) == is_limit


def test_limits_grow_with_what_waits_for_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_measured", lambda: (1.0, 1.0))
    monkeypatch.setattr(patience, "waiting", lambda: 1.0)
    assert patience.within(10) == 10
    monkeypatch.setattr(patience, "waiting", lambda: 4.0)
    assert patience.within(10) == 40
    monkeypatch.setattr(patience, "_measured", lambda: (2.0, 3.0))
    assert patience.within(10) == 80
    monkeypatch.setattr(patience, "waiting", lambda: 1000.0)
    assert patience.within(10) == 10 * patience.SLOWNESS_MOST


def test_a_test_has_the_time_of_a_slow_machine(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("timeout")
    if request.config.getoption("timeout", None) is None:
        assert marker is not None and marker.args[0] >= float(request.config.getini("timeout"))
