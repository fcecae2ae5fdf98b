"""`Recording`: the values of a solve, iteration by iteration, for a view with a slider.

Input: records of iterations, by `on_iteration`. Cost: a copy of all values for each accepted step,
on the host.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from caspar.solver.result.result import IterationRecord, on_host


class Recording:
    """Keeps the values of each accepted step: `solver.solve(arrays, on_iteration=recording)`.

    Use it for one solve; a second one is added behind the first.

    Attributes:
        records: Of the accepted steps, in order.
        values: For each of them the values by node type, NumPy arrays of their own.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> recording = caspar.Recording()
        >>> result = solver.solve({"Length": [[0.0]], "measured": values}, on_iteration=recording)
        >>> recording.values[-1]["Length"].round(3)
        array([[1.2]])
    """

    def __init__(self) -> None:
        self.records: list[IterationRecord] = []
        self.values: list[Mapping[str, NDArray[Any]]] = []

    def __call__(self, record: IterationRecord) -> None:
        """Keep the values, if they have moved."""
        if record.step_accepted:
            values = {name: on_host(array) for name, array in record.values().items()}
            self.records.append(replace(record, reader=None))
            self.values.append(values)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"Recording({len(self)} accepted steps)"
