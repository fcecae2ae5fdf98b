"""Kernels, residuals and solves by `jax.custom_vjp`.

Input: a kernel, a factor or a solver, and arrays, traced or not. Output: JAX arrays. Kernels and
residuals are derivable any number of times in reverse mode: the derivative of a kernel is a kernel.
Solves have the derivatives of `Solver.gradient`, without second ones. All run in
`jax.pure_callback`, that is, from the host. Cost tier: once for each call and each backward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from caspar.arrays.trees import Path, leaf_at, leaves, with_leaves
from caspar.autodiff.call import (
    Call,
    Passed,
    as_declared,
    lengths_of,
    passed_to_factor,
    passed_to_kernel,
    rows_of,
)
from caspar.batch.result import BatchResult
from caspar.batch.solver import BatchSolver
from caspar.errors import InputError, warn_user
from caspar.frontend.factors.factor import Factor
from caspar.kernels.kernel import Kernel
from caspar.solver.input.problem import with_bare_factors
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver


def call(
    kernel: Kernel,
    *args: Any,
    out: Any = None,
    count: int | None = None,
    check: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a kernel, and return arrays that `jax.grad` can derive by the arguments.

    Args:
        kernel: What `caspar.kernel` made.
        *args: As of a call of it. JAX arrays, traced ones too, have derivatives by each number as
            it is stored; NumPy arrays and lists have none.
        out: For outputs whose access takes options, a mapping of these and `size`.
        count: As of a call.
        check: As of a call.
        **kwargs: As `args`, by name.

    Returns:
        What a call of the kernel returns, of JAX arrays. Lists, and arrays of another floating
        type, are taken in that of the first argument.

    Raises:
        InputError: Names the argument, what is wrong and what is allowed; within `jax.jit` as an
            error of JAX's that names it.
        KernelError: The kernel cannot be compiled, or in the backward pass: an access of it has no
            derivative (`ReadStridedWithDefault`, `WriteBlockSum`, your own).

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import caspar.jax
        >>> import jax
        >>> import symforce.symbolic as sf
        >>> @caspar.kernel
        ... def square(point: Annotated[sf.V2, caspar.ReadSequential]
        ... ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        ...     return point.squared_norm()
        >>> points = jax.numpy.array([[3.0, 4.0], [5.0, 12.0]])
        >>> jax.grad(lambda points: caspar.jax.call(square, points).sum())(points)
        Array([[ 6., 8.],
               [10., 24.]], dtype=float32)
    """
    passed = passed_to_kernel(kernel, args, kwargs, out, count=count, check=check)
    return passed.declared.make_result(_run(passed))


def residuals(
    factor: Factor, arrays: Mapping[str, Any], *, backend: str = "auto", check: bool = True
) -> jax.Array:
    """The residuals of a factor, as an array that `jax.grad` can derive.

    Args:
        factor: What `caspar.factor` made.
        arrays: As for `Solver.solve`: node types by name, and the factor's arguments under its own;
            others are not looked at, weights and parameters of losses are not used. JAX arrays,
            traced ones too, have derivatives by each number as it is stored.
        backend: Where it runs: `auto`, `cuda` or `cpu`.
        check: Whether to test indices.

    Returns:
        (m, residual_dim), in the order of the arrays.

    Raises:
        InputError: Names the factor and the argument, what is wrong and what is allowed.
        FactorError: The factor cannot be traced.

    Example:
        >>> import caspar
        >>> import caspar.jax
        >>> import jax
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
        >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
        >>> def cost(length):
        ...     found = caspar.jax.residuals(measured, {"Length": length, "measured": values})
        ...     return (found**2).sum()
        >>> round(float(jax.grad(cost)(jax.numpy.array([[2.0]]))[0, 0]), 3)
        3.0
    """
    passed = passed_to_factor(factor, arrays, backend=backend, check=check)
    (found,) = _run(passed)
    return found


def _run(passed: Passed) -> list[jax.Array]:
    """Each output as it is declared."""
    inputs = passed.declared.inputs
    given = [
        _array(f"kernel {passed.declared.name}, argument {one.name}", value)
        for one, value in zip(inputs, passed.values, strict=True)
    ]
    floats = [
        array.dtype
        for one, array in zip(inputs, given, strict=True)
        if jnp.issubdtype(array.dtype, jnp.floating) and not one.is_half
    ]
    dtype = floats[0] if len(floats) > 0 else jnp.dtype("float32")
    wanted = frozenset(
        one.name
        for one, value, array in zip(inputs, passed.values, given, strict=True)
        if isinstance(value, jax.Array) and jnp.issubdtype(array.dtype, jnp.floating)
    )
    values = [rows_of(one, array.astype(dtype)) for one, array in zip(inputs, given, strict=True)]
    found = _evaluated(passed.call, wanted, values)
    return [
        as_declared(one, rows) for one, rows in zip(passed.declared.outputs, found, strict=True)
    ]


def _array(where: str, given: Any) -> jax.Array:
    """An array of any library as JAX's, which nobody can write to."""
    try:
        return given if isinstance(given, jax.Array) else jnp.array(given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: {type(given).__name__} is no array and cannot become one ({error}); pass an "
            "array or a list of numbers"
        ) from error


def _evaluated(
    call: Call, wanted: frozenset[str], values: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """The outputs' rows; `wanted`: arguments to derive by. Indices in the call may be traced."""
    indices = [_array(f"kernel {call.kernel.traced.name}, an option", one) for one in call.arrays]
    num = len(values)
    lengths = lengths_of(values)
    shapes = tuple(
        jax.ShapeDtypeStruct((length, one.storage_dim), values[0].dtype)
        for one, length in zip(call.outputs, call.output_lengths(lengths), strict=True)
    )

    def on_host(*parts: Any) -> tuple[Any, ...]:
        numbers = [np.asarray(one) for one in parts]
        found = call.with_arrays(numbers[num:]).run(numbers[:num])
        return tuple(np.asarray(one) for one in found)

    def forward(*parts: Any) -> tuple[tuple[jax.Array, ...], Any]:
        return derivable(*parts), parts

    def backward(parts: Any, cotangents: Sequence[jax.Array]) -> tuple[Any, ...]:
        names = [one.name for one in call.inputs if one.name in wanted]
        own = call.with_arrays(parts[num:])
        found = iter(_pulled(own, names, parts[:num], cotangents))
        slopes: list[Any] = [
            next(found) if one.name in wanted else jnp.zeros_like(value)
            for one, value in zip(call.inputs, parts[:num], strict=True)
        ]
        none = [np.zeros(np.shape(one), jax.dtypes.float0) for one in parts[num:]]
        return (*slopes, *none)

    derivable = jax.custom_vjp(
        lambda *parts: jax.pure_callback(on_host, shapes, *parts, vmap_method="sequential")
    )
    derivable.defvjp(forward, backward)
    return tuple(derivable(*values, *indices))


def _pulled(
    call: Call, names: Sequence[str], values: Sequence[jax.Array], cotangents: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    """Derivatives by the arguments of some names."""
    lengths = lengths_of(values)
    if call.count(lengths) == 0:
        own = zip(call.inputs, values, strict=True)
        return [jnp.zeros_like(value) for one, value in own if one.name in names]
    pulled = call.pulled(names, lengths)
    derived = frozenset(names) | {one.name for one in pulled.inputs[len(values) :]}
    outputs = _evaluated(pulled, derived, [*values, *cotangents])
    return call.derivatives(names, outputs, values, jnp, _added)


def _added(length: int, places: jax.Array, numbers: jax.Array) -> jax.Array:
    return jnp.zeros(length, numbers.dtype).at[places].add(numbers)


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
