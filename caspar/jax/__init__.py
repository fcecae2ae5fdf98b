"""Solves as functions of JAX: `jax.grad` goes through them, and `jax.jit` around them.

From a solver and its arrays to JAX arrays that depend on them. `import caspar` does not load JAX;
`import caspar.jax` does. See `solve`, and `docs/guide/gradients.md`.
"""

from caspar.jax.solving import solve

__all__ = ["solve"]
