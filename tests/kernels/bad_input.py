"""Kernels of points, where they run, and calls that fail: what tests of bad input share."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError
from caspar.kernels.call.calls import KernelCalls
from caspar.memory.patterns import WriteUnique
from caspar.runtime.cpu.backend import CpuBackend
from tests.harness_backend import HarnessBackend
from tests.kernels.test_patterns import use_backend

V3In = Annotated[sf.V3, caspar.ReadSequential]
V3Out = Annotated[sf.V3, caspar.WriteSequential]


@caspar.kernel
def moved(x: V3In, shift: Annotated[sf.V3, caspar.ReadUnique]) -> V3Out:
    """Points moved by one shift."""
    return x + shift


@caspar.kernel
def picked(x: Annotated[sf.V3, caspar.ReadIndexed]) -> Annotated[sf.V3, caspar.WriteIndexed]:
    """Points picked by number and put by number."""
    return x


@caspar.kernel
def gathered(x: Annotated[sf.V3, caspar.ReadIndexed]) -> V3Out:
    """Points picked by number."""
    return x


@caspar.kernel
def added(x: V3In) -> Annotated[sf.V3, caspar.AddIndexed]:
    """Points added by number."""
    return x


@caspar.kernel
def split(x: V3In) -> tuple[V3Out, V3Out]:
    """Points, and their negatives."""
    return x, -x


@caspar.kernel
def total(x: V3In) -> Annotated[sf.V3, caspar.AddSum]:
    """The sum of points."""
    return x


@caspar.kernel
def steps(x: Annotated[caspar.Pair[sf.V3], caspar.ReadPair]) -> V3Out:
    """From each point to the next."""
    return x[1] - x[0]


@caspar.kernel
def strided(x: Annotated[sf.V3, caspar.ReadStrided]) -> V3Out:
    """Some of the points."""
    return x


@caspar.kernel
def padded(x: Annotated[sf.V3, caspar.ReadStridedWithDefault((1, 2, 3))]) -> V3Out:
    """Some of the points, and others where there are none."""
    return x


@caspar.kernel
def copied(x: Annotated[sf.V3, caspar.ReadUnique]) -> Annotated[sf.V3, WriteUnique]:
    """One point."""
    return x


@caspar.kernel
def constant(x: Annotated[sf.V3, caspar.ReadUnique]) -> Annotated[sf.V3, caspar.WriteSum]:
    """As many times the point as there are items."""
    return x


KERNELS = (moved, picked, gathered, added, split, total, steps, strided, padded, copied, constant)


@pytest.fixture(autouse=True)
def _fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel keeps holds for one backend."""
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "calls", KernelCalls(kernel.name))


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run kernels of arrays on the host there."""
    name: str = request.param
    use_backend(monkeypatch, HarnessBackend() if name == "harness" else CpuBackend())
    return name


def points(length: int = 5, dtype: Any = np.float64) -> Any:
    return np.arange(1, 1 + 3 * length).reshape(length, 3).astype(dtype)


SHIFT = np.array([[10.0, 20.0, 30.0]])


def fails(call: Callable[[], Any], *says: str, kind: type[Exception] = InputError) -> None:
    """The call raises an error that says all this."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in says if part not in message]
    assert not missing, f"{missing} not in: {message}"
