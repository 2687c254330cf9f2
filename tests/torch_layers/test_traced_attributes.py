"""Code that torch.compile may trace asks tensors for attributes, never for methods: compilers before torch 2.11 find none."""

from __future__ import annotations

import ast

import pytest
from support.documentation import ROOT

torch = pytest.importorskip("torch")


def test_nobody_asks_a_tensor_for_a_method() -> None:
    methods = {name for name in dir(torch.Tensor) if callable(getattr(torch.Tensor, name, None)) and not name.startswith("__")}
    files = [file for room in ("call", "torch", "layers") for file in (ROOT / "minrnn_gen" / room).rglob("*.py")]
    asked = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {name.value}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
        if isinstance(name := node.args[1], ast.Constant) and name.value in methods
    ]
    assert len(files) > 50
    assert not asked
