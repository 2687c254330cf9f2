"""The numbers that layers start with, whatever the library."""

from __future__ import annotations

# Of rg_lru: the coefficient exp(-8 softplus(decay)) that a step has with an open gate is drawn from here, as its paper does,
# arXiv 2402.19427 section 2.4.
RG_LRU_RANGE = (0.9, 0.999)
RG_LRU_SHARPNESS = 8
