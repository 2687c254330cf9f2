"""Folders of the package's own templates, GPU profiles and cells, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

from minrnn_gen.errors import ToolchainMissing, shown

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


def package_folder(name: str) -> Path:
    """Return the folder `name` ("templates", "gpu_profiles" or "cell/library"): in the package, or at the checkout's top.

    Raises ToolchainMissing where it is in neither, as for a package that is imported from a zip.
    """
    for place in (PACKAGE_FOLDER, PACKAGE_FOLDER.parent):
        if (place / name).is_dir():
            return place / name
    raise ToolchainMissing(
        f"minrnn_gen is imported from {shown(str(PACKAGE_FOLDER))}, where its folder {name} cannot be read; "
        "install it by pip, unpacked"
    )
