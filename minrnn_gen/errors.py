"""One family of exceptions; every message is one sentence that says where, what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MinrnnError(Exception):
    """Anything this package refuses or cannot do; `exit_status` is the command line's answer to it."""

    exit_status = 1


class BadInput(MinrnnError, ValueError):
    """The caller's spec, cell, profile or array is wrong, and can be mended by the caller."""

    exit_status = 2


class Infeasible(MinrnnError):
    """No candidate satisfies every constraint of the GPU profile."""


class NotGenerated(MinrnnError, NotImplementedError):
    """The request is valid, but this version generates no kernel for it yet."""


class ToolchainMissing(MinrnnError):
    """NVRTC, CuPy or a GPU is needed for this and is not here."""


class CompileFailed(MinrnnError):
    """NVRTC refused a generated source, or no candidate kept what its plan promised."""


def nearest_name(given: object, allowed: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the closest allowed name, or the empty string."""
    close = difflib.get_close_matches(str(given), list(allowed), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
