"""Scalar types of values and arrays."""

from enum import Enum
from functools import cached_property

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
    """Float16 exists in memory only: kernels compute in the other types."""

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one scalar."""
        return {"float64": 8, "int64": 8, "uint16": 2, "float16": 2}.get(self.value, 4)

    @property
    def in_arrays(self) -> "DType":
        """Type of the arrays that hold it: of float16 they hold the bits."""
        return DType.UINT16 if self is DType.FLOAT16 else self

    @cached_property
    def chunk_length(self) -> int:
        """Scalars in one 16-byte chunk."""
        return CHUNK_BYTES // self.itemsize
