"""The tables that the factor instances of a live problem look values up in, each kept once.

Input: memory of tables as kernels read it. Output: numbers of tables, and one memory of them all.
Cost tier: a digest of each table that is passed, once for a call that adds instances; the memory
once after tables have come or gone.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.markers import Table

Numbers = NDArray[np.int64]
Memory = NDArray[Any]
"""Tables as kernels read them: float64, or the bits of float16."""


class TablePool:
    """The tables of an argument, all of one size.

    Args:
        title: Factor and argument, for errors.
        table: Their class.

    Attributes:
        version: Counts how often tables have come or gone.
    """

    def __init__(self, title: str, table: type[Table]) -> None:
        self.version = 0
        self._title, self._table = title, table
        self._tables: dict[bytes, Memory] = {}

    def numbers_of(self, tables: Memory) -> Numbers:
        """Keep (k, length) tables, unless they are here already; their numbers, (k,).

        Raises:
            InputError: They have another size than those that are here.
        """
        for known in self._tables.values():
            here, new = (tuple(self._table.sizes(one)) for one in (known, tables[0]))
            if here != new:
                raise InputError(
                    f"{self._title}: tables of {new} samples; those of earlier instances have "
                    f"{here}, and all tables of an argument have one size"
                )
            break
        keys = [hashlib.blake2b(table.tobytes(), digest_size=16).digest() for table in tables]
        for key, table in zip(keys, tables, strict=True):
            if key not in self._tables:
                self._tables[key] = table.copy()
                self.version += 1
        place = {key: number for number, key in enumerate(self._tables)}
        return np.array([place[key] for key in keys], np.int64)

    def keep(self, used: Numbers) -> Numbers:
        """Drop the tables that nothing names any more; the new number of each that is named."""
        named, numbers = np.unique(used, return_inverse=True)
        if len(named) < len(self._tables):
            every = list(self._tables.items())
            self._tables = dict(every[number] for number in named)
            self.version += 1
        return numbers.astype(np.int64)

    @property
    def tables(self) -> Memory:
        """(k, length), a copy."""
        return np.stack(list(self._tables.values())) if self._tables else np.zeros((0, 0))

    def starts(self, numbers: Numbers) -> NDArray[np.int32]:
        """Return where tables begin in the memory of all of them."""
        length = len(next(iter(self._tables.values()), ()))
        return (numbers * length).astype(np.int32)
