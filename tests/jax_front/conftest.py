"""Set-up of every test of the JAX front: JAX with x64, and quick to compile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def _has_cuda() -> bool:
    import jax

    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


@pytest.fixture(autouse=True)
def _with_x64_on_the_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    import jax  # each module of these tests is skipped where it is missing

    is_on_gpu = request.node.get_closest_marker("gpu") is not None
    # Programs of a few elements: they take longer to optimise than to run.
    jax.config.update("jax_disable_most_optimizations", not is_on_gpu)
    if is_on_gpu and not _has_cuda():
        pytest.skip("jax has no CUDA platform: pip install 'jax[cuda13]'")
    with jax.enable_x64(True), jax.default_device(jax.devices("cuda" if is_on_gpu else "cpu")[0]):
        yield
    from minrnn_gen.jax.c_handler import c_handler

    # What native code was published for is NumPy's in the next test.
    if c_handler.cache_info().currsize and (handler := c_handler()):
        handler.withdraw_all()
