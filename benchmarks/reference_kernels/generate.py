"""Declare the reference's kernels, generate and build them.

`python -m benchmarks.reference_kernels.generate DIRECTORY`, with the options of
`benchmarks.reference.generate`. The arithmetic is 2 x + 1 everywhere: what is timed is memory.
"""

from collections.abc import Callable
from typing import Annotated, Any

from benchmarks.reference.build import Precision
from benchmarks.reference.generate import EPSILON, main
from benchmarks.reference_kernels.tasks import COPY_DIMS, SHARED_DIM


def kernels_library(precision: Precision) -> Any:
    """Return the reference's library object with the kernels that `reference` calls.

    The conversions between rows and its layout come with the types of the arguments. SymForce is
    imported inside, as its epsilon must be set before.
    """
    import symforce

    symforce.set_epsilon_to_number(EPSILON[precision])
    from symforce.caspar import CasparLibrary
    from symforce.caspar import memory as mem
    from symforce.geo.matrix import matrix_type_from_shape

    dtypes = {Precision.FLOAT32: mem.DType.FLOAT, Precision.FLOAT64: mem.DType.DOUBLE}
    library = CasparLibrary(dtype=dtypes[precision])
    shared = matrix_type_from_shape((SHARED_DIM, 1))
    kernels = [
        (f"read_add_{SHARED_DIM}", shared, mem.ReadShared, mem.AddSharedSum),
        (f"add_{SHARED_DIM}", shared, mem.ReadSequential, mem.AddSharedSum),
        (f"read_{SHARED_DIM}", shared, mem.ReadShared, mem.WriteSequential),
    ]
    kernels += [
        (
            f"copy_{dim}",
            matrix_type_from_shape((dim, 1)),
            mem.ReadSequential,
            mem.WriteSequential,
        )
        for dim in COPY_DIMS
    ]
    for name, vector, read, write in kernels:
        library.add_kernel(_function(name, vector, read, write))
    return library


def _function(name: str, vector: Any, read: Any, write: Any) -> Callable[..., Any]:
    def kernel(source: Any) -> Any:
        return 2 * source + vector.one()

    kernel.__name__ = name
    kernel.__annotations__ = {"source": Annotated[vector, read], "return": Annotated[vector, write]}
    return kernel


if __name__ == "__main__":
    main(kernels_library)
