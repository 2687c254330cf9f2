"""The temporary folder that all workers of a test run share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder of a run, one for all of its workers."""
    folder = Path(tmp_path_factory.getbasetemp())
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
