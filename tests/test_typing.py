"""Types that checkers see: the keys of a spec as keywords, and results of the types that callers see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from minrnn_gen.config.spec import Spec, SpecKeys

ROOT = Path(__file__).resolve().parents[1]


def choices(annotation: Any) -> set[Any]:
    """Return the values of every Literal in an annotation."""
    inner = get_args(annotation)
    return set(inner) if get_origin(annotation) is Literal else set().union(*map(choices, inner))


def test_the_keywords_of_compile_are_the_keys_of_a_spec() -> None:
    typed, fields = get_type_hints(SpecKeys), get_type_hints(Spec)
    assert set(typed) == set(Spec.model_fields)
    for key, annotation in typed.items():
        assert choices(annotation) == choices(fields[key]), key
        # What may be null may be None.
        assert key == "model" or (type(None) in get_args(annotation)) == (type(None) in get_args(fields[key])), key


@pytest.mark.skipif("CI" in os.environ, reason="make types, which .ci/run runs beside the tests, checks the same file")
def test_mypy_holds_keywords_and_knows_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error that the file expects is one: of an ignored error that is none, mypy says so."""
    mypy = pytest.importorskip("mypy.api")
    monkeypatch.chdir(ROOT)
    report, errors, status = mypy.run(["tests/support/typed_calls.py"])
    assert (status, errors) == (0, ""), report
