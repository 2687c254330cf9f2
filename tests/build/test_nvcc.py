"""Emitted CUDA text under nvcc: self-contained, whatever compiles it."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine_code import Case, small_cases, text_of
from support.patience import within

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not here: it is of the CUDA toolkit, which nothing else needs")
# By what is assembly in them: conversions and copies, clusters and products. The rest is compiled where there is a GPU.
EVERYDAY = ("channels bf16", "recurrent cluster")


def compile_by_nvcc(case: Case, folder: Path, *, whole: bool) -> None:
    """Compile a kernel, `whole` with the host's part of the file, as a project that builds by nvcc does."""
    rendered = text_of(case)
    assert rendered is not None
    text, plan = rendered
    source = folder / "kernel.cu"
    source.write_text(text, encoding="utf-8")
    how = ["-c"] if whole else ["--cubin"]
    command = [str(NVCC), f"-arch={plan.problem.arch}", *how, "-o", str(folder / "kernel.out"), str(source)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=within(120), check=False)
    if "Unsupported gpu architecture" in answer.stderr:
        pytest.skip(f"this nvcc does not know {plan.problem.arch}")
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("kind", EVERYDAY)
def test_emitted_text_is_a_whole_file_for_nvcc(kind: str, tmp_path: Path) -> None:
    first, *_ = small_cases((kind,))
    compile_by_nvcc(first, tmp_path, whole=True)


@pytest.mark.gpu
@pytest.mark.timeout(1200)
def test_every_kind_of_kernel_compiles_by_nvcc(tmp_path: Path) -> None:
    kinds = list(small_cases())
    assert {case.kernel_pass for case in kinds} == {"forward", "backward", "step"}

    def attempt(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        compile_by_nvcc(kinds[number], folder, whole=False)

    with ThreadPoolExecutor() as pool:
        list(pool.map(attempt, range(len(kinds))))
