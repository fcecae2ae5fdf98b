"""A pattern of one's own: one class, and nothing else to touch."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.kernels.kernel import Kernel
from caspar.memory.access import ArgSpec, Field, Options, ReadAccessor
from caspar.memory.accessors.blocked import cpu_load, cuda_load
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.array import Array
from tests.harness_backend import HarnessBackend
from tests.kernels.test_patterns import backend, backends, use_backend

__all__ = ["backend"]


@dataclass(frozen=True)
class ReadRing(ReadAccessor):
    """Item `i` reads object `(i + shift) % n` of a ring of n objects."""

    options: ClassVar[tuple[str, ...]] = ("shift",)

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        return (Field("shift"), Field("ring"))

    def num_items(self, length: int | None, options: Options) -> int | None:
        return length

    def num_objects(self, count: int, options: Options) -> int:
        return 1

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        return {"shift": int(options["shift"]) % num_objects, "ring": num_objects}

    def _object(self, arg: ArgSpec) -> str:
        return f"((item + {arg.name}_shift) % {arg.name}_ring)"

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        return cuda_load(scope, arg, chunk, self._object(arg))

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        return cpu_load(scope, arg, chunk, self._object(arg))


def ring_kernel() -> Kernel:
    """A new kernel: what one was called with before decides where it runs again."""

    @caspar.kernel
    def turned(x: Annotated[sf.V5, ReadRing]) -> Annotated[sf.V5, caspar.WriteSequential]:
        return x

    return turned


@backends
def test_it_is_read_and_written_like_those_that_are_there(backend: str) -> None:
    turned = ring_kernel()
    for count in (1, 255, 256, 1000):
        rows = np.random.default_rng(count).normal(size=(count, 5))
        found = turned({"values": rows, "shift": 7})
        np.testing.assert_array_equal(found, np.roll(rows, -7, axis=0))


def test_it_is_described_and_inspected() -> None:
    turned = ring_kernel()
    assert "ReadRing" in repr(turned)
    assert "x__value_shift" in turned.inspect().source.text


def test_on_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(5 * 700.0).reshape(700, 5)
    for size in (64, 512):
        use_backend(monkeypatch, HarnessBackend(size))
        found = ring_kernel()({"values": rows, "shift": -1})
        np.testing.assert_array_equal(found, np.roll(rows, 1, axis=0))
