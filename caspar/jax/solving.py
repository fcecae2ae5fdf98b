"""`solve` by `jax.custom_vjp`.

Input: a solver and its arrays, traced or not. Output: JAX arrays. Solves and their derivatives,
those of `Solver.gradient`, run in `jax.pure_callback`, that is, from the host; there are no second
derivatives and no forward mode. Cost tier: once for a solve and its backward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from caspar.arrays.trees import Path, leaf_at, leaves, with_leaves
from caspar.batch.result import BatchResult
from caspar.batch.solver import BatchSolver
from caspar.errors import InputError
from caspar.solver.input.factor_arrays import with_bare_factors
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver
from caspar.user_warnings import warn_user


def solve(
    solver: Solver | BatchSolver,
    arrays: Mapping[str, Any],
    *,
    fixed: Mapping[str, Any] | None = None,
    bounds: Mapping[str, Any] | None = None,
    hessian: str = "auto",
    on_result: Callable[[SolveResult | BatchResult], object] | None = None,
    **options: Any,
) -> dict[str, jax.Array]:
    """Solve, and return values that `jax.grad` can derive by the arrays.

    Args:
        solver: A `caspar.Solver` or a `caspar.BatchSolver`.
        arrays: As for its `solve`. JAX arrays, traced ones too, and NumPy arrays are arguments of
            the function; numbers and lists are part of it. What JAX does not keep from changing is
            copied, so that it may be written to before the backward pass.
        fixed: As for its `solve`; not traced.
        bounds: Likewise.
        hessian: As for `Solver.gradient`.
        on_result: Called with the result of each solve, for its status and costs.
        **options: As for its `solve`.

    Returns:
        By node type its values, of the shape and dtype of its start values.

    Raises:
        CasparError: As `solve` and `gradient`; within `jax.jit` as an error of JAX's that names it.

    Warns:
        UserWarning: In the backward pass, what `Gradient.remarks` says, such as a singular Hessian.

    Example:
        >>> import caspar
        >>> import caspar.jax
        >>> import jax
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> def length(expected):
        ...     arrays = {"Length": [[0.0]], "measured": {"value": [0, 0], "expected": expected}}
        ...     return caspar.jax.solve(solver, arrays)["Length"][0, 0]
        >>> gradient = jax.grad(length)(jax.numpy.array([[1.0], [1.5]]))
        >>> [round(float(number), 3) for number in gradient.ravel()]
        [0.5, 0.5]
    """
    if not isinstance(solver, Solver | BatchSolver):
        raise InputError(
            f"caspar.jax.solve: solver is a {type(solver).__name__}; pass a caspar.Solver or a "
            "caspar.BatchSolver, such as caspar.Solver([residual])"
        )
    arrays = with_bare_factors(arrays, solver.traced_factors)
    tree = {
        path: leaf if isinstance(leaf, jax.Array) else deepcopy(leaf)
        for path, leaf in leaves(arrays).items()
    }
    arrays = with_leaves(arrays, tree)
    fixed, bounds = deepcopy(fixed), deepcopy(bounds)
    paths = [path for path, leaf in tree.items() if isinstance(leaf, jax.Array | np.ndarray)]
    call = _Call(solver, arrays, paths, hessian, on_result, fixed, bounds, options)

    def solved(*parts: Any) -> tuple[jax.Array, ...]:
        return call.solved(parts)

    def forward(*parts: Any) -> tuple[tuple[jax.Array, ...], Any]:
        values = call.solved(parts)
        return values, (parts, values)

    def backward(kept: Any, cotangents: Sequence[jax.Array]) -> tuple[Any, ...]:
        parts, values = kept
        return call.derived(parts, values, cotangents)

    derivable = jax.custom_vjp(solved)
    derivable.defvjp(forward, backward)
    return dict(zip(call.names, derivable(*(tree[path] for path in paths)), strict=True))


@dataclass(frozen=True)
class _Call:
    """The arguments of a solve.

    Attributes:
        paths: Paths of the arrays in `arrays`.
    """

    solver: Any
    arrays: Mapping[str, Any]
    paths: Sequence[Path]
    hessian: str
    on_result: Callable[[Any], object] | None
    fixed: Mapping[str, Any] | None
    bounds: Mapping[str, Any] | None
    options: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Node types: what is no mapping is theirs."""
        return [name for name, part in self.arrays.items() if not isinstance(part, Mapping)]

    def _filled(self, parts: Sequence[Any]) -> dict[str, Any]:
        """The arrays, with numbers in place of traced ones."""
        numbers = map(np.asarray, parts)
        return with_leaves(self.arrays, dict(zip(self.paths, numbers, strict=True)))

    def solved(self, parts: Sequence[Any]) -> tuple[jax.Array, ...]:
        """The values, one array for each node type."""

        def on_host(*parts: Any) -> tuple[Any, ...]:
            arrays = self._filled(parts)
            result = self.solver.solve(arrays, fixed=self.fixed, bounds=self.bounds, **self.options)
            if self.on_result is not None:
                self.on_result(result)
            return tuple(
                np.asarray(result.values[name], one.dtype).reshape(one.shape)
                for name, one in zip(self.names, shapes, strict=True)
            )

        filled = with_leaves(self.arrays, dict(zip(self.paths, parts, strict=True)))
        shapes = [_shape(filled[name]) for name in self.names]
        found: tuple[jax.Array, ...] = jax.pure_callback(
            on_host, tuple(shapes), *parts, vmap_method="sequential"
        )
        return found

    def derived(
        self, parts: Sequence[Any], values: Sequence[Any], cotangents: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Derivatives by the arguments; integers have none."""
        floating = [
            number for number, part in enumerate(parts) if np.issubdtype(part.dtype, np.floating)
        ]

        def on_host(parts: Any, values: Any, cotangents: Any) -> tuple[Any, ...]:
            arrays = self._filled(parts)
            arrays |= zip(self.names, map(np.asarray, values), strict=True)
            found = self.solver.gradient(
                arrays,
                dict(zip(self.names, map(np.asarray, cotangents), strict=True)),
                fixed=self.fixed,
                bounds=self.bounds,
                hessian=self.hessian,
            )
            for remark in found.remarks:
                warn_user(f"caspar.jax.solve: {remark}")
            chosen = [leaf_at(found.arrays, self.paths[number]) for number in floating]
            return tuple(
                np.asarray(array, one.dtype).reshape(one.shape)
                for array, one in zip(chosen, shapes, strict=True)
            )

        shapes = [_shape(parts[number]) for number in floating]
        found = jax.pure_callback(
            on_host, tuple(shapes), parts, values, cotangents, vmap_method="sequential"
        )
        none = (np.zeros(np.shape(part), jax.dtypes.float0) for part in parts)
        derived: list[Any] = list(none)
        for number, array in zip(floating, found, strict=True):
            derived[number] = array
        return tuple(derived)


def _shape(part: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of what a callback returns."""
    part = part if hasattr(part, "dtype") else np.asarray(part, float)
    dtype = jax.dtypes.canonicalize_dtype(part.dtype)
    return jax.ShapeDtypeStruct(part.shape, dtype)
