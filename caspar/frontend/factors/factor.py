"""The decorators `factor` and `constraint`: residual functions with the names that tracing needs.

What a factor returns costs half of its square; what a constraint returns must be zero, or not
negative. Given arrays alike, both are traced when a solver is made.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, SupportsIndex, overload

import caspar
from caspar.errors import FactorError
from caspar.frontend.factors.loss import Loss, checked_loss
from caspar.frontend.symbolic.lines import locals_of
from caspar.frontend.tracing.signature import UserFunction
from caspar.options import choice


@dataclass(frozen=True, repr=False)
class Factor(UserFunction):
    """A residual function. Calling it calls the function.

    Attributes:
        function: Maps symbolic arguments to a residual (a SymForce column vector).
        name: The function's name; arrays are passed under it.
        local_names: Names visible where the function was defined, for postponed annotations.
        loss: A `caspar.loss.Loss`, or a class of them: what the squared residual of an instance
            costs. None: what it is.
        base: The factor that `with_loss` was called on; None: it was not.
        traced: The factor as a solver has traced it, for copies of that solver; None: it is traced
            when a solver is made.
        found: What `caspar.tracing` keeps of it for the next solver.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> distance = caspar.factors.range(sf.V2, sf.V2, noise="unit")
        >>> distance.function(sf.V2(0, 0), sf.V2(3, 4), sf.V1(4.5))  # also runs on numbers
        [0.5]
        <BLANKLINE>
    """

    loss: Loss | type[Loss] | None = None
    base: "Factor | None" = field(default=None, repr=False, compare=False)
    traced: Any = field(default=None, init=False, repr=False, compare=False)
    found: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    kind: ClassVar[str] = "factor"
    error: ClassVar[type[FactorError]] = FactorError
    example: ClassVar[str] = "Annotated[Point, caspar.TunableShared]"

    def __post_init__(self) -> None:
        """Refuse a name that cannot be one, and what is no loss, with the one that may be meant."""
        super().__post_init__()
        if self.loss is not None:
            checked_loss(self.loss, f"factor {self.name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the residual function as it was written."""
        return self.function(*args, **kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as functions are, by module and name; a `PicklingError` if it is not there."""
        if self.base is not None:
            return Factor.with_loss, (self.base, self.loss)
        return self.pickled(self)

    def __copy__(self) -> "Factor":
        """Return itself, as a copy of a function does."""
        return self

    def __deepcopy__(self, memo: object) -> "Factor":
        """Return itself, as a copy of a function does."""
        return self

    def with_loss(self, loss: Loss | type[Loss] | None) -> "Factor":
        """The same factor with another loss; its arrays are passed under the same name.

        Args:
            loss: A class of `caspar.loss`, or one of your own that is derived from
                `caspar.loss.Loss`. None: no loss.

        Raises:
            FactorError: It is no loss.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
            >>> solver = caspar.Solver(measured.with_loss(caspar.loss.Huber))
            >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [9.0]], "loss_scale": 1.0}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> result.values["Length"].round(3)
            array([[1.55]])
        """
        base = self if self.base is None else self.base
        return Factor(self.function, self.name, self.local_names, loss, base)

    def inspect(
        self, precision: str = "mixed", target: str = "cuda", arch: str = "sm_90"
    ) -> "caspar.inspect.FactorInspection":
        """Every kernel this factor is compiled to, at every stage; no GPU is needed.

        Args:
            precision: `mixed`, `float32` or `float64`.
            target: `cuda` or `cpu`.
            arch: Architecture of machine code.

        Raises:
            FactorError: The factor cannot be traced.
            OptionError: A choice that does not exist.
        """
        return caspar.inspect.inspect_factor(self, precision, target, arch)


_MISSING: Any = object()


@overload
def factor(function: Callable[..., Any], /) -> Factor: ...


@overload
def factor(*, loss: Loss | type[Loss] | None = None) -> Callable[[Callable[..., Any]], Factor]: ...


def factor(
    function: Callable[..., Any] = _MISSING, *, loss: Loss | type[Loss] | None = None
) -> Factor | Callable[[Callable[..., Any]], Factor]:
    """Turn a residual function into a factor: `@caspar.factor`, or `@caspar.factor(loss=...)`.

    Every argument is annotated `Annotated[Type, Marker]`, where the type is a SymForce type, a
    subclass of one, or a dataclass of them, and the marker says how factors map to instances
    (see `caspar.frontend.markers`). The function returns a SymForce column vector. It is traced
    when a `Solver` is made, unless it was before and everything that it reads is as it was: it runs
    on symbols, and, unless the cache knows it, some twenty times more to be compared with itself on
    numbers.

    Args:
        function: The residual function.
        loss: What the squared residual of an instance costs: a class of `caspar.loss`, such as
            `caspar.loss.Huber`, or one of your own. Its scale is passed with the arrays, as
            `loss_scale`. None: what it is.

    Raises:
        FactorError: The argument is not a plain function, or `loss` is no loss.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Line(sf.V2): ...
        >>> @caspar.factor
        ... def on_line(line: Annotated[Line, caspar.TunableUnique],
        ...             x: Annotated[sf.Scalar, caspar.ConstSequential],
        ...             y: Annotated[sf.Scalar, caspar.ConstSequential]) -> sf.V1:
        ...     return sf.V1(line[0] * x + line[1] - y)
        >>> samples = {"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}
        >>> result = caspar.Solver(on_line).solve({"Line": [[0.0, 0.0]], "on_line": samples})
        >>> result.values["Line"].round(3)
        array([[2., 1.]])
    """
    local_names = dict(locals_of(sys._getframe(1)))

    def decorate(decorated: Callable[..., Any]) -> Factor:
        if not inspect.isfunction(decorated):
            raise FactorError(
                f"caspar.factor needs a function, got {decorated!r}: write it with def, "
                "its arguments annotated Annotated[Type, Marker]"
            )
        return Factor(decorated, decorated.__name__, local_names, loss)

    return decorate if function is _MISSING else decorate(function)


class ConstraintKind(Enum):
    """Condition on each entry c of a constraint's vector.

    ZERO: c = 0.
    POSITIVE: c >= 0.
    """

    ZERO = "zero"
    POSITIVE = "positive"


@dataclass(frozen=True, repr=False)
class Constraint(Factor):
    """A constraint between unknowns. Calling it calls the function.

    Attributes:
        must_be: What must hold of each entry.
    """

    must_be: ConstraintKind = ConstraintKind.ZERO
    kind: ClassVar[str] = "constraint"

    def with_loss(self, loss: Loss | type[Loss] | None) -> Factor:
        """Refuse: a constraint must hold exactly, so it has no loss.

        Raises:
            FactorError: Always.
        """
        raise FactorError(f"constraint {self.name}: a constraint holds exactly and has no loss")


def constraint(*, kind: str | ConstraintKind) -> Callable[[Callable[..., Any]], Constraint]:
    """Turn a residual function into a constraint: `@caspar.constraint(kind="zero")`.

    The function is annotated and written as that of `caspar.factor`, and its arrays are passed in
    the same way. A `Solver` lowers the cost of its factors over values that meet all constraints.
    Docs: `docs/guide/constraints.md`.

    Args:
        kind: `zero`: every entry of the vector that the function returns must be 0. `positive`:
            every entry must be at least 0.

    Raises:
        FactorError: The argument is not a plain function.
        OptionError: An unknown kind.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Spot(sf.V2): ...
        >>> @caspar.constraint(kind="zero")
        ... def on_circle(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V1:
        ...     return sf.V1(spot.squared_norm() - 25)
        >>> near = caspar.factors.prior(Spot, noise="unit", name="near")
        >>> arrays = {"Spot": [[6.0, 8.0]], "on_circle": {"spot": [0]},
        ...           "near": {"value": [0], "expected": [[6.0, 8.0]]}}
        >>> caspar.Solver([near, on_circle]).solve(arrays).values["Spot"].round(3)
        array([[3., 4.]])
    """
    local_names = dict(locals_of(sys._getframe(1)))
    must_be: ConstraintKind = choice(ConstraintKind, "kind", kind)

    def decorate(decorated: Callable[..., Any]) -> Constraint:
        if not inspect.isfunction(decorated):
            raise FactorError(
                f"caspar.constraint needs a function, got {decorated!r}: write it with def, "
                "its arguments annotated Annotated[Type, Marker]"
            )
        return Constraint(decorated, decorated.__name__, local_names, must_be=must_be)

    return decorate


def constraint_kinds(factors: Sequence[Factor]) -> dict[str, ConstraintKind]:
    """Return the kind of each constraint among some factors, by name."""
    return {one.name: one.must_be for one in factors if isinstance(one, Constraint)}


def refuse_constraints(factors: Sequence[Factor], what: str) -> None:
    """Refuse constraints because `what` does not take them: a `FactorError` that names them."""
    names = ", ".join(constraint_kinds(factors))
    if names != "":
        raise FactorError(
            f"{what} does not take constraints yet: {names}. Use a Solver in one process"
        )
