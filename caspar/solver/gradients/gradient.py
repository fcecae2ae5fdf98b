"""The result of `Solver.gradient`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caspar.solver.result.by_name import ByName


@dataclass(frozen=True, eq=False)
class Gradient:
    """Derivatives of a loss function of a solve's values by what the solve was given.

    `gradient["edge"]["measured"]` has the shape of that argument, of an indexed one that of its
    values. `gradient["Pose"]` has the shape of the start values: zero for what moves, as a minimum
    does not depend on where a solve starts, and not zero for what is held. Of a part that must have
    unit length, such as a rotation, it is the derivative along the unit sphere.

    Arrays are float64, of the kind that the values were given as.

    Attributes:
        hessian: `exact` or `gauss_newton`.
        damping: What was added to the diagonal of a singular Hessian, relative to it; 0: nothing.
        remarks: What limits the meaning of the numbers, with advice; empty if nothing does.
        arrays: What `gradient[name]` returns, by the names of node types and factors.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]], "weight": [1.0, 1.0]}
        >>> result = solver.solve({"Length": [[0.0]], "measured": values})
        >>> gradient = solver.gradient(result, {"Length": [[1.0]]})
        >>> gradient["measured"]["weight"].round(3)
        array([-0.125, 0.125])
    """

    hessian: str
    damping: float
    remarks: tuple[str, ...]
    arrays: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        arrays = {
            name: ByName(part, f"array of {name}") if isinstance(part, Mapping) else part
            for name, part in self.arrays.items()
        }
        object.__setattr__(self, "arrays", ByName(arrays, "node type or factor"))

    def __getitem__(self, name: str) -> Any:
        """Return the array of a node type, or a mapping from a factor's arguments to arrays.

        A factor's mapping has its constant arguments, `weight` if one was given, and the parameters
        of its loss.

        Raises:
            UnknownNameError: There is no such node type or factor.
        """
        return self.arrays[name]
