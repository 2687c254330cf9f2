"""Exported programs whose layers are operators of a library in C++: equal to the layers, in Python and without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.exported import run_in
from support.exported_operators import build_library, run_without_the_package, torch_folder
from support.needed import needed
from support.operator_cases import CASES, EVERYDAY, TOLERANCE, Case, flat, together
from support.patience import within

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"


@pytest.fixture(scope="module", params=[EVERYDAY, pytest.param(CASES, marks=pytest.mark.matrix_full)], ids=["some", "all"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Case, ...], Any]:
    """The cases, and a program that runs them by operators of a library that is loaded."""
    torch_folder()
    folder = tmp_path_factory.mktemp("operators")
    cases = tuple(case() for case in request.param)
    program = together(cases)
    name = "all_cases" if request.param == CASES else "some_cases"
    lowered = wing.export_operators(program, folder, name=name)
    assert "minrnn_gen" in str(program.graph), "the program given stays as it is"
    assert "minrnn_gen" not in str(lowered.graph)
    torch.ops.load_library(build_library(folder, name))
    return cases, lowered


@pytest.mark.parametrize(("batch", "time"), [(5, 11), (2, 40)])
def test_operators_compute_what_layers_do(exported: tuple[tuple[Case, ...], Any], batch: int, time: int) -> None:
    cases, program = exported
    inputs = tuple(case.draw(batch, time) for case in cases)
    with torch.no_grad():
        expected = flat(tuple(case.module(*given) for case, given in zip(cases, inputs, strict=True)))
        results = flat(program.module()(*inputs))
    for result, wanted in zip(results, expected, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        torch.testing.assert_close(result, wanted, rtol=0, atol=TOLERANCE[wanted.dtype])


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.__name__, marks=() if case in EVERYDAY else pytest.mark.matrix_full) for case in CASES],
)
def test_a_program_computes_what_layers_do_before_its_library_is_built(case: Callable[[], Case], tmp_path: Path) -> None:
    given = case()
    module = wing.export_operators(together((given,)), tmp_path, name="not_built").module()
    inputs = given.draw(5, 7)
    with torch.no_grad():
        expected = flat((given.module(*inputs),))
    results = [result.detach() for result in flat((module(inputs),))]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=TOLERANCE[wanted.dtype])
    (output,) = torch.export.export(module, (inputs,)).graph.find_nodes(op="output")
    without_values = [node.meta["val"] for node in flat(output.args)]
    assert [(one.shape, one.dtype) for one in without_values] == [(one.shape, one.dtype) for one in expected]


def test_what_runs_is_the_library(exported: tuple[tuple[Case, ...], Any]) -> None:
    cases, program = exported
    namespace = "rnn_all_cases" if len(cases) == len(CASES) else "rnn_some_cases"
    names = {node.target.name() for node in program.graph.nodes if namespace in str(node.target)}
    assert len(names) == len(cases)
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") for name in names)
    (name,) = (name for name in names if "gru" in name and "min" not in name)
    operator = getattr(getattr(torch.ops, namespace), name.partition("::")[2])
    shapes = ((1, 1, 5) if argument.name == "x" else (1,) for argument in operator.default._schema.arguments)
    tensors = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(RuntimeError, match="x has another dtype than the exported layer"):
        operator(*tensors)
    tensors[0] = tensors[0].bfloat16()
    with pytest.raises(RuntimeError, match="R_0 has another dtype"):
        operator(*tensors)
    with pytest.raises(RuntimeError, match="x has 1 axes; 3 are expected"):
        operator(torch.zeros(1).bfloat16(), *tensors[1:])


def test_programs_without_recurrences_and_names_that_are_none_are_refused(tmp_path: Path) -> None:
    linear = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    with pytest.raises(BadInput, match="no recurrence of minrnn_gen"):
        wing.export_operators(linear, tmp_path, name="some")
    with pytest.raises(BadInput, match="program is a Linear"):
        wing.export_operators(torch.nn.Linear(2, 2), tmp_path, name="some")
    layer = torch.export.export(wing.MinGRU(2, 2), (torch.zeros(1, 2, 2),))
    with pytest.raises(BadInput, match="name is 'Two words'; allowed: a small letter, then"):
        wing.export_operators(layer, tmp_path, name="Two words")


def test_what_is_not_exported_is_refused(tmp_path: Path) -> None:
    class Scan(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            return wing.scan(a, a)[0]

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = wing.MinGRU(2, 2)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                return self.layer(x)[0]

    for module, x, sentence in (
        (Scan(), torch.zeros(1, 2, 2), "minrnn_gen.scan.default, which is not exported"),
        (Part(), torch.zeros(1, 2, 2), "under torch.no_grad"),
    ):
        program = torch.export.export(module, (x,))
        with pytest.raises(BadInput, match=sentence):
            wing.export_operators(program, tmp_path, name="some")
    assert not list(tmp_path.iterdir())


@pytest.mark.matrix_full
def test_a_compiled_model_runs_without_the_package_and_without_python(tmp_path: Path) -> None:
    torch_path = torch_folder()
    sys.path.append(str(EXAMPLES))
    try:
        import aot_char_lm
    finally:
        sys.path.remove(str(EXAMPLES))
    torch.manual_seed(0)
    model = aot_char_lm.CharLM().eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    # A process of its own, since what torch imports to compile warns of itself.
    example = [sys.executable, str(EXAMPLES / "aot_char_lm.py"), str(tmp_path), str(tmp_path / "weights.pt")]
    ran = subprocess.run(example, cwd=EXAMPLES.parents[1], capture_output=True, text=True, timeout=within(120), check=False)
    assert ran.returncode == 0, ran.stderr
    library = build_library(tmp_path / "operators", "char_lm")
    prompt, count = b"def f(", 12
    tokens, state, written = torch.tensor([list(prompt)]), torch.zeros(2, 1, 64), []
    with torch.no_grad():
        for _ in range(count):
            logits, state = model(tokens, state)
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            written.append(int(tokens))
    assert len(set(written)) > 2  # a model that writes one byte for ever would prove little

    several = torch.arange(21).reshape(3, 7), torch.ones(2, 3, 64)
    with torch.no_grad():
        torch.save([*several, *model(*several)], tmp_path / "call.pt")
    ran = run_without_the_package(
        tmp_path,
        "import torch\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "model = torch._inductor.aoti_load_package('char_lm.pt2')\n"
        "tokens, state, *expected = torch.load('call.pt')\n"
        f"torch.testing.assert_close(tuple(model(tokens, state)), tuple(expected), rtol=0, atol={TOLERANCE[torch.float32]})\n"
        "print('equal')\n",
    )
    assert (ran.returncode, ran.stdout) == (0, "equal\n"), ran.stderr

    compiler, libraries = shutil.which("c++"), str(torch_path / "lib")
    assert compiler is not None
    links = ("-L", libraries, "-ltorch_cpu", "-ltorch", "-lc10", "-ldl", f"-Wl,-rpath,{libraries}")
    example = str(EXAMPLES / "aot_char_lm.cpp")
    warnings = ("-Wall", "-Wextra", "-Werror", "-isystem", str(torch_path / "include"))
    built = run_in(tmp_path, compiler, "-std=c++20", "-O0", *warnings, example, "-o", "serve", *links)
    assert built.returncode == 0, built.stderr
    ran = run_in(tmp_path, str(tmp_path / "serve"), str(library), "char_lm.pt2", prompt.decode(), str(count))
    assert ran.returncode == 0, ran.stderr
    assert [int(line) for line in ran.stdout.split()] == written
    alone = run_in(tmp_path, str(tmp_path / "serve"), "nothing.so", "char_lm.pt2", prompt.decode(), "1")
    assert alone.returncode == 1 and "nothing.so" in alone.stderr


@pytest.mark.matrix_full
def test_cmake_builds_the_library_and_the_checks_of_its_kernels(tmp_path: Path) -> None:
    torch_path = torch_folder()
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    program = torch.export.export(wing.MinGRU(4, 8, num_layers=2), (torch.zeros(1, 2, 4),))
    wing.export_operators(program, tmp_path / "operators", name="built_by_cmake")
    for command in (
        ("cmake", "-S", "operators", "-B", "build", f"-DTORCH={torch_path}"),
        ("cmake", "--build", "build"),
        ("ctest", "--test-dir", "build"),
    ):
        ran = run_in(tmp_path, *command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    torch.ops.load_library(tmp_path / "build" / "librnn_built_by_cmake.so")
    refused = run_in(tmp_path, "cmake", "-S", "operators", "-B", "other", "-DTORCH=.")
    assert refused.returncode != 0 and "give the folder of torch" in refused.stderr
