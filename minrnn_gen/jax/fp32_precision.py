"""JAX's own setting of products in fp32 on a GPU, which its functions and layers follow."""

from __future__ import annotations

import jax

# Of the values of `jax_default_matmul_precision` those that ask for more than the 11 significant bits of tf32. XLA takes tf32
# for all others on a GPU, and without a value (xla/service/gpu: a compute precision of at most HIGH allows it).
_WIDER = {
    "highest",
    "float32",
    "F32_F32_F32",
    "F64_F64_F64",
    "TF32_TF32_F32_X3",
    "BF16_BF16_F32_X3",
    "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X9",
}


def multiplies_in_tf32() -> bool:
    """Say whether XLA multiplies fp32 in tf32 on a GPU, as it is set while a program is traced."""
    return jax.config.jax_default_matmul_precision not in _WIDER
