"""The type of arrays: NumPy's or CuPy's, whichever the backend has."""

from typing import Any

Array = Any
"""An array of the backend's library."""
