"""The kernels of gradients outside the recurrence: how they are called and launched."""

from __future__ import annotations

# The file, and its kernels: see templates/export/cuda_gradients.cu.j2.
GRADIENTS, ADD_UP, ADD_UP_STORED, STORE = "gradients", "add_up", "add_up_stored", "store"
# Sums are added up by blocks of so many warps, each for the channels of a warp's lanes.
SUMMED_LANES, SUMMED_ROWS = 32, 16
SUMMED_THREADS = SUMMED_LANES * SUMMED_ROWS
# Of a kernel that strides over all elements.
STRIDING_THREADS, STRIDING_BLOCKS = 256, 1056
# Axes of a copy between arrays of different widths, each with its own stride in either.
MOVED_AXES = 6
