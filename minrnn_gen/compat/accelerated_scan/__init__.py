"""accelerated_scan's functions, served by the raw scan here, each in the module of its name; `scan` is that of `warp`."""

from minrnn_gen.compat.accelerated_scan.warp import scan

__all__ = ["scan"]
