"""The C part of a replayed call, where the package was installed with a compiler; Python does the same without it.

Neither the values nor the launches of a call depend on which of both it is: only the host's time does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCES = tuple(Path(__file__).with_name(name) for name in ("trip.c", "key.h", "program.h", "graphs.h", "replay.h"))


def library_of_source() -> ModuleType | None:
    """Return the C part, None where it is not there, or compiled from another source than the one here."""
    try:
        from minrnn_gen.native import _trip

        digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()
    except (ImportError, OSError):
        return None
    return _trip if digest == getattr(_trip, "SOURCE_DIGEST", None) else None


LIBRARY = library_of_source()

# Kinds of operations, and what each is given after its kind; slots and offsets are those of arrays in a call.
LAUNCH, PRODUCT, SET_BYTES, COPY, KERNEL = 0, 1, 2, 3, 4

Describer = Callable[[list[Any]], tuple[bytes, list[int]] | None]


def exchange_of(tensor: type) -> Any:
    """Return the interface by which C reads tensors of a type; None where there is none that it knows."""
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    return exchange if LIBRARY is not None and exchange is not None and LIBRARY.serves(exchange) else None


def describer_of(tensor: type, parameter: type, is_recorded: Callable[[], bool]) -> Describer | None:
    """Return a function for the key and the addresses of tensors of these two types; None where C does not read them.

    `is_recorded` says whether tensors that require grad are refused.
    """
    exchange = exchange_of(tensor)
    if LIBRARY is None or exchange is None:
        return None
    describe = LIBRARY.describe
    return lambda arrays: describe(exchange, tensor, parameter, arrays, is_recorded())
