"""What the training examples share: their commands, models, training loop and records.

To be imported before torch and NumPy, which read the variable when they are loaded.
"""

import os

# Small products gain little from more, and the threads of torch and of NumPy's BLAS, which spin while they wait for work, take
# the cores from each other: measured, up to 70 times the time of a step where others use the machine too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
