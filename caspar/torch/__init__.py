"""Solves, residuals and kernels as functions of PyTorch: `loss.backward()` goes through them.

From a solver and its arrays, some of them tensors that require gradients, to tensors that depend on
them; `residuals` and `call` do the same for a factor and a kernel alone. `import caspar` does not
load PyTorch; `import caspar.torch` does. See `docs/guide/gradients.md`.
"""

from caspar.torch.functions import call, residuals
from caspar.torch.solving import solve

__all__ = ["call", "residuals", "solve"]
