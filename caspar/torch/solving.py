"""`solve` as a `torch.autograd.Function`.

Input: a solver and its arrays. Output: tensors. Derivatives are those of `Solver.gradient`, on the
processor or on CUDA, as the solver is; there are no second derivatives. Cost tier: once for a solve
and its backward pass.
"""

from __future__ import annotations  # the reference is built without PyTorch

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caspar.arrays.trees import ArrayTree, leaf_at, leaves, with_leaves
from caspar.batch.result import BatchResult
from caspar.batch.solver import BatchSolver
from caspar.errors import InputError
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver
from caspar.user_warnings import warn_user

TWICE = (
    "caspar.torch.solve: second derivatives of a solve are not available; call backward without "
    "create_graph=True, or detach what must not be derived twice"
)

_NUMPYS = (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
"""Types that NumPy has too."""


def solve(
    solver: Solver | BatchSolver,
    arrays: Mapping[str, Any],
    *,
    fixed: Mapping[str, Any] | None = None,
    bounds: Mapping[str, Any] | None = None,
    hessian: str = "auto",
    on_result: Callable[[SolveResult | BatchResult], object] | None = None,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Solve, and return values that gradients flow through.

    Args:
        solver: A `caspar.Solver` or a `caspar.BatchSolver`.
        arrays: As for its `solve`. Tensors that require gradients may be any floating arrays:
            constants, weights, scales of losses, values of nodes; these get a gradient where they
            are held, and zeros where they move.
        fixed: As for its `solve`.
        bounds: Likewise.
        hessian: As for `Solver.gradient`.
        on_result: Called with the result of the solve, for its status and costs.
        **options: As for its `solve`.

    Returns:
        By node type its values, tensors of the shape, dtype and device of its start values.

    Raises:
        CasparError: As `solve` and `gradient`. A backward pass that creates a graph of its own, for
            second derivatives, is an InputError.

    Warns:
        UserWarning: In the backward pass, what `Gradient.remarks` says: a singular Hessian, a solve
            that has not converged.

    Example:
        >>> import caspar
        >>> import caspar.torch
        >>> import symforce.symbolic as sf
        >>> import torch
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> expected = torch.tensor([[1.0], [1.5]], dtype=torch.float64, requires_grad=True)
        >>> arrays = {"Length": [[0.0]], "measured": {"value": [0, 0], "expected": expected}}
        >>> caspar.torch.solve(solver, arrays)["Length"].sum().backward()
        >>> expected.grad
        tensor([[0.5000],
                [0.5000]], dtype=torch.float64)
    """
    if not isinstance(solver, Solver | BatchSolver):
        raise InputError(
            f"caspar.torch.solve: solver is a {type(solver).__name__}; pass a caspar.Solver or a "
            "caspar.BatchSolver, such as caspar.Solver([residual])"
        )
    tree = leaves(arrays)
    paths = [path for path, leaf in tree.items() if _wants_gradient(leaf)]
    call = _Call(solver, arrays, paths, hessian, on_result, fixed, bounds, options)
    values = _Solve.apply(call, *(tree[path] for path in paths))
    return dict(zip(call.names, values, strict=True))


def _as_numpy(leaf: Any) -> Any:
    """A tensor of the processor as NumPy's array of the same memory: read several times as fast."""
    is_tensor = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
    return leaf.detach().numpy() if is_tensor and leaf.dtype in _NUMPYS else leaf


def _wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@dataclass
class _Call:
    """The arguments of a solve, and what its backward pass needs.

    Attributes:
        paths: Paths of the tensors that require gradients.
        result: The solve's result.
        names: Node types, in the order of the outputs.
    """

    solver: Any
    arrays: Mapping[str, Any]
    paths: Sequence[tuple[str, ...]]
    hessian: str
    on_result: Callable[[Any], object] | None
    fixed: Mapping[str, Any] | None
    bounds: Mapping[str, Any] | None
    options: Mapping[str, Any]
    result: Any = None
    names: list[str] = field(default_factory=list)

    def solved(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Solve with numbers of the tensors, and return the values."""
        detached = {path: tensor.detach() for path, tensor in zip(self.paths, tensors, strict=True)}
        found = leaves(with_leaves(self.arrays, detached))
        # start values stay tensors: values are of their kind
        inner = {path: _as_numpy(leaf) for path, leaf in found.items() if len(path) > 1}
        arrays = with_leaves(self.arrays, {**detached, **inner})
        self.result = self.solver.solve(
            arrays, fixed=self.fixed, bounds=self.bounds, **self.options
        )
        if self.on_result is not None:
            self.on_result(self.result)
        self.names = list(self.result.values)
        # apart from those of the result, which a gradient is taken at
        return [torch.as_tensor(value).clone() for value in self.result.values.values()]

    def derived(self, gradients: Sequence[torch.Tensor | None]) -> ArrayTree:
        """Derivatives by everything, from those by the values."""
        cotangents = {
            name: gradient.detach().contiguous()
            for name, gradient in zip(self.names, gradients, strict=True)
            if gradient is not None
        }
        found = self.solver.gradient(self.result, cotangents, hessian=self.hessian)
        for remark in found.remarks:
            warn_user(f"caspar.torch.solve: {remark}")
        arrays: ArrayTree = found.arrays
        return arrays


class _Solve(torch.autograd.Function):
    """A solve; its backward pass is `_Backward`."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = call.solved(tensors)
        # whoever writes into them before the backward pass is told
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        return (None, *_Backward.apply(ctx.call, *tensors, *gradients))


class _Backward(torch.autograd.Function):
    """The backward pass as a function, so that deriving it is refused in words."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *given: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        # what is derived by, then derivatives by the values: both may require gradients
        tensors, gradients = given[: len(call.paths)], given[len(call.paths) :]
        found = call.derived(gradients)
        return tuple(
            torch.as_tensor(leaf_at(found, path)).to(tensor)
            for path, tensor in zip(call.paths, tensors, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise InputError(TWICE)
