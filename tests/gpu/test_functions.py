"""Every op, every function and the Lie group formulas on a device, against the truth.

One run tells everything: what is wrong is collected first, and the worst result of every op is in
the message, and printed (`pytest -s`) when all is well.
"""

import pytest

from caspar.codegen.cuda.kernel import generate_cuda
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.runtime.backend import Backend
from tests import support_functions as functions
from tests import support_groups as groups
from tests import support_jets as jets
from tests.support_op_truth import worst_results
from tests.support_ops import every_op, nasty, run_rows

pytestmark = pytest.mark.gpu

DTYPES = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


@pytest.fixture(scope="module")
def backend() -> Backend:
    cuda = pytest.importorskip("caspar.runtime.cuda.backend")
    made: Backend = cuda.CudaBackend()
    return made


@DTYPES
def test_ops(backend: Backend, dtype: DType) -> None:
    columns, rows = every_op(dtype), nasty(dtype)
    source = generate_cuda(columns.spec, columns.program)
    results = run_rows(backend, columns.spec, source, rows)
    is_single = dtype is DType.FLOAT32
    worst = worst_results(columns, rows, results, 2 if is_single else 3, flushes=is_single)
    table = "\n".join(map(str, sorted(worst, key=lambda entry: not entry.is_too_far)))
    print(f"{dtype.value}:\n{table}")
    assert not any(entry.is_too_far for entry in worst), f"{dtype.value}:\n{table}"


@DTYPES
def test_functions(backend: Backend, dtype: DType) -> None:
    spec, rows = functions.function_kernel(dtype), functions.points(dtype)
    found = run_rows(backend, spec, compile_kernel(spec, TARGETS["cuda"]), rows)
    wrong = jets.too_far(rows, found, jets.truth(rows), jets.CUDA_ROUNDINGS)
    assert not wrong, "\n".join([f"{len(wrong)} in {dtype.value}:", *wrong])


@DTYPES
def test_lie_groups(backend: Backend, dtype: DType) -> None:
    wrong = []
    for kind in groups.KINDS:
        spec, blocks = groups.group_kernel(kind, dtype)
        rows = groups.elements(kind, dtype)
        found = run_rows(backend, spec, compile_kernel(spec, TARGETS["cuda"]), rows)
        wrong += groups.too_far(spec, blocks, rows, found)
    assert not wrong, "\n".join([f"{len(wrong)} in {dtype.value}:", *wrong])
