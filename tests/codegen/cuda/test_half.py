"""Float16 in memory: both targets convert as NumPy does, and NVRTC takes the text."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.bundle_adjustment import snavely
from caspar.codegen.targets import TARGETS
from caspar.equations.factor_builder import SharedSums
from caspar.equations.solver_form import eliminable_types, solver_form
from caspar.equations.solver_kernels import kernel_specs
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadIndexed, ReadSequential, WriteSequential
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import alternating
from tests.harness import compile_cuda, find_compiler
from tests.support_kernels import generate, launch_cuda, one_text
from tests.support_memory import canaries_live, place, with_canaries

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="no C++ compiler on this machine"
)

Halves = NDArray[np.float16]
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 24)
ON_TARGET = {"cpu": (), "cuda": (needs_compiler,)}
TARGET_NAMES = [pytest.param(target, marks=marks) for target, marks in ON_TARGET.items()]
ARCHITECTURES = ("sm_90", "sm_86", "sm_75")
PRODUCT_REGISTERS = 64
"""Of a product: a multiprocessor holds 1024 of its threads. 64, 60 and 62 are needed."""

computing = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


def unpack_kernel(dim: int, dtype: DType) -> KernelSpec:
    kernel = KernelBuilder("unpack", dtype)
    halves = kernel.read("halves", dim, DType.FLOAT16, ReadSequential())
    kernel.write("numbers", halves, dtype, WriteSequential())
    chosen = kernel.read("chosen", dim, DType.FLOAT16, ReadIndexed())
    kernel.write("others", chosen, dtype, WriteSequential())
    return kernel.build()


def pack_kernel(dim: int, dtype: DType) -> KernelSpec:
    kernel = KernelBuilder("pack", dtype)
    numbers = kernel.read("numbers", dim, dtype, ReadSequential())
    kernel.write("halves", numbers, DType.FLOAT16, WriteSequential())
    return kernel.build()


def bind(spec: KernelSpec, name: str, rows: NDArray[np.floating]) -> Binding:
    """Rows in the blocked layout between canaries; of float16 the bits, ones in the pads."""
    arg = spec.arg(name)
    placement = place(arg, len(rows))
    data = np.ones(placement.size, arg.dtype.value)
    data[placement.where] = rows
    return Binding(with_canaries(data.view(arg.dtype.in_arrays.value)), len(rows))


def rows_of(spec: KernelSpec, name: str, binding: Binding) -> NDArray[np.floating]:
    arg = spec.arg(name)
    assert canaries_live(binding.data)
    data = np.ascontiguousarray(binding.data).view(arg.dtype.value)
    rows: NDArray[np.floating] = data[place(arg, binding.length).where]
    return rows


def run(target: str, spec: KernelSpec, bindings: dict[str, Binding], count: int) -> None:
    source = generate([spec], TARGETS[target])[spec.name]
    if target == "cuda":
        launch_cuda(compile_cuda(source.text), source, bindings, count)
        return
    backend = CpuBackend()
    kernel = backend.load([source])[spec.name]
    backend.sequence([backend.bind(kernel, bindings, count)]).run()


@computing
@pytest.mark.parametrize("target", TARGET_NAMES)
def test_every_half_is_read(target: str, dtype: DType) -> None:
    """Normal, subnormal, infinite and not a number."""
    rows = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 8)
    spec = unpack_kernel(8, dtype)
    index = np.arange(len(rows), dtype=np.int32)[::-1].copy()
    bindings = {
        "halves": bind(spec, "halves", rows),
        "chosen": bind(spec, "chosen", rows).with_fields({"index": index}),
        "numbers": bind(spec, "numbers", np.zeros(rows.shape)),
        "others": bind(spec, "others", np.zeros(rows.shape)),
    }
    run(target, spec, bindings, len(rows))
    wanted = rows.astype(dtype.value)
    assert_array_equal(rows_of(spec, "numbers", bindings["numbers"]), wanted)
    assert_array_equal(rows_of(spec, "others", bindings["others"]), wanted[::-1])


def difficult_numbers() -> NDArray[np.float32]:
    """Halves, what lies between two of them, and a little beside that; beyond the largest."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    near = [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (-1, 1)]
    large = np.array([65504, 65519, 65520, 65536, 1e9, 3e38, np.inf], np.float32)
    small = np.array([1e-8, 2.98e-8, 2.981e-8, 1e-30, 1e-45], np.float32)
    found = np.concatenate([halves, middles, *near, large, small])
    return np.concatenate([found, -found])


@computing
@pytest.mark.parametrize("target", TARGET_NAMES)
def test_numbers_are_rounded_to_the_nearest_half(target: str, dtype: DType) -> None:
    numbers = difficult_numbers()
    rows = numbers[: len(numbers) // 8 * 8].reshape(-1, 8)
    spec = pack_kernel(8, dtype)
    bindings = {
        "numbers": bind(spec, "numbers", rows),
        "halves": bind(spec, "halves", np.zeros(rows.shape)),
    }
    run(target, spec, bindings, len(rows))
    wanted = np.clip(rows, -65504.0, 65504.0).astype(np.float16)
    assert_array_equal(rows_of(spec, "halves", bindings["halves"]), wanted)


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_not_a_number_stays_one(target: str) -> None:
    spec = pack_kernel(2, DType.FLOAT32)
    rows = np.array([[np.nan, 1.0], [-np.nan, np.inf]])
    bindings = {name: bind(spec, name, rows) for name in ("numbers", "halves")}
    run(target, spec, bindings, 2)
    found = rows_of(spec, "halves", bindings["halves"])
    assert_array_equal(found, [[np.nan, 1.0], [np.nan, 65504.0]])


@pytest.mark.parametrize(
    ("dim", "target"),
    [
        pytest.param(*row.values, marks=[*row.marks, *ON_TARGET[row.values[1]]])
        for row in alternating(DIMS, ["cuda", "cpu"])
    ],
)
def test_objects_of_every_size(target: str, dim: int) -> None:
    """What is packed is unpacked again, and nothing beside it is touched."""
    count = 300
    rows = np.random.default_rng(dim).normal(size=(count, dim)).astype(np.float32)
    pack, unpack = pack_kernel(dim, DType.FLOAT32), unpack_kernel(dim, DType.FLOAT32)
    numbers = bind(pack, "numbers", rows)
    halves = bind(pack, "halves", np.zeros(rows.shape))
    run(target, pack, {"numbers": numbers, "halves": halves}, count)
    rounded = rows_of(pack, "halves", halves)
    assert_array_equal(rounded, rows.astype(np.float16))
    out = {name: bind(unpack, name, np.zeros(rows.shape)) for name in ("numbers", "others")}
    chosen = halves.with_fields({"index": np.arange(count, dtype=np.int32)})
    run(target, unpack, {"halves": halves, "chosen": chosen, **out}, count)
    assert_array_equal(rows_of(unpack, "numbers", out["numbers"]), rounded.astype(np.float32))


@pytest.mark.parametrize(
    ("sums", "precision", "arch"),
    alternating(
        [
            (SharedSums.ATOMIC, Precision.MIXED),
            (SharedSums.ORDERED, Precision.MIXED),
            (SharedSums.ATOMIC, Precision.FLOAT64),
        ],
        ARCHITECTURES,
    ),
)
def test_solver_kernels_compile(sums: SharedSums, precision: Precision, arch: str) -> None:
    factor = trace(snavely)
    nodes = [argument.node for argument in factor.nodes if argument.node is not None]
    eliminated = eliminable_types([factor], nodes)
    form = solver_form([factor], eliminated, sums, JacobianStorage.FLOAT16)
    specs, _ = kernel_specs([factor], nodes, TYPES[precision], form)
    # those of node types have no halves
    specs = [spec for spec in specs if spec.name.startswith(factor.name)]
    text = one_text(list(generate(specs, TARGETS["cuda"]).values()))
    compiled = compile_text(text, arch)
    assert compiled.warnings == (), compiled.log
    product = compiled.resources["snavely__product"]
    assert product.spill_bytes == 0
    if precision is not Precision.FLOAT64:
        # packed where the block waits for its sums
        assert product.registers <= PRODUCT_REGISTERS
