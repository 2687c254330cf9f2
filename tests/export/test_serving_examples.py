"""The examples in C and C++: exported, built without Python, they write the tokens that Python's kernel writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.exported import WARNINGS, run_in
from support.served_weights import weights, write_safetensors

import minrnn_gen
from minrnn_gen.build.c_compiler import COMPILERS

EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
PROMPT, TOKENS = b"def f(", 24

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler")


def tokens_of_python(kernel: minrnn_gen.Kernel, arrays: dict[str, np.ndarray]) -> list[int]:
    state, token, written = None, 0, []
    for place in range(len(PROMPT) + TOKENS):
        if place < len(PROMPT):
            token = PROMPT[place]
        else:
            written.append(token)
        y, state = kernel.step(
            arrays["embedding"][token][None],
            arrays["weight_hh"].reshape(3, 1, 64, 64),
            weight=arrays["weight_ih"],
            bias=arrays["bias_ih"],
            recurrent_bias=arrays["bias_hh"].reshape(3, 1, 64),
            state=state,
        )
        token = int(np.argmax(y[0] @ arrays["head"].T))
    return written


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("served")
    kernel = minrnn_gen.compile(EXAMPLES / "char_lm.yaml")
    kernel.export(folder, target="cpu", name="char_lm")
    arrays = weights()
    write_safetensors(folder / "weights.safetensors", arrays)
    np.savez(folder / "weights.npz", **arrays)
    (folder / "example.c").write_text((EXAMPLES / "char_lm.c").read_text())
    (folder / "example.cpp").write_text((EXAMPLES / "char_lm.cpp").read_text())
    return folder, tokens_of_python(kernel, arrays)


def test_the_example_in_c_writes_pythons_tokens(served: tuple[Path, list[int]]) -> None:
    folder, tokens = served
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    options = ("-std=c99", "-O2", *WARNINGS, "-Wno-unknown-pragmas")
    built = run_in(folder, compiler, *options, "example.c", "rnn_char_lm.c", "-o", "in_c", "-lm", "-pthread")
    assert built.returncode == 0, built.stderr
    ran = run_in(folder, str(folder / "in_c"), "weights.safetensors", PROMPT.decode(), str(TOKENS))
    assert ran.returncode == 0, ran.stderr
    assert [int(line) for line in ran.stdout.split()] == tokens
    assert len(set(tokens)) > 2  # a model that writes one byte for ever would prove little
    missing = run_in(folder, str(folder / "in_c"), "weights.npz", PROMPT.decode(), "1")
    assert missing.returncode == 1
    assert "safetensors" in missing.stderr


@pytest.mark.matrix_full
def test_the_example_in_cpp_writes_pythons_tokens(served: tuple[Path, list[int]]) -> None:
    folder, tokens = served
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    c_compiler = next(filter(None, map(shutil.which, COMPILERS)))
    assert run_in(folder, c_compiler, "-std=c99", "-O2", "-c", "rnn_char_lm.c", "-o", "kernel.o").returncode == 0
    options = ("-std=c++17", "-O1", *WARNINGS)
    built = run_in(folder, compiler, *options, "example.cpp", "kernel.o", "-o", "in_cpp", "-lm", "-pthread")
    assert built.returncode == 0, built.stderr
    ran = run_in(folder, str(folder / "in_cpp"), "weights.npz", PROMPT.decode(), str(TOKENS))
    assert ran.returncode == 0, ran.stderr
    assert [int(line) for line in ran.stdout.split()] == tokens


def test_the_call_that_the_page_shows_compiles(served: tuple[Path, list[int]]) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "how-to" / "export.md").read_text()
    shown = page.partition("```c\n")[2].partition("```")[0]
    arrays = "float x[100 * RNN_CHAR_LM_INPUT_SIZE], weight[1 << 13], R[1 << 14], y[100 * RNN_CHAR_LM_HIDDEN_SIZE];\n"
    includes = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string"))
    (served[0] / "page.c").write_text(f'#include "rnn_char_lm.h"\n{includes}{arrays}int main(void)\n{{\n{shown}}}\n')
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    built = run_in(served[0], compiler, "-std=c99", *WARNINGS, "page.c", "rnn_char_lm.c", "-o", "page", "-lm", "-pthread")
    assert built.returncode == 0, built.stderr
    ran = run_in(served[0], str(served[0] / "page"))
    assert (ran.returncode, ran.stdout) == (0, "")
