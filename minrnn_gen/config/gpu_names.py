"""Names of GPUs: the shipped profiles' names, and the names that people and the driver use."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from minrnn_gen.config.documents import read_document
from minrnn_gen.config.package_files import package_folder


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in package_folder("gpu_profiles").glob("*.yaml")))


def shipped_name(called: str) -> str | None:
    """Return the shipped profile with this name, or None.

    In any case, with or without blanks, hyphens and underscores: the profile's name or a device name of the driver's, with or
    without the maker's and the series' words before it, such as "RTX 4090" and "NVIDIA H100 80GB HBM3" as well as "h100".
    """
    names = profile_names()
    if called in names:
        return called
    wanted = _bare(called)
    if not wanted or is_path(called):
        return None
    if wanted in names:
        return wanted
    return next((name for name in names if wanted in map(_bare, _device_names(name))), None)


def _bare(name: str) -> str:
    """Return the letters and digits of a GPU's name, without the words of its maker."""
    return re.sub(r"nvidia|geforce|tesla|[ _-]", "", name.casefold())


@functools.cache
def _device_names(shipped: str) -> tuple[str, ...]:
    path = package_folder("gpu_profiles") / f"{shipped}.yaml"
    return tuple(read_document(path).data["device_names"])


def is_path(name: str) -> bool:
    """Whether `name` is meant as a file's path: it ends in .yaml or .yml, or has a folder."""
    path = Path(name)
    return path.suffix in (".yaml", ".yml") or len(path.parts) >= 2
