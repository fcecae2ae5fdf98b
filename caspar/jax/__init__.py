"""Solves, residuals and kernels as functions of JAX: `jax.grad` goes through, `jax.jit` around.

From a solver and its arrays to JAX arrays that depend on them; `residuals` and `call` do the same
for a factor and a kernel alone. `import caspar` does not load JAX; `import caspar.jax` does. See
`docs/guide/gradients.md`.
"""

from caspar.errors import MissingPackageError

try:
    from caspar.jax.functions import call, residuals, solve
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "jax":
        raise
    raise MissingPackageError("caspar.jax", "jax", "jax") from error

__all__ = ["call", "residuals", "solve"]
