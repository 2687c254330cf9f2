"""Whatever the text or the structure: a valid document or one short BadInput sentence, and nothing is executed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from minrnn_gen.config.documents import parse_document, validated
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.errors import BadInput

EXAMPLES = [path.read_text() for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))]
PUNCTUATION = list("\n\t :-?#|>'\"{}[],%@`&*!~")
MARKERS = ["\n\n", ": ", "- ", "? ", "|2-", "{{", "---\n", "...\n", "%YAML 1.1\n", "<<: *a"]
TAGS = ["&a ", "*a ", "!x ", "!!int ", "!<tag:yaml.org,2002:str> ", "!!python/object/apply:os._exit [9]"]
CHARACTERS = list("\r\0\x1b\x85\u2028\ufeff\ud800\U0001f600\u202e\xa0")
ESCAPES = ["\\0", "\\x", "\\UFFFFFFFF", "\\ud800"]
SCALAR_TEXTS = ["012", "0x", "1e9", "1e999", ".nan", "-.inf", "1_0", "null", "on", "9" * 5000, "a" * 2000]
NESTING = ["[" * 50, "{a: " * 20, "- " * 20]
FRAGMENTS = [*PUNCTUATION, *MARKERS, *TAGS, *CHARACTERS, *ESCAPES, *SCALAR_TEXTS, *NESTING, *Spec.model_fields]
MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(FRAGMENTS) | st.text(max_size=3)), min_size=1, max_size=6
)

# PyYAML and pydantic do the reading; no audited event below is part of reading text that is already in memory.
PROCESSES = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"}
EXECUTING = PROCESSES | {"exec", "compile", "pickle.find_class", "open", "os.mkdir", "os.remove"}
_watched: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watched is not None and event in EXECUTING:
        _watched.append(f"{event} {arguments}")


sys.addaudithook(_audit)


@contextmanager
def nothing_executed() -> Iterator[None]:
    global _watched
    _watched = []
    try:
        yield
        assert _watched == []
    finally:
        _watched = None


def answer(read: Callable[[], Spec]) -> Spec | None:
    """Return the spec, or None after checking the words of its refusal."""
    try:
        return read()
    except BadInput as error:
        message = str(error)
        assert message.isprintable(), message
        assert all(10 < len(sentence) < 400 for sentence in message.split("; also ")), message
        return None


def read_text(text: str) -> Spec:
    with nothing_executed():
        document = parse_document(text, "a.yaml")
    return validated(document, Spec)


# Imports, caches and pydantic's lazily built JSON schema are done with before anything is watched.
answer(lambda: read_text("model: 3"))
answer(lambda: read_text("model: &a !b 'c"))


@given(st.text() | st.text("ab:-[]{}&*!|>'\"%#?, \n\t0123456789.e~\\"))
def test_random_text(text: str) -> None:
    answer(lambda: read_text(text))


@settings(max_examples=examples(400))
@given(st.sampled_from(EXAMPLES), MUTATIONS)
def test_mutated_specs(text: str, mutations: list[tuple[float, int, str]]) -> None:
    for place, removed, inserted in mutations:
        start = int(place * len(text))
        text = text[:start] + inserted + text[start + removed :]
    spec = answer(lambda: read_text(text))
    assert spec is None or load_spec(spec.document.data) == spec


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([b"x", 10**4000, object(), {1}, 1j])
)
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | SCALARS.filter(lambda key: not isinstance(key, set)), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(list(Spec.model_fields)) | st.text(), STRUCTURES, max_size=5))
def test_random_structures(data: dict[str, Any]) -> None:
    answer(lambda: load_spec(data))
    answer(lambda: load_spec({"model": "min_gru", "hidden_size": 4, **data}))


@given(STRUCTURES)
def test_random_structures_as_source_and_as_override(value: Any) -> None:
    answer(lambda: load_spec(value))
    answer(lambda: load_spec({"model": "min_gru", "hidden_size": 4}, model=value))
    answer(lambda: load_spec({"model": "min_gru", "hidden_size": 4}, **{str(type(value)): value}))


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_random_bytes_in_a_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    answer(lambda: load_spec(path))
