"""Conversions between rows and the blocked layout: both targets = NumPy; their machine code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.ir.dtype import DType
from caspar.memory.array import Binding
from caspar.memory.kernel import ConvertSpec, Direction
from caspar.memory.layout import rows_are_blocked
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.nvrtc import compile_kernel_text, compile_text
from caspar.runtime.nvidia.sass import disassemble
from tests.covering import alternating
from tests.harness import compile_cuda, find_compiler
from tests.support_kernels import launch_cuda, one_text
from tests.support_memory import Placement, canaries_live, place, with_canaries

Array = NDArray[Any]

FLOATS = (DType.FLOAT32, DType.FLOAT64)
DIMS = (*range(1, 18), 24)
SOME_DIMS = (1, 2, 3, 4, 6, 7, 8, 13, 24)
"""Without and with a rest after chunks of 16 bytes, of either type."""

LARGE_DIMS = (100, 384, 1000, 3068)
"""Tiles of 32 items, and of less because of shared memory, down to 4 of float32."""

WIDE_DIMS = (3071, 3069)
"""Items of which no tile fits in shared memory; in float32 the last chunks have 3 scalars and 1."""

SIZES = (1, 31, 32, 33, 255, 257, 1025)

FIRST = 5
SPARE = 3
"""Objects before and after a window."""

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)


def specs_of(dims: Sequence[int], dtype: DType) -> list[ConvertSpec]:
    return [ConvertSpec(direction, dim, dtype) for dim in dims for direction in Direction]


def cuda_sources(specs: Sequence[ConvertSpec]) -> dict[str, KernelSource]:
    """By name."""
    return {spec.name: TARGETS["cuda"].generate_convert(spec) for spec in specs}


@dataclass(frozen=True)
class Case:
    """Rows, and a blocked array of which they are a window.

    Attributes:
        count: Rows.
        whole: Whether the window is the whole array.
        shift: Scalars by which the rows begin after 16 bytes.
    """

    count: int
    whole: bool
    shift: int

    @property
    def first(self) -> int:
        return 0 if self.whole else FIRST

    def numbers(self, spec: ConvertSpec) -> Array:
        """(count, dim), all different."""
        shape = (self.count, spec.dim)
        return np.random.default_rng(0).standard_normal(shape).astype(spec.dtype.value)

    def placement(self, spec: ConvertSpec) -> Placement:
        return place(spec.blocked, self.count if self.whole else FIRST + self.count + SPARE)

    def window(self, spec: ConvertSpec) -> NDArray[np.int64]:
        """(count, dim) positions in the blocked array."""
        return self.placement(spec).where[self.first : self.first + self.count]

    def pads(self, spec: ConvertSpec) -> NDArray[np.int64]:
        """Positions of the window that belong to no scalar."""
        placement = self.placement(spec)
        if len(placement.pads) == 0:
            return placement.pads
        pads = placement.pads.reshape(len(placement.where), -1)
        return pads[self.first : self.first + self.count].reshape(-1)


class Memory:
    """Both sides of a conversion, NaN where nothing was put, between canaries."""

    def __init__(self, spec: ConvertSpec, case: Case) -> None:
        self._spec, self._case = spec, case
        numbers = case.numbers(spec)
        around = np.full(case.shift + numbers.size, np.nan, spec.dtype.value)
        blocked = np.full(case.placement(spec).size, np.nan, spec.dtype.value)
        if spec.direction is Direction.PACK:
            around[case.shift :] = numbers.reshape(-1)
        else:
            blocked[case.window(spec)] = numbers
        self._around, self._blocked = with_canaries(around), with_canaries(blocked)
        assert self._around.ctypes.data % 16 == self._blocked.ctypes.data % 16 == 0

    @property
    def bindings(self) -> dict[str, Binding]:
        rows = self._around[self._case.shift :].reshape(self._case.count, self._spec.dim)
        length = len(self._case.placement(self._spec).where)
        window = Binding(self._blocked, length, self._case.first, self._case.count)
        return {"rows": Binding(rows, self._case.count), "blocked": window}

    def check(self, where: str, pad: float) -> None:
        """Everything is where it should be, and what is around it as it was."""
        spec, case = self._spec, self._case
        numbers = case.numbers(spec)
        around = np.full_like(self._around, np.nan)
        around[case.shift :] = numbers.reshape(-1)
        blocked = np.full_like(self._blocked, np.nan)
        blocked[case.window(spec)] = numbers
        if spec.direction is Direction.PACK:
            blocked[case.pads(spec)] = pad
        assert_array_equal(self._around, around, where)
        assert_array_equal(self._blocked, blocked, where)
        assert canaries_live(self._around), where
        assert canaries_live(self._blocked), where


def cases(sizes: Sequence[int]) -> list[Case]:
    return [
        Case(count, whole, shift) for count in sizes for whole, shift in ((True, 0), (False, 1))
    ]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
class TestCuda:
    """The text that NVRTC gets, run with checks of bounds, alignment and races."""

    def run_all(self, specs: Sequence[ConvertSpec], sizes: Sequence[int]) -> None:
        sources = cuda_sources(specs)
        module = compile_cuda(one_text(list(sources.values())))
        for spec in specs:
            for case in cases(sizes):
                memory = Memory(spec, case)
                launch_cuda(module, sources[spec.name], memory.bindings, case.count)
                memory.check(f"{spec.name} of {case}", pad=0.0)

    @each_dtype
    def test_moves_every_scalar(self, dtype: DType) -> None:
        self.run_all(specs_of(SOME_DIMS, dtype), SIZES)

    @pytest.mark.parametrize(("dim", "dtype"), alternating((*LARGE_DIMS[::-1], *WIDE_DIMS), FLOATS))
    def test_large_objects(self, dim: int, dtype: DType) -> None:
        self.run_all(specs_of([dim], dtype), (1, 9, 33))

    @each_dtype
    def test_rows_at_any_scalar(self, dtype: DType) -> None:
        # a module that `test_moves_every_scalar` has compiled
        sources = cuda_sources(specs_of(SOME_DIMS, dtype))
        module = compile_cuda(one_text(list(sources.values())))
        for spec in specs_of((3, 4, 6, 7), dtype):
            source = sources[spec.name]
            for shift in range(5):
                case = Case(70, whole=False, shift=shift)
                memory = Memory(spec, case)
                launch_cuda(module, source, memory.bindings, case.count)
                memory.check(f"{spec.name} of {case}", pad=0.0)


class TestCpu:
    @each_dtype
    def test_moves_every_scalar(self, dtype: DType) -> None:
        specs = specs_of((*DIMS, 100), dtype)
        backend = CpuBackend()
        kernels = backend.load([TARGETS["cpu"].generate_convert(spec) for spec in specs])
        for spec in specs:
            for case in cases((0, *SIZES)):
                memory = Memory(spec, case)
                launch = backend.bind(kernels[spec.name], memory.bindings, case.count)
                backend.runner([launch])()
                memory.check(f"{spec.name} of {case}", pad=np.nan)


class TestSource:
    def generated(self, dim: int, dtype: DType) -> list[KernelSource]:
        return list(cuda_sources(specs_of([dim], dtype)).values())

    def items_of_a_block(self, source: KernelSource) -> int:
        return next(n for n in range(1, 1025) if source.num_blocks(n + 1, source.block_size) == 2)

    @each_dtype
    def test_a_block_has_4_kib_of_rows(self, dtype: DType) -> None:
        for dim in DIMS:
            for source in self.generated(dim, dtype):
                assert source.num_blocks(0, source.block_size) == 0
                items = self.items_of_a_block(source)
                assert items in (32, 64, 128, 256, 512)
                size = items * dim * dtype.itemsize
                assert size <= 4096 or items == 32, f"{source.name}: {items} items"
                assert size > 2048 or items == 512, f"{source.name}: {items} items"

    def test_only_the_functions_of_its_direction(self) -> None:
        to_blocked, to_rows = self.generated(6, DType.FLOAT32)
        assert "load_rows" in to_blocked.text
        assert "store_rows" not in to_blocked.text
        assert "store_rows" in to_rows.text
        assert "load_rows" not in to_rows.text
        for dim in WIDE_DIMS:
            wide, _ = self.generated(dim, DType.FLOAT32)
            assert "__shared__" not in wide.text

    @pytest.mark.parametrize("target", sorted(TARGETS))
    def test_equal_specs_give_equal_kernels(self, target: str) -> None:
        specs = [spec for dtype in FLOATS for spec in specs_of(DIMS, dtype)]
        generate = TARGETS[target].generate_convert
        for spec in specs:
            twin = ConvertSpec(spec.direction, spec.dim, spec.dtype)
            assert generate(spec) == generate(twin)
        assert len({spec.name for spec in specs}) == len(specs)


@each_dtype
def test_rows_that_are_blocked(dtype: DType) -> None:
    """Told by where the scalars lie."""
    for dim in DIMS:
        where = place(ConvertSpec(Direction.PACK, dim, dtype).blocked, 7).where
        assert rows_are_blocked(dim, dtype) == np.array_equal(
            where, np.arange(7 * dim).reshape(7, dim)
        )


class TestMachineCode:
    @each_dtype
    def test_vectors_of_16_bytes_and_no_local_memory(self, dtype: DType) -> None:
        specs = specs_of([dim for dim in SOME_DIMS if dim >= 4], dtype)
        text = one_text(list(cuda_sources(specs).values()))
        kernels = disassemble(compile_text(text, "sm_90").cubin)
        for spec in specs:
            found = kernels[spec.name].details()
            where = f"{spec.name}: {found}"
            assert found["LDG.128"] > 0, where
            assert found["STG.128"] > 0, where
            assert not any(access.startswith(("LDL", "STL")) for access in found), where
            if spec.dim % dtype.chunk_length == 0:
                blocked = "STG" if spec.direction is Direction.PACK else "LDG"
                assert f"{blocked}.32" not in found, where
                assert f"{blocked}.64" not in found, where

    @pytest.mark.parametrize(("dtype", "arch"), alternating(FLOATS, ["sm_90", "sm_75", "sm_86"]))
    def test_nothing_spills(self, dtype: DType, arch: str) -> None:
        """Large objects where one resident block is enough, as the runtime compiles them."""
        sources = cuda_sources(specs_of((*SOME_DIMS, *LARGE_DIMS, *WIDE_DIMS), dtype))
        compiled = compile_text(one_text(list(sources.values())), arch)
        assert compiled.warnings == (), compiled.log
        assert set(compiled.resources) == set(sources)
        for name, entry in compiled.resources.items():
            assert entry.shared_bytes <= 48 * 1024, f"{name}: {entry}"
            if entry.stack_bytes > 0:
                assert int(name.split("_")[1]) in LARGE_DIMS, f"{name}: {entry}"
                entry = compile_kernel_text(sources[name].text, arch).resources[name]
            assert entry.stack_bytes == 0, f"{name}: {entry}"
