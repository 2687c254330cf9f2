"""Shared parts of the training examples: commands, models, the training loop and records.

Import this before torch, JAX and NumPy, which read the variable when they are loaded.
"""

import os

# Small products gain little from more threads. Those of torch and of NumPy's BLAS spin while they wait for work and take the
# cores from each other: on a shared machine a step took up to 70 times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
