"""Exported operators in ONNX Runtime: files that torch.onnx.export writes run there, and equal the layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.exported import run_in
from support.exported_operators import build_onnx_library
from support.needed import needed
from support.operator_cases import CASES, TOLERANCE, flat, in_bfloat16, together

from minrnn_gen.errors import BadInput, ToolchainMissing

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

# Half numbers of 16 bits have no array in ONNX Runtime's Python.
ONNX_CASES = tuple(case for case in CASES if case is not in_bfloat16)


def test_the_library_needs_no_headers_but_the_systems(tmp_path: Path) -> None:
    """It is compiled with every warning an error, and offers one name."""
    program = torch.export.export(wing.GRU(4, 8, num_layers=2), (torch.zeros(1, 2, 4),))
    wing.export_operators(program, tmp_path, name="for_onnx")
    library = build_onnx_library(tmp_path, "for_onnx")
    names = run_in(tmp_path, "nm", "-D", "--defined-only", str(library))
    if names.returncode == 0:
        assert [line.split()[-1] for line in names.stdout.splitlines()] == ["RegisterCustomOps"]


def test_a_program_without_exported_operators_is_refused() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    with pytest.raises(BadInput, match="no exported operator"):
        wing.onnx_translations(program)
    with pytest.raises(BadInput, match="program is a str"):
        wing.onnx_translations("model.onnx")


def test_without_its_packages_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    program = torch.export.export(wing.GRU(4, 8), (torch.zeros(1, 2, 4),))
    with pytest.raises(ToolchainMissing, match="pip install onnx onnxscript"):
        wing.onnx_translations(wing.export_operators(program, tmp_path, name="without_onnx"))


def causes_of(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__


class Scan(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return wing.scan(x, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's own exporter
def test_a_file_with_what_onnx_does_not_know_is_refused_in_words_of_the_house(tmp_path: Path) -> None:
    """Whatever step the exporter is at: a program whose operators have no table, and a program as torch.export gives it."""
    pytest.importorskip("onnxscript")
    modules = (wing.GRU(4, 4), wing.MinGRU(4, 4, num_layers=2), Scan())
    programs = [torch.export.export(module, (torch.zeros(1, 2, 4),)) for module in modules]
    for program in programs:
        with pytest.raises(Exception) as raised:
            torch.onnx.export(program, verbose=False)
        assert any("minrnn_gen.torch.export_operators" in said for said in causes_of(raised.value))
    with_operators = wing.export_operators(programs[0], tmp_path, name="without_table")
    with pytest.raises(Exception) as raised:
        torch.onnx.export(with_operators, verbose=False)
    assert any("custom_translation_table=minrnn_gen.torch.onnx_translations" in said for said in causes_of(raised.value))
    translations = wing.onnx_translations(with_operators)
    assert torch.onnx.export(with_operators, custom_translation_table=translations, verbose=False) is not None


@pytest.mark.matrix_full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's own exporter
def test_onnx_runtime_computes_what_layers_do(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    cases = tuple(case() for case in ONNX_CASES)
    program = wing.export_operators(together(cases), tmp_path, name="in_onnx")
    library = build_onnx_library(tmp_path, "in_onnx")
    translations = wing.onnx_translations(program)
    torch.onnx.export(program, custom_translation_table=translations, verbose=False).save(str(tmp_path / "model.onnx"))
    options = runtime.SessionOptions()
    options.register_custom_ops_library(str(library))
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    for batch, time in ((3, 4), (5, 11)):
        inputs = tuple(case.draw(batch, time) for case in cases)
        with torch.no_grad():
            expected = flat(tuple(case.module(*arrays) for case, arrays in zip(cases, inputs, strict=True)))
        arrays = [tensor.numpy() for tensor in flat(inputs)]
        results = session.run(None, dict(zip((node.name for node in session.get_inputs()), arrays, strict=True)))
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(result), wanted, rtol=0, atol=TOLERANCE[wanted.dtype])
