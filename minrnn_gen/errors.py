"""One family of exceptions; every message is one sentence that says where, what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
import reprlib
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
    """Return " (did you mean 'x'?)" for the closest allowed name, whatever the case of its letters, or the empty string."""
    by_folded = {name.casefold(): name for name in allowed}
    close = difflib.get_close_matches(given.casefold() if isinstance(given, str) else shown(given), by_folded, n=1, cutoff=0.6)
    return f" (did you mean '{by_folded[close[0]]}'?)" if close else ""


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as an error message shows it: one printable line, at most twice `limit` long; true and null as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    # Python refuses to print an integer of more than 4300 digits (sys.int_info.default_max_str_digits).
    if isinstance(value, int) and value.bit_length() > 4 * limit:
        return f"an integer of {value.bit_length()} bits"
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother, brief.maxlong = 2, limit, limit, limit
    text = " ".join(brief.repr(value).split())
    return text if len(text) <= 2 * limit else text[: 2 * limit - 3] + "..."
