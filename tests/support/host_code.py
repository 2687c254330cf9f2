"""Computes functions of host arrays: by native code, which tests go without unless they ask for it, or by NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.config.environment import numpy_alone


@contextmanager
def natively() -> Iterator[None]:
    """Have host arrays run native code; skips the test where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CPU", "native")
        if why := why_no_native_code():
            pytest.skip(why)
        yield


BY = {"native": natively, "numpy": numpy_alone}
RUNNERS = [*BY]
