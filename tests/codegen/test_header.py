"""Text of users in the comments of generated files ends no comment and swallows no line."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.patience import within

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.codegen.header import comment
from minrnn_gen.errors import ToolchainMissing


@given(st.lists(st.text(st.sampled_from("?/\\*\n\r\t \x0c\x85\u2028é#\"'a<>{}%")), max_size=20))
@example(["??/", "??//", "é\\/", "\\", "*/"])
@pytest.mark.parametrize("language", ["c99", "c++14"])
def test_a_line_below_a_comment_is_read(language: str, texts: list[str]) -> None:
    """Up to C17 and C++14 `??/` is a backslash."""
    try:
        compiler = c_compiler().program
    except ToolchainMissing:
        pytest.skip("no C compiler")
    lines = [f"// {comment(text)}\nline_{number}\n" for number, text in enumerate(texts)]
    command = (compiler, f"-std={language}", "-E", "-P", "-x", language.rstrip("0123456789"), "-")
    ran = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=False, timeout=within(60))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [f"line_{number}" for number in range(len(texts))]
