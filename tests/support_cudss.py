"""Whether cuDSS is on this machine."""

import pytest

MAJOR_VERSION = 0
"""Of `libraryPropertyType`."""


def require_cudss() -> None:
    """Skip the test where bindings or library are missing."""
    cudss = pytest.importorskip("nvmath.bindings.cudss")
    try:
        cudss.get_property(MAJOR_VERSION)
    except RuntimeError as error:
        pytest.skip(f"the bindings of cuDSS do not find it: {error}")


def require_library(linear_solver: str, backend: str = "cuda") -> None:
    """Skip the test where this linear solver needs cuDSS and it is missing."""
    if linear_solver == "sparse" and backend == "cuda":
        require_cudss()
