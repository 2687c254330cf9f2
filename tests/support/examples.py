"""How many examples hypothesis draws of those that a test names: half every day, a third in CI, seven times as many in all."""

from __future__ import annotations

from hypothesis import settings

# Examples of a profile (tests/conftest.py) that draws as many as tests name.
NAMED_EXAMPLES = 30


def is_whole() -> bool:
    """Say whether the profile at hand is that of the whole matrix."""
    return settings.default.max_examples > NAMED_EXAMPLES


def examples(named: int) -> int:
    """Return `named`, in proportion to the examples of the profile at hand; one at least."""
    return max(1, named * settings.default.max_examples // NAMED_EXAMPLES)
