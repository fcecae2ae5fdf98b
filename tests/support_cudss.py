"""Whether cuDSS, which is optional, is on this machine."""

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
