"""Every access pattern on the device = NumPy: exactly, as the numbers are whole."""

from typing import Annotated

import pytest
import symforce.symbolic as sf

import caspar
from tests.kernels.patterns import ANY_ORDER, read_kernel, write_kernel
from tests.kernels.test_patterns import SIZES, check_reads, check_writes, draws

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

MANY = 100_003
DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17)

dims = pytest.mark.parametrize("dim", DIMS)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
modes = pytest.mark.parametrize("deterministic", [False, True], ids=["fastest", "deterministic"])


@dims
@dtypes
def test_reads_are_exact(dim: int, dtype: str) -> None:
    kernel = read_kernel(dim)
    for draw in draws(dim, dtype, (*SIZES, MANY)):
        check_reads(kernel, draw)


@dims
@dtypes
@modes
def test_writes_are_exact(dim: int, dtype: str, deterministic: bool) -> None:
    kernel = write_kernel(dim, deterministic=deterministic)
    for draw in draws(dim, dtype, (*SIZES, MANY)):
        check_writes(kernel, draw)


@dims
@dtypes
@modes
def test_writes_in_the_order_of_an_index_are_exact(
    dim: int, dtype: str, deterministic: bool
) -> None:
    kernel = write_kernel(dim, ANY_ORDER, deterministic=deterministic)
    for draw in draws(dim, dtype, (*SIZES, MANY)):
        check_writes(kernel, draw, ANY_ORDER)


@caspar.kernel
def scatter(x: Annotated[sf.V2, caspar.ReadSequential]) -> Annotated[sf.V2, caspar.WriteIndexed]:
    """Each row to a place of its own."""
    return x


def test_indices_are_checked_on_the_device() -> None:
    values = cupy.zeros((1000, 2), cupy.float32)
    index = cupy.arange(1000, dtype=cupy.int32)
    index[700] = 1000
    with pytest.raises(caspar.errors.InputError, match="index 1000 at entry 700 is out of range"):
        caspar.SharedIndices(index, 1000)
    with pytest.raises(caspar.errors.InputError, match="index 1000 at entry 700 is out of range"):
        scatter(values, out={"index": index, "size": 1000})
    index[700] = 3
    with pytest.raises(caspar.errors.InputError, match="object 3 is named by more than one item"):
        scatter(values, out={"index": index, "size": 1000})
