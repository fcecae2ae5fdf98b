"""The kernels that sum the partials of each object: both targets against NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.sums.partials import object_fields
from caspar.memory.array import Binding
from caspar.memory.kernel import ReduceSpec
from caspar.memory.patterns import ReadPartials
from caspar.memory.tiling.tiles import TileIndex, build_tile_index, single_object_tiles
from caspar.runtime.cpu.backend import CpuBackend
from tests.covering import alternating
from tests.harness import compile_cuda, find_compiler
from tests.support_cases import SPARE
from tests.support_kernels import launch_cuda, one_text
from tests.support_memory import canaries_live, place, with_canaries

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

Array = NDArray[Any]

SPECS = [
    ReduceSpec(dim, dtype, lanes)
    for dim in (1, 3, 10)
    for dtype in (DType.FLOAT32, DType.FLOAT64)
    for lanes in (1, 32, 128)
] + [
    ReduceSpec(dim, dtype, lanes, rows=True)
    for dim in (3, 9)
    for dtype in (DType.FLOAT32, DType.FLOAT64)
    for lanes in (1, 32, 128)
]


def indices(num_items: int, num_objects: int) -> dict[str, NDArray[np.int32]]:
    """Objects of the items behind the partials."""
    rng = np.random.default_rng(num_items)
    made = {
        "random": rng.integers(0, num_objects, num_items),
        "sorted": np.sort(rng.integers(0, num_objects, num_items)),
        "all the last": np.full(num_items, num_objects - 1),
    }
    return {name: index.astype(np.int32) for name, index in made.items()}


TILES: dict[str, tuple[TileIndex, int]] = {
    f"{name}, {num_items} items, {num_objects} objects": (
        build_tile_index(index, num_objects, 256),
        num_objects,
    )
    for num_items, num_objects in ((3000, 7), (1000, 130), (90, 300))
    for name, index in indices(num_items, num_objects).items()
} | {f"{count} tiles of one object": (single_object_tiles(count), 1) for count in (1, 5000, 33)}


class Case:
    """Fresh memory: random partials, the output set to start values, and poisoned beyond."""

    def __init__(self, spec: ReduceSpec, tiles: TileIndex, num_objects: int, whole: bool) -> None:
        rng = np.random.default_rng(num_objects)
        length = tiles.num_partials + SPARE
        self._spec, self._tiles, self.num_objects = spec, tiles, num_objects
        values = (
            rng.integers(-50, 50, (length, spec.dim))
            if whole
            else rng.normal(size=(length, spec.dim))
        )
        self.values = values.astype(spec.dtype.value)
        self.values[tiles.num_partials :] = np.nan
        self.start = rng.integers(-9, 9, (num_objects, spec.dim)).astype(spec.dtype.value)
        partials = place(ArgSpec("partials", spec.dim, spec.dtype, read=ReadPartials()), length)
        self.output = place(spec.output, num_objects + SPARE)
        data = np.empty(partials.size, spec.dtype.value)
        data[partials.where] = self.values
        result = np.full(self.output.size, np.nan, spec.dtype.value)
        result[self.output.where[:num_objects]] = self.start
        self.bindings = {
            "partials": Binding(with_canaries(data), length, fields=object_fields(tiles)),
            "output": Binding(with_canaries(result), num_objects + SPARE),
        }

    @property
    def found(self) -> Array:
        """(num_objects, dim) result."""
        result: Array = self.bindings["output"].data[self.output.where[: self.num_objects]]
        return result

    def sums(self) -> Array:
        """(num_objects, dim) result by NumPy, in float64."""
        wanted = self.start.astype(np.float64)
        start, partials = self._tiles.object_start, self._tiles.object_partials
        for number in range(self.num_objects):
            own = partials[start[number] : start[number + 1]]
            wanted[number] += self.values[own].astype(np.float64).sum(axis=0)
        return wanted

    def assert_rest_untouched(self) -> None:
        """Pads and spare objects hold NaN still (or a zero, where chunks are stored whole)."""
        rest = np.delete(self.bindings["output"].data, self.output.where[: self.num_objects])
        assert np.all(np.isnan(rest))
        assert canaries_live(self.bindings["output"].data)


class Kernels:
    """Kernels, compiled for both targets."""

    def __init__(self, specs: Sequence[ReduceSpec]) -> None:
        self._cuda = {spec.name: TARGETS["cuda"].generate_reduce(spec) for spec in specs}
        self._module = compile_cuda(one_text(list(self._cuda.values())))
        self._backend = CpuBackend()
        cpu: list[KernelSource] = [TARGETS["cpu"].generate_reduce(spec) for spec in specs]
        self._cpu = self._backend.load(cpu)

    def run(self, name: str, spec: ReduceSpec, case: Case) -> None:
        """Run on a target."""
        if name == "cuda":
            launch_cuda(self._module, self._cuda[spec.name], case.bindings, case.num_objects)
        else:
            launch = self._backend.bind(self._cpu[spec.name], case.bindings, case.num_objects)
            self._backend.sequence([launch]).run()


@pytest.mark.parametrize(("dtype", "half"), alternating([DType.FLOAT32, DType.FLOAT64], [0, 1]))
def test_sums_over_partials(dtype: DType, half: int) -> None:
    """By default each size and number of lanes in one type."""
    specs = [spec for spec in SPECS if spec.dtype is dtype][half::2]
    kernels = Kernels(specs)
    eps = float(np.finfo(dtype.value).eps)
    for spec in specs:
        for target in ("cpu", "cuda"):
            for name, (tiles, num_objects) in TILES.items():
                where = f"{spec.name} on {target}, {name}"
                case = Case(spec, tiles, num_objects, whole=True)
                kernels.run(target, spec, case)
                assert_array_equal(case.found, case.sums(), where)
                case.assert_rest_untouched()
            case, again = (Case(spec, tiles, num_objects, whole=False) for _ in range(2))
            kernels.run(target, spec, case)
            kernels.run(target, spec, again)
            assert_allclose(case.found, case.sums(), rtol=0.0, atol=1000 * eps, err_msg=where)
            assert_array_equal(case.found, again.found, where)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_equal_specs_give_equal_kernels(target: str) -> None:
    for spec in SPECS:
        twin = ReduceSpec(spec.dim, spec.dtype, spec.lanes, spec.rows)
        generate = TARGETS[target].generate_reduce
        assert generate(spec) == generate(twin)
    names = {spec.name for spec in SPECS}
    assert len(names) == len(SPECS)
