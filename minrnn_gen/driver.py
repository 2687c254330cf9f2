"""The release of the GPU's driver."""

from __future__ import annotations

import ctypes
import sys

_DRIVER_TEXT_BYTES = 96  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80


def driver_release() -> str | None:
    """Return the driver's release, as "580.159.04", or None where its management library is not there."""
    try:
        management = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(_DRIVER_TEXT_BYTES)
    if management.nvmlInit_v2() or management.nvmlSystemGetDriverVersion(text, _DRIVER_TEXT_BYTES):
        return None
    management.nvmlShutdown()
    return text.value.decode()
