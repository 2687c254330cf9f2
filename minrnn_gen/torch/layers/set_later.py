"""Attributes that are set on a layer after it was made: each is checked, and has its effect or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from minrnn_gen.errors import BadInput, shown

Checks = Mapping[str, Callable[[Any, str], None]]
_ABSENT = object()


def is_new(module: Any, name: str, value: Any) -> bool:
    """Say whether an attribute of a module is set to a new value."""
    before = module.__dict__.get(name, _ABSENT)
    return type(before) is not type(value) or bool(before != value)


def refuse(name: str, value: Any) -> NoReturn:
    """Refuse a change of an attribute that a layer keeps."""
    raise BadInput(
        f"{name} cannot be set to {shown(value)} after the layer was made; make another layer and load the state_dict"
    )


def check_flag(value: Any, name: str) -> None:
    """Refuse everything but True and False."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {shown(value)}; True or False is expected")


def check_probability(value: Any, name: str) -> None:
    """Refuse everything but numbers from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadInput(f"{name} is {shown(value)}; a probability, 0 to 1, is expected")


def check_size(value: Any, name: str) -> None:
    """Refuse everything but integers from 1 on."""
    _check_integer(value, name, 1)


def check_size_or_zero(value: Any, name: str) -> None:
    """Refuse everything but integers from 0 on."""
    _check_integer(value, name, 0)


def _check_integer(value: Any, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name} is {shown(value)}; an integer from {least} on is expected")


class Settled:
    """A module whose calls depend on some of its attributes: setting one checks the value, then calls `_settle`.

    `_checks`: for each such attribute, the function that refuses a value; `_fixed`: attributes that only a constructor sets.
    """

    _checks: ClassVar[Checks] = {}
    _fixed: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, attr: str, value: Any) -> None:
        is_made = "_made" in self.__dict__
        if attr in self._fixed and (is_made or attr in self.__dict__) and is_new(self, attr, value):
            refuse(attr, value)
        if not (is_made and attr in self._checks and is_new(self, attr, value)):
            super().__setattr__(attr, value)
            return
        self._checks[attr](value, attr)
        before = self.__dict__[attr]
        super().__setattr__(attr, value)
        try:
            self._settle(attr)
        except BadInput:
            super().__setattr__(attr, before)
            self._settle(attr)
            raise

    def _settle(self, name: str) -> None:
        """Update everything that follows from an attribute; raises BadInput for a value that does not fit the others."""
        raise NotImplementedError
