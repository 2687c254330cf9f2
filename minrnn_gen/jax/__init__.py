"""The recurrences of specs, the raw scan and layers as functions of JAX: under jit, grad, vmap, scan and checkpoint."""

from minrnn_gen.errors import INSTALL_JAX, JaxMissing

try:
    from minrnn_gen.jax.functional import recurrence, step
    from minrnn_gen.jax.layer import RNN
    from minrnn_gen.jax.raw_scan import scan
except ModuleNotFoundError as missing:
    if missing.name not in ("jax", "jaxlib"):
        raise
    raise JaxMissing(f"minrnn_gen.jax needs jax, which is not installed: {INSTALL_JAX}", name="jax") from None

__all__ = ["RNN", "recurrence", "scan", "step"]
