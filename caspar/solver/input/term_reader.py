"""Reading a factor's weights and the parameters of its loss.

Input: the user's arrays of the factor. Output: rows of constants, checked. Once for each solve.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from caspar.errors import InputError
from caspar.frontend.factors.loss import PREFIX, LossParameter
from caspar.frontend.factors.terms import term_names
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.memory.array import Array
from caspar.solver.input.array_reader import ArrayReader


class TermReader:
    """Reads what users pass of one factor besides its arguments.

    Args:
        arrays: Reads single arrays.
        factor: The factor.
        where: It, for errors.
    """

    def __init__(self, arrays: ArrayReader, factor: TracedFactor, where: str) -> None:
        self._arrays = arrays
        self._where = where
        self._names = term_names(factor)
        self._loss = factor.loss
        self._weight: Array | None = None
        self._num_ignored = 0
        self.by_instance: tuple[str, ...] = ()

    def check_names(self, given: Any) -> None:
        """Say of a name that belongs to a loss why it means nothing here.

        Raises:
            InputError: The factor has no loss, or one that does not depend on it.
        """
        if not isinstance(given, Mapping):
            return
        for name in given:
            if not str(name).startswith(PREFIX) or name in self._names:
                continue
            if self._loss is None:
                raise InputError(
                    f"{self._where}: {name!r} is given, but the factor has no loss; write "
                    "@caspar.factor(loss=...), or factor.with_loss(...), or leave it out"
                )
            known = ", ".join(one.source for one in self._loss.parameters)
            raise InputError(
                f"{self._where}: {name!r} is given, but its loss {self._loss.name} has {known} only"
            )

    def read_weight(self, given: Mapping[str, Any]) -> Array | None:
        """Read the weights, if there are any.

        Returns:
            (m,) booleans, True where an instance weighs nothing; None: all count.
        """
        if WEIGHT not in self._names or WEIGHT not in given:
            return None
        where = f"{self._where}, argument {WEIGHT}"
        if is_number(given[WEIGHT]):
            raise InputError(
                f"{where}: expected one weight for each instance, an array of shape (m,), got the "
                f"number {given[WEIGHT]!r}"
            )
        self._weight = rows = self._arrays.rows(where, given[WEIGHT], 1)
        if rows.shape[0] == 0:
            return None
        if float(rows.min()) < 0.0:
            raise InputError(f"{where}: {_first(rows, rows < 0.0)}; weights are 0 or more")
        ignored = rows[:, 0] == 0.0
        self._num_ignored = int(ignored.sum())
        return ignored if self._num_ignored > 0 else None

    def read(self, given: Mapping[str, Any], count: int) -> dict[str, Array]:
        """Rows of everything, by name: (count, 1), or (1, 1) of one number for all.

        Args:
            given: The user's arrays of the factor.
            count: Its instances.

        Raises:
            InputError: Names the factor and the argument, what is wrong, what is allowed.
        """
        read: dict[str, Array] = {}
        if self._weight is not None:
            self._check_length(WEIGHT, self._weight, count)
            read[WEIGHT] = self._weight
        for parameter in () if self._loss is None else self._loss.parameters:
            read[parameter.source] = self._parameter(parameter, given, count)
        self.by_instance = tuple(
            name
            for name, rows in read.items()
            if name == WEIGHT or not is_number(given.get(name, 1.0))
        )
        return read

    def num_counted(self, count: int) -> int:
        """Instances whose weight is not zero."""
        return count - self._num_ignored

    def _parameter(self, parameter: LossParameter, given: Mapping[str, Any], count: int) -> Array:
        name = parameter.source
        where = f"{self._where}, argument {name}"
        found = given.get(name, parameter.default)
        if found is None:
            raise InputError(
                f"{self._where}: {name!r} is missing; its loss needs a number, or one for each "
                "instance"
            )
        if is_number(found):
            # beside arrays on a device too
            rows = self._arrays.number(where, found)
        else:
            rows = self._arrays.rows(where, found, 1)
            self._check_length(name, rows, count)
        if parameter.is_positive and rows.shape[0] > 0 and not float(rows.min()) > 0.0:
            raise InputError(f"{where}: {_first(rows, rows <= 0.0)}; it must be greater than 0")
        return rows

    def _check_length(self, name: str, rows: Array, count: int) -> None:
        if int(rows.shape[0]) != count:
            also = "" if name == WEIGHT else "a number, or "
            raise InputError(
                f"{self._where}, argument {name}: has {int(rows.shape[0])} entries, but the factor "
                f"has {count} instances; pass {also}one for each instance"
            )


def is_number(given: Any) -> bool:
    """Return whether it is one number for all instances."""
    return isinstance(given, Real) or getattr(given, "ndim", None) == 0


def _first(rows: Array, bad: Array) -> str:
    """The first entry that is not allowed, in words."""
    entry = int(bad[:, 0].argmax())
    number = float(rows[entry, 0])
    return f"entry {entry} is {number:g}" if len(rows) > 1 else f"it is {number:g}"
