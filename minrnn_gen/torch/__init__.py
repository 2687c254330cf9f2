"""Recurrent layers to train with, and the kernels' recurrence and the raw scan as functions that autograd knows."""

from minrnn_gen.torch.functional import recurrence
from minrnn_gen.torch.raw_scan import scan

__all__ = ["recurrence", "scan"]
