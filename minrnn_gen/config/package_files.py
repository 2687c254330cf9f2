"""Where the package's own templates, GPU profiles and cells lie, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


def package_folder(name: str) -> Path:
    """Return the folder `name` ("templates" or "gpu_profiles"): in the package when installed, else at the checkout's top."""
    installed = PACKAGE_FOLDER / name
    return installed if installed.is_dir() else PACKAGE_FOLDER.parent / name
