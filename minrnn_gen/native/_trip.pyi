"""The functions of trip.c."""

from collections.abc import Callable
from typing import Any

SOURCE_DIGEST: str

def serves(exchange: Any, /) -> bool: ...
def describe(
    exchange: Any, tensor: type, parameter: type, tensors: list[Any], refuses_recorded: bool, /
) -> tuple[bytes, list[int]] | None: ...
def program(functions: tuple[int, int, int, int, int, int, int], operations: tuple[tuple[Any, ...], ...], /) -> object: ...
def run(program: object, addresses: list[int], stream: int, handle: int, first: int, /) -> tuple[int, int, int] | None: ...
def replay(
    program: object,
    exchange: Any,
    allocate: Any,
    layout: tuple[tuple[Any, ...], Any, tuple[tuple[int, int], ...]],
    arrays: list[Any],
    addresses: list[int],
    stream: int,
    handle: Callable[[], int] | None,
    /,
) -> tuple[int, int, int] | bool | None: ...
def capture(program: object, addresses: list[int], stream: int, handle: int, workspace: int, /) -> bool: ...
def graphs(functions: tuple[int, ...], /) -> None: ...
def forward(which: int, address: int, /) -> int: ...
