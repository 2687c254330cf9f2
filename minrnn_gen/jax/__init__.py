"""The recurrences of specs, the raw scan and layers as functions of JAX: under jit, grad, vmap, scan and checkpoint."""

from minrnn_gen.errors import INSTALL_JAX, JaxMissing, needing

with needing("jax", "minrnn_gen.jax", INSTALL_JAX, JaxMissing):
    from minrnn_gen.jax.drafts import cache, commit, verify_draft
    from minrnn_gen.jax.filters import lfilter, sosfilt
    from minrnn_gen.jax.functional import recurrence, step
    from minrnn_gen.jax.layer import RNN
    from minrnn_gen.jax.raw_scan import scan
    from minrnn_gen.jax.returns import gae, lambda_returns, vtrace

__all__ = [
    "RNN",
    "cache",
    "commit",
    "gae",
    "lambda_returns",
    "lfilter",
    "recurrence",
    "scan",
    "sosfilt",
    "step",
    "verify_draft",
    "vtrace",
]
