"""docs/fronts.md: which class of cells each front takes, asked of the code: the table is what calls answer."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from support.documentation import ROOT, table
from support.fake_compiler import Compiler
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.classes import CellKind
from minrnn_gen.plan.problem import KernelPass

PAGE = ROOT / "docs" / "fronts.md"
N_DIAGONAL = {
    "name": "mixed",
    "states": {"h": "n"},
    "shared": ["b", "c"],
    "equations": "h[t] = sigmoid(W.z) * h[t-1] + tanh(sum(h[t-1])) * S.b",
    "output": "sum(S.c * h[t]) + W.x",
}
ROWS: dict[str, dict[str, Any]] = {
    "a scan": {"model": "min_gru"},
    "a scan with `scan_arithmetic: log`": {"model": "min_gru_log", "scan_arithmetic": "log"},
    "diagonal": {"model": "ind_rnn"},
    "dense": {"model": "gru"},
    "n values per channel, a scan": {"model": "selective", "state_size": 4},
    "n values per channel, diagonal": {"model": N_DIAGONAL, "state_size": 4},
}
PASSES: tuple[KernelPass, ...] = ("forward", "backward", "step")
Ask = Callable[[Kernel, Path], str]


def arguments_of(kernel: Kernel) -> Inputs:
    return inputs_of(kernel.interface, Case(batch=2, time=3, has_resets=False))


def mapped(arguments: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: mapped(value, change) if isinstance(value, dict) else change(value) for name, value in arguments.items()}


def options_of(kernel: Kernel) -> dict[str, Any]:
    """Return the keys of the kernel's spec that a layer takes as options."""
    spec = kernel.spec
    return {"scan_arithmetic": spec.scan_arithmetic} | ({"state_size": spec.state_size} if spec.state_size else {})


def on_the_host(kernel: Kernel, _: Path) -> str:
    inputs = arguments_of(kernel)
    *_, saved = kernel.forward(**inputs.forward)
    kernel.backward(saved, inputs.dy, inputs.dstate)
    kernel.step(**inputs.step)
    return "yes"


def on_a_gpu(kernel: Kernel, _: Path) -> str:
    builder = kernel.builder
    for kernel_pass in PASSES:
        next(builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization))).plan()
    return "yes"


def emulated(kernel: Kernel, _: Path) -> str:
    minrnn_gen.compile(kernel.spec, device="interpret")
    return "yes"


def torch_recurrence(kernel: Kernel, _: Path) -> str:
    torch, front = importlib.import_module("torch"), importlib.import_module("minrnn_gen.torch")
    arguments = mapped(arguments_of(kernel).forward, torch.from_numpy)
    arguments["x"].requires_grad_()
    y, _ = front.recurrence(kernel, **arguments)
    y.sum().backward()
    return "yes"


def torch_layer(kernel: Kernel, _: Path) -> str:
    torch, front = importlib.import_module("torch"), importlib.import_module("minrnn_gen.torch")
    front.RNN(kernel.spec.model, 3, kernel.spec.hidden_size, **options_of(kernel))(torch.zeros(2, 3, 3))
    return "yes"


def time_over_ranks(kernel: Kernel, _: Path) -> str:
    cells = importlib.import_module("minrnn_gen.torch.sequence_group.cells")
    ways = []
    for way in ("correct", "summary", "pipeline"):
        try:
            cells._check_way(kernel, SimpleNamespace(way=way))
        except BadInput:
            continue
        ways.append(f"`{way}`")
    return ", ".join(ways) or "no"


def heads_over_ranks(kernel: Kernel, _: Path) -> str:
    torch, front = importlib.import_module("torch"), importlib.import_module("minrnn_gen.torch")
    try:
        front.recurrence(kernel, **mapped(arguments_of(kernel).forward, torch.from_numpy), head_group="no group")
    except BadInput as refused:
        return "yes" if "head_group is a str" in str(refused) else "no"
    raise AssertionError("a text is no group")


def jax_functions(kernel: Kernel, _: Path) -> str:
    jax, front = importlib.import_module("jax"), importlib.import_module("minrnn_gen.jax")
    inputs = arguments_of(kernel)
    for function, arguments in ((front.recurrence, inputs.forward), (front.step, inputs.step)):
        given = {name: value for name, value in arguments.items() if name in inspect.signature(function).parameters}
        jax.eval_shape(functools.partial(function, kernel.spec), **mapped(given, jax.numpy.asarray))
    return "yes"


def jax_layer(kernel: Kernel, _: Path) -> str:
    jax, front = importlib.import_module("jax"), importlib.import_module("minrnn_gen.jax")
    layer = front.RNN(kernel.spec.model, 3, kernel.spec.hidden_size, **options_of(kernel))
    jax.eval_shape(lambda: layer.apply(layer.init(jax.random.key(0)), jax.numpy.zeros((2, 3, 3))))
    return "yes"


def export_for_cpus(kernel: Kernel, folder: Path) -> str:
    kernel.export(folder, target="cpu", name="cell")
    return "yes"


def export_for_gpus(kernel: Kernel, folder: Path) -> str:
    kernel.export(folder, target="cuda", name="cell", sizes=[(1, 4)])
    return "yes"


# The columns of the page, with what has to be installed to ask.
COLUMNS: dict[str, tuple[Ask, str | None]] = {
    "host arrays": (on_the_host, None),
    "GPU": (on_a_gpu, None),
    "emulated": (emulated, None),
    "torch `recurrence`": (torch_recurrence, "torch"),
    "torch `RNN`": (torch_layer, "torch"),
    "`sequence_group`": (time_over_ranks, "torch"),
    "`head_group`": (heads_over_ranks, "torch"),
    "JAX `recurrence`, `step`": (jax_functions, "jax"),
    "JAX `RNN`": (jax_layer, "jax"),
    "C for CPUs": (export_for_cpus, None),
    "C for GPUs": (export_for_gpus, None),
}


def shown() -> dict[str, dict[str, str]]:
    """Return the page's table: the row of a class, the answer of each column."""
    return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in table(PAGE, "cell", *COLUMNS)}


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, Kernel]]:
    """Give a kernel for each row, planned once, whose host arrays NumPy computes: nothing is compiled."""
    with nothing_compiled(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CPU", "numpy")
        yield {row: minrnn_gen.compile({"hidden_size": 8, "gpu": "h200", **spec}) for row, spec in ROWS.items()}


def test_the_table_has_every_class(kernels: dict[str, Kernel]) -> None:
    assert list(shown()) == list(ROWS)
    classes = {(kernel.builder.cell_shape.kind, kernel.interface.has_vectors) for kernel in kernels.values()}
    assert classes == {(kind, wide) for kind in get_args(CellKind) for wide in (False, True)} - {("dense", True)}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_front_takes_what_the_table_says(
    kernels: dict[str, Kernel], column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, needed = COLUMNS[column]
    if needed:
        pytest.importorskip(needed)
    if ask is export_for_gpus:
        monkeypatch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
    answers = {}
    for number, (row, kernel) in enumerate(kernels.items()):
        try:
            answers[row] = ask(kernel, tmp_path / str(number))
        except BadInput as refused:
            assert "\n" not in str(refused)
            answers[row] = "no"
    assert answers == {row: columns[column] for row, columns in shown().items()}
