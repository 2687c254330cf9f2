"""Messages that docs/troubleshooting.md explains are those of the code."""

from __future__ import annotations

import ast

from support.documentation import ROOT, code, tables

PAGE = ROOT / "docs" / "troubleshooting.md"
# Messages of other packages: what people search for.
FOREIGN = {
    "Error building extension",
    "ninja: build stopped",
    "undefined symbol",
    "selective_scan_cuda",
    "RNN module weights are not part of single contiguous chunk of memory",
    "cudnn RNN backward can only be called in training mode",
    "CUDNN_STATUS_EXECUTION_FAILED",
}


def texts() -> str:
    """Return all texts of the package, one a line, with "…" for each expression in them."""
    found = []
    for path in sorted((ROOT / "minrnn_gen").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.JoinedStr(values=parts):
                    found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts))
                case ast.Constant(value=str(text)):
                    found.append(text)
    return "\n".join(found)


def test_every_message_is_one_of_the_code() -> None:
    shown = {message for header in ("message or symptom",) for row in tables([PAGE], header) for message in code(row[0])}
    known = texts()
    assert len(shown) > 20
    assert {message for message in shown - FOREIGN if message.removeprefix("…").strip("… ") not in known} == set()
