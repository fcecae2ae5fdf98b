"""What tests of `caspar.jax` share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """JAX with float64, while a test runs."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
