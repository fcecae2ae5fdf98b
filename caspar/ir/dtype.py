"""Scalar types of values and arrays."""

from enum import Enum

CHUNK_BYTES = 16
"""Bytes of one vector access: the widest load or store of a CUDA thread."""


class DType(Enum):
    """A scalar type; the value is its NumPy name."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"
    UINT16 = "uint16"
    FLOAT16 = "float16"
    """In memory only: kernels compute in the others."""

    def __init__(self, name: str) -> None:
        self.itemsize = {"float64": 8, "int64": 8, "uint16": 2, "float16": 2}.get(name, 4)
        """Bytes of one scalar."""

    @property
    def in_arrays(self) -> "DType":
        """Type of the arrays that hold it: of float16 they hold the bits."""
        return DType.UINT16 if self is DType.FLOAT16 else self

    @property
    def chunk_length(self) -> int:
        """Scalars in one 16-byte chunk."""
        return CHUNK_BYTES // self.itemsize
