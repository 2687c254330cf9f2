"""Shell completion of names on the command line: GPUs, cells, keys of a spec, and files next to them."""

from __future__ import annotations

import os
from collections.abc import Iterable


def gpus(incomplete: str) -> list[str]:
    """Return the shipped profiles and the YAML files that begin so."""
    from minrnn_gen.config.gpu_profile import profile_names

    return _beginning(profile_names(), incomplete) + _files(incomplete)


def gpu_lists(incomplete: str) -> list[str]:
    """Return lists of profiles, "h200,a100", whose last name begins so."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in gpus(last) if name not in before.split(",")]


def shipped_gpus(incomplete: str) -> list[str]:
    """Return the shipped profiles that begin so."""
    from minrnn_gen.config.gpu_profile import profile_names

    return _beginning(profile_names(), incomplete)


def cells(incomplete: str) -> list[str]:
    """Return the built-in cells and the YAML files that begin so."""
    from minrnn_gen.cell.files import library_folders

    return _beginning([name for names in library_folders() for name in names], incomplete) + _files(incomplete)


def specs(incomplete: str) -> list[str]:
    """Return the YAML files that begin so."""
    return _files(incomplete)


def assignments(incomplete: str) -> list[str]:
    """Return the keys of a spec that begin so, each with its "="."""
    from minrnn_gen.config.spec import Spec

    return [f"{key}=" for key in _beginning(Spec.model_fields, incomplete)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _files(incomplete: str) -> list[str]:
    """Return the YAML files and the folders, these with a separator, whose paths begin so."""
    folder, start = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or os.curdir), key=lambda entry: entry.name)
    except OSError:
        return []
    begun = [entry for entry in entries if entry.name.startswith(start) and (start or not entry.name.startswith("."))]
    paths = [os.path.join(folder, entry.name) + (os.sep if entry.is_dir() else "") for entry in begun]
    return [path for path in paths if path.endswith((".yaml", ".yml", os.sep))]
