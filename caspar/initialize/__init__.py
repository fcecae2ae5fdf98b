"""Start values for problems that need good ones: found by linear least squares.

This package knows nothing of factors or solvers: NumPy arrays in, NumPy arrays out, on the host.
"""

from caspar.initialize.chordal import chordal

__all__ = ["chordal"]
