"""A notebook run cell by cell, in this process and without Jupyter: `python -m support.notebook FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def cells_of(path: Path) -> list[tuple[str, str]]:
    """Return (kind, text) of each cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def run(path: Path) -> dict[str, Any]:
    """Run the code of a notebook from top to bottom, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (kind, text) in enumerate(cells_of(path)):
        if kind == "code":
            exec(compile(text, f"{path.name}, cell {number}", "exec"), names)
    return names


if __name__ == "__main__":
    run(Path(sys.argv[1]))
