"""Scalar types of values and arrays."""

from enum import Enum

CHUNK_BYTES = 16
"""Bytes of one vector access: the widest load or store of a CUDA thread."""


class DType(Enum):
    """A scalar type; the value is its NumPy name."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    UINT16 = "uint16"

    @property
    def itemsize(self) -> int:
        """Bytes of one scalar."""
        return {"float32": 4, "float64": 8, "int32": 4, "uint16": 2}[self.value]

    @property
    def chunk_length(self) -> int:
        """Scalars in one 16-byte chunk."""
        return CHUNK_BYTES // self.itemsize
