"""Check what a user passes to `Solver`; factors, node types and choices become a `Recipe`.

Cost tier: once for a solver; tracing takes most of it.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, TypeVar

from caspar.equations.solver_form import elimination_refusal
from caspar.errors import FactorError, OptionError
from caspar.frontend.factors.factor import (
    ConstraintKind,
    Factor,
    constraint_kinds,
    refuse_constraints,
)
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.symbolic.field_types import storage_fields
from caspar.options import (
    DEFAULT_INNER_ITERATIONS,
    MAX_INNER_ITERATIONS,
    BackendChoice,
    JacobianChoice,
    LinearSolverChoice,
    Precision,
    checked_count,
    checked_flag,
    choice,
)
from caspar.solver.choice.form import ELIMINATES_NOTHING, Recipe, usual_precision
from caspar.solver.limits import Limits
from caspar.tracing import traced_factor

Kind = TypeVar("Kind", bound="Remade")


def make_recipe(
    factors: Sequence[Factor],
    *,
    precision: str | Precision = "auto",
    linear_solver: str | LinearSolverChoice = "auto",
    jacobian: str | JacobianChoice = "auto",
    deterministic: bool = False,
    inner_iterations: int = DEFAULT_INNER_ITERATIONS,
    limits: Limits | None = None,
    eliminate: Sequence[str] | None = None,
) -> Recipe:
    """Trace the factors and check the choices; see `Solver` for the arguments."""
    wanted = None if is_auto(precision) else choice(Precision, "precision", precision, ("auto",))
    linear: LinearSolverChoice = choice(LinearSolverChoice, "linear_solver", linear_solver)
    stored: JacobianChoice = choice(JacobianChoice, "jacobian", jacobian)
    if linear is LinearSolverChoice.QR:
        if wanted not in (None, Precision.FLOAT64) or stored is JacobianChoice.FLOAT16:
            raise OptionError(
                f"linear_solver='qr' with precision={precision!r}, jacobian={jacobian!r}: QR needs "
                "Jacobians in float64; leave both at 'auto', or pass precision='float64'"
            )
        wanted = Precision.FLOAT64
    if limits is not None and not isinstance(limits, Limits):
        raise OptionError(f"limits={limits!r}: must be a caspar.solver.limits.Limits, or None")
    traced = tuple(traced_factor(factor) for factor in factors)
    nodes = _node_types(traced)
    sizes = Limits() if limits is None else limits
    return Recipe(
        traced,
        nodes,
        usual_precision(traced, nodes, sizes).of(None) if wanted is None else wanted,
        linear,
        stored,
        checked_flag("deterministic", deterministic),
        checked_count("inner_iterations", inner_iterations, 0, MAX_INNER_ITERATIONS),
        sizes,
        None if eliminate is None else _checked_elimination(eliminate, traced, nodes, linear),
    )


def _checked_elimination(
    given: Sequence[str],
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    linear_solver: LinearSolverChoice,
) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise OptionError(
            f"eliminate={given!r}: must be a sequence of names of node types, such as "
            f"({nodes[0].name!r},), or () to eliminate nothing, or None"
        )
    names = tuple(given)
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            raise OptionError(
                f"eliminate={given!r}: {name!r} is no node type; these are {', '.join(known)}"
            )
    refusal = elimination_refusal(factors, nodes, names) if len(names) > 0 else ""
    if refusal:
        raise OptionError(f"eliminate={given!r}: {refusal}")
    solves_all = linear_solver in ELIMINATES_NOTHING
    solves_reduced = linear_solver in (LinearSolverChoice.SCHUR_PCG, LinearSolverChoice.SCHUR_DENSE)
    if (len(names) > 0 and solves_all) or (len(names) == 0 and solves_reduced):
        what = "eliminates nothing" if solves_all else "needs a node type that is eliminated"
        raise OptionError(
            f"eliminate={given!r}: linear_solver={linear_solver.value!r} {what}; leave one of the "
            "two at its default"
        )
    return names


def value_fields(nodes: Sequence[NodeType]) -> dict[str, dict[str, range]]:
    """Return, by node type, the range of each field of its dataclass in a row of its values."""
    return {node.name: storage_fields(node.python_type) for node in nodes}


def is_auto(given: Any) -> bool:
    """Return whether a user leaves a choice open."""
    return isinstance(given, str) and given == "auto"


def checked_factors(
    factors: Sequence[Factor] | Factor, *, without_constraints: str = ""
) -> tuple[Factor, ...]:
    """The factors as a tuple, if they are factors with names of their own."""
    if isinstance(factors, Factor):
        factors = [factors]
    if not isinstance(factors, Sequence):
        raise FactorError(f"Solver needs a factor or a sequence of factors, got {factors!r}")
    if len(factors) == 0:
        raise FactorError("Solver needs at least one factor")
    for factor in factors:
        if not isinstance(factor, Factor):
            raise FactorError(
                f"Solver needs factors, got {factor!r}: decorate the function with caspar.factor"
            )
    names = [factor.name for factor in factors]
    for name in names:
        if names.count(name) > 1:
            raise FactorError(
                f"two factors are named {name!r}; arrays are passed by name, so rename one of them"
            )
    if without_constraints != "":
        refuse_constraints(factors, without_constraints)
    return tuple(factors)


def _place(python_type: type) -> str:
    return f"{python_type.__module__}.{python_type.__qualname__}"


def _node_types(factors: Sequence[TracedFactor]) -> tuple[NodeType, ...]:
    found: dict[str, NodeType] = {}
    names = {factor.name for factor in factors}
    for factor in factors:
        for argument in factor.nodes:
            node = argument.node_type
            known = found.setdefault(node.name, node)
            if known.python_type is not node.python_type:
                raise FactorError(
                    f"factor {factor.name}, argument {argument.source}: two node types are named "
                    f"{node.name!r}, {_place(known.python_type)} and {_place(node.python_type)}; "
                    "arrays are passed by name, so give one of the classes another name, for "
                    "example by a subclass"
                )
            if node.name in names:
                raise FactorError(
                    f"{node.name!r} names a factor and a node type; arrays are passed by name, "
                    "so rename one of them"
                )
    return tuple(found.values())


def as_traced(given: Sequence[Factor], factors: Sequence[TracedFactor]) -> tuple[Factor, ...]:
    """Factors that are not traced again."""
    copies = tuple(replace(factor) for factor in given)
    for factor, traced in zip(copies, factors, strict=True):
        object.__setattr__(factor, "traced", traced)
    return copies


class Remade:
    """Copied and pickled as its factors and choices; a pickle's are traced where it arrives."""

    _given: Sequence[Factor]
    _choices: Mapping[str, Any]
    _factors: tuple[TracedFactor, ...]

    @property
    def traced_factors(self) -> tuple[Any, ...]:
        """All factors as expressions, each a `TracedFactor`: for what draws or reports."""
        return self._factors

    @property
    def constraint_kinds(self) -> dict[str, ConstraintKind]:
        """Return the kind of each constraint, by name."""
        return constraint_kinds(self._given)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as its factors and choices; traced and compiled where it arrives."""
        if not isinstance(self._choices["backend"], str | BackendChoice):
            raise pickle.PicklingError(
                f"a {type(self).__name__} with the backend object {self._choices['backend']!r} "
                "cannot be pickled: a backend belongs to its process. Make the solver with "
                "backend='auto', 'cuda' or 'cpu'"
            )
        return _remade, (type(self), self._given, self._choices)

    def __copy__(self: Kind) -> Kind:
        """A solver of the same factors and choices, with memory of its own.

        It solves the same problem, also if what a factor reads, such as a variable, has changed.
        """
        made = _remade(type(self), as_traced(self._given, self._factors), self._choices)
        made._given = self._given
        return made

    def __deepcopy__(self: Kind, memo: object) -> Kind:
        return self.__copy__()


def _remade(kind: type[Kind], factors: Sequence[Factor], choices: Mapping[str, Any]) -> Kind:
    return kind(factors, **choices)  # type: ignore[call-arg]
