"""Factors and kernel functions are printed by name, file and line."""

from typing import Annotated

import symforce.symbolic as sf

import caspar
from caspar.kernels.kernel import Kernel


@caspar.factor
def shown(x: Annotated[sf.V2, caspar.TunableShared]) -> sf.V2:
    """A factor."""
    return x


@caspar.kernel
def computed(x: Annotated[sf.V2, caspar.ReadSequential]) -> Annotated[sf.V2, caspar.WriteSum]:
    """A kernel."""
    return x


def test_factor() -> None:
    line = shown.function.__code__.co_firstlineno
    assert repr(shown) == f"Factor(shown, {__file__}:{line})"
    assert "0x" not in str([shown])


def test_kernel_function() -> None:
    assert isinstance(computed, Kernel)
    line = computed.function.function.__code__.co_firstlineno
    assert repr(computed.function) == f"KernelFunction(computed, {__file__}:{line})"
