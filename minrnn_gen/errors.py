"""One family of exceptions; every message is one sentence that says where, what was given, what is allowed, what to do."""

from __future__ import annotations

import contextlib
import difflib
import functools
import reprlib
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

# What brings the libraries of kernels wherever this package came from: it names no package that an index may not have yet.
INSTALL_CUDA = "pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]' for drivers before 580"
# Without a GPU torch's own index has one of a tenth of the size.
INSTALL_TORCH = "pip install torch, or without a GPU pip install torch --extra-index-url https://download.pytorch.org/whl/cpu"

INSTALL_JAX = "pip install jax, or for NVIDIA GPUs pip install 'jax[cuda13]'"
INSTALL_ONNX = "pip install onnx onnxscript"

# What a sentence calls a library that is imported by another name.
_NAMES = {"cupy": "CuPy"}
# Of another library's message: its reason comes first, and where it looked after that.
_CAUSE_CHARACTERS = 200


class MinrnnError(Exception):
    """Anything this package refuses or cannot do; `exit_status` is the command line's answer to it."""

    exit_status = 1


class BadInput(MinrnnError, ValueError):
    """The caller's spec, cell, profile or array is wrong, and can be mended by the caller."""

    exit_status = 2


class Infeasible(MinrnnError):
    """No candidate satisfies every constraint of the GPU profile."""


class ToolchainMissing(MinrnnError):
    """NVRTC, CuPy or a GPU is needed for this and is not here."""


class TorchMissing(ToolchainMissing, ModuleNotFoundError):
    """torch is needed for this and is not installed."""


class JaxMissing(ToolchainMissing, ModuleNotFoundError):
    """jax is needed for this and is not installed."""


class CompileFailed(MinrnnError):
    """NVRTC refused a generated source, or no candidate kept what its plan promised."""


class PromiseBroken(CompileFailed):
    """A compiled kernel takes more registers or shared memory than its plan promised, or spills."""


@contextlib.contextmanager
def needing(module: str, purpose: str, install: str, kind: type[ToolchainMissing] = ToolchainMissing) -> Iterator[None]:
    """Raise `kind`, a sentence, for whatever an import of the optional library `module` raises.

    An import may end in any exception: of a library that is built for another NumPy, of a shared object that is not found.
    """
    try:
        yield
    except MinrnnError:
        raise
    except Exception as error:
        missing = kind(f"{purpose} needs {_NAMES.get(module, module)}, {why_not_imported(error, module)}: {install}")
        if isinstance(missing, ImportError):
            missing.name = module
        raise missing from error


def why_not_imported(error: BaseException | None, module: str) -> str:
    """Return, as a relative clause, why `module` cannot be imported: it is absent, or its import ended in `error`."""
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return "which is not installed"
    return f"which is installed but cannot be imported ({cause_of(error)})"


def cause_of(error: BaseException | None) -> str:
    """Return an exception of another library as a part of a sentence: type and text, in one line, of its first cause."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_CAUSE_CHARACTERS]}" if text else type(error).__name__


def nearest_of(value: object, allowed: Iterable[str]) -> str | None:
    """Return the closest allowed name, whatever the case of its letters, or None where none is close."""
    by_folded = {name.casefold(): name for name in allowed}
    close = difflib.get_close_matches(value.casefold() if isinstance(value, str) else shown(value), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def nearest_name(value: object, allowed: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the closest allowed name, whatever the case of its letters, or the empty string."""
    nearest = nearest_of(value, allowed)
    return f" (did you mean '{nearest}'?)" if nearest is not None else ""


def kind_of(value: object) -> str:
    """Return a value's type with its article, as in "x is an ndarray"."""
    name = type(value).__name__
    # The n of ndarray is spoken as a letter.
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as an error message shows it: one printable line, at most twice `limit` long; true and null as in YAML."""
    text = " ".join(_Brief(limit).repr(value).split())
    return text if len(text) <= 2 * limit else text[: 2 * limit - 3] + "..."


def constructed_by_own_name(cls: type) -> None:
    """Give a class a constructor of its own name; else Python's messages name the private class that it is inherited from."""
    inherited: Any = vars(cls).get("__init__", cls.__init__)  # type: ignore[misc]
    if inherited.__qualname__.startswith("_"):
        parts = (inherited.__name__, inherited.__defaults__, inherited.__closure__)
        own = FunctionType(inherited.__code__, inherited.__globals__, *parts)
        own.__kwdefaults__ = inherited.__kwdefaults__
        functools.update_wrapper(own, inherited).__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = own  # type: ignore[misc]


class _Brief(reprlib.Repr):
    """A short repr of plain data, with YAML's words; the method names are reprlib's."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, limit, limit

    def repr_NoneType(self, _value: None, _level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, _level: int) -> str:
        return "true" if value else "false"

    def repr_int(self, value: int, _level: int) -> str:
        # Python refuses to print integers of thousands of digits; 256 bits are beyond any size one means.
        return repr(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
