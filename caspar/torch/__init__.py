"""Solves, residuals and kernels as functions of PyTorch: `loss.backward()` goes through them.

From a solver and its arrays, some of them tensors that require gradients, to tensors that depend on
them; `residuals` and `call` do the same for a factor and a kernel alone. `import caspar` does not
load PyTorch; `import caspar.torch` does. See `docs/guide/gradients.md`.
"""

from caspar.errors import MissingPackageError

try:
    from caspar.torch.functions import call, residuals, solve
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "torch":
        raise
    raise MissingPackageError("caspar.torch", "torch", "torch") from error

__all__ = ["call", "residuals", "solve"]
