"""The text of the language models: what comes with the interpreter, so that nothing is downloaded."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

# Every 20th block of the text is held out for testing.
BLOCK_BYTES = 8192
TESTED_EVERY = 20


def text() -> bytes:
    """Return the help topics of Python and the sources of its standard library, in the order of their names."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "\n".join(topics[name] for name in sorted(topics)).encode() + b"".join(path.read_bytes() for path in modules)


def split(whole: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of training and those of testing."""
    blocks = [whole[start : start + BLOCK_BYTES] for start in range(0, len(whole), BLOCK_BYTES)]
    tested = b"".join(blocks[TESTED_EVERY - 1 :: TESTED_EVERY])
    return b"".join(block for number, block in enumerate(blocks, start=1) if number % TESTED_EVERY), tested
