"""CUTEst's sums of squares and systems of equations, from the package sif2jax.

NIST's regressions are left out: they are a suite of their own.
"""

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.regression.problem import Array, Problem

NIST = (
    *("BENNETT5", "BOXBOD", "DANIWOOD", "ECKERLE4", "ENSO", "GAUSS1", "GAUSS2", "GAUSS3", "KIRBY2"),
    *("LANCZOS1", "LANCZOS2", "LANCZOS3", "MGH09", "MGH10", "MGH17", "MISRA1A", "MISRA1B"),
    *("MISRA1C", "MISRA1D", "NELSON", "RAT42", "RAT43"),
)

OBJECTIVES = (
    *("BIGGS6", "CHWIRUT1LS", "EXP2B", "FBRAINLS", "GAUSSIAN", "GULF", "HAHN1LS", "HATFLDFL"),
    *("HEART8LS", "HS25", "PALMER1C", "PALMER2C", "PRICE3", "S308", "SANTALS", "WATSON"),
)
"""Minimisations whose objective is written as a sum of squares: not all that there are."""

MAX_UNKNOWNS = 300
MAX_RESIDUALS = 2500
MAX_OPERATIONS = 3000
"""In the residuals of one instance of each kind. What has more would take minutes to compile."""

MAX_TAKEN = 60
"""Unknowns in one residual, where each is a node."""

SIZES = (50, 10)
"""Problems of adjustable size with more unknowns are made so large."""

SAME_COST = 1e-4
"""Relative distance from the least sum of squares that anyone reaches."""


def has_sif2jax() -> bool:
    """Whether the collection can be imported."""
    return importlib.util.find_spec("sif2jax") is not None


def problems() -> tuple[list[Problem], Counter[str]]:
    """The problems that can be translated, and for the others how often each reason occurs."""
    import jax

    from benchmarks.regression.translate import UntranslatableError

    jax.config.update("jax_enable_x64", True)
    found, reasons = [], Counter[str]()
    for source in _sources():
        try:
            found.append(_problem(source))
        except UntranslatableError as error:
            reasons[str(error)] += 1
    return found, reasons


def _sources() -> Iterator[Any]:
    """Problems of sif2jax, sorted by name."""
    cutest = importlib.import_module("sif2jax.cutest")
    bounded, free = cutest.bounded_minimisation_problems, cutest.unconstrained_minimisation_problems
    chosen = {one.name: one for one in (*bounded, *free) if one.name in OBJECTIVES}
    chosen |= {one.name: one for one in cutest.nonlinear_equations_problems}
    return (chosen[name] for name in sorted(chosen) if name not in NIST)


def _problem(source: Any) -> Problem:
    """A problem of sif2jax as one of ours."""
    import jax

    from benchmarks.regression import translate

    source, start = _of_size(source)
    function, bounds = _function(source), _bounds(source)
    if bounds is not None:
        function, start, bounds = _without_fixed(function, np.clip(start, *bounds), bounds)
    if jax.eval_shape(function, start).size > MAX_RESIDUALS:
        raise translate.UntranslatableError(f"more than {MAX_RESIDUALS} residuals")
    rows = translate.trace(function, len(start))
    if source.name in OBJECTIVES:
        rows = translate.squares_of(rows[0])
    if translate.num_operations(rows) > MAX_OPERATIONS:
        raise translate.UntranslatableError(f"more than {MAX_OPERATIONS} operations")
    kinds = translate.kinds_of(rows, len(start))
    if len(kinds) == 0:
        raise translate.UntranslatableError("no residuals")
    if any(kind.unknowns is not None and kind.unknowns.shape[1] > MAX_TAKEN for kind in kinds):
        raise translate.UntranslatableError(f"more than {MAX_TAKEN} unknowns in a residual")
    return Problem(
        name=source.name,
        kinds=kinds,
        starts=(tuple(start.tolist()),),
        minimum=np.inf,
        bounds=bounds,
        same_minimum=SAME_COST,
    )


def _flat(values: Any) -> Array:
    from jax.flatten_util import ravel_pytree

    return np.array(ravel_pytree(values)[0], np.float64)


def _of_size(source: Any) -> tuple[Any, Array]:
    """The problem with few enough unknowns, and its start."""
    import jax

    from benchmarks.regression.translate import UntranslatableError

    start = _flat(source.y0)
    if len(start) <= MAX_UNKNOWNS:
        return source, start
    for field in ("n", "N", "p", "m"):
        for size in SIZES if isinstance(getattr(source, field, None), int) else ():
            try:
                smaller = _resized(source, field, size)
                start = _flat(smaller.y0)
                jax.eval_shape(_function(smaller), start)
            except (TypeError, ValueError, IndexError, ZeroDivisionError):
                continue  # another of its numbers has to fit
            if len(start) <= MAX_UNKNOWNS:
                return smaller, start
    raise UntranslatableError(f"more than {MAX_UNKNOWNS} unknowns")


def _resized(source: Any, field: str, size: int) -> Any:
    """The problem with another number in a field, which may be a property."""
    kind = type(source)
    if field in kind.__dataclass_fields__:
        return kind(**{field: size})
    fixed = property(lambda _: size)
    return type(kind.__name__, (kind,), {field: fixed})()


def _function(source: Any) -> Callable[[Any], Any]:
    """The equations, or the objective in a vector of one, as a function of a vector."""
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    restore = ravel_pytree(source.y0)[1]
    if source.name in OBJECTIVES:
        return lambda x: jnp.atleast_1d(source.objective(restore(x), source.args))
    return lambda x: ravel_pytree(source.constraint(restore(x))[0])[0]


def _without_fixed(
    function: Callable[[Any], Any], start: Array, bounds: tuple[Array, Array]
) -> tuple[Callable[[Any], Any], Array, tuple[Array, Array]]:
    """The same of the unknowns whose bounds differ: SciPy takes no others."""
    import jax.numpy as jnp

    lower, upper = bounds
    free = np.flatnonzero(lower < upper)
    held = jnp.asarray(start)
    return lambda x: function(held.at[free].set(x)), start[free], (lower[free], upper[free])


def _bounds(source: Any) -> tuple[Array, Array] | None:
    if getattr(source, "bounds", None) is None:
        return None
    lower, upper = (_flat(one) for one in source.bounds)
    lower, upper = np.where(lower <= -1e19, -np.inf, lower), np.where(upper >= 1e19, np.inf, upper)
    return (lower, upper) if np.isfinite(lower).any() or np.isfinite(upper).any() else None
