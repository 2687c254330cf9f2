"""How many examples hypothesis draws: few every day, a third as many in CI, seven times as many in the whole matrix."""

from __future__ import annotations

from hypothesis import settings

# Of the profiles that are run every day (tests/conftest.py).
EVERYDAY_EXAMPLES = 30


def examples(everyday: int) -> int:
    """Return `everyday`, times what the profile at hand has more than those of every day; one at least."""
    return max(1, everyday * settings.default.max_examples // EVERYDAY_EXAMPLES)
