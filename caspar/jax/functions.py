"""Kernels and residuals by `jax.custom_vjp`.

Input: a kernel or a factor, and arrays, traced or not. Output: JAX arrays, derivable any number of
times in reverse mode: the derivative of a kernel is a kernel. Both run in `jax.pure_callback`, that
is, from the host. Cost tier: once for each call and each backward pass.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from caspar.autodiff.call import Call, as_declared, lengths_of, rows_of
from caspar.autodiff.passed import Passed, passed_to_factor, passed_to_kernel
from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.kernels.kernel import Kernel


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
    floats = [one.dtype for one in given if jnp.issubdtype(one.dtype, jnp.floating)]
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
    """The outputs' rows.

    Args:
        call: The call; indices in it may be traced.
        wanted: Arguments that may be derived by.
        values: Rows, of one type.
    """
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
    return _evaluated(pulled, derived, [*values, *cotangents])
