"""Solves as functions of PyTorch: `loss.backward()` goes through them.

From a solver and its arrays, some of them tensors that require gradients, to tensors that depend on
them. `import caspar` does not load PyTorch; `import caspar.torch` does. See `solve`, and
`docs/guide/gradients.md`.
"""

from caspar.torch.solving import solve

__all__ = ["solve"]
