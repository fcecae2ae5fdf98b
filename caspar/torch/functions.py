"""Kernels, residuals and solves as a `torch.autograd.Function`.

Input: a kernel, a factor or a solver, and tensors. Output: tensors. Kernels and residuals are
derivable any number of times: the derivative of a kernel is a kernel; they run where the tensors
are. Solves have the derivatives of `Solver.gradient`, on the processor or on CUDA, as the solver
is, without second ones. Cost tier: once for each call and each backward pass.
"""

from __future__ import (
    annotations,  # the reference is built without PyTorch  # the reference is built without PyTorch
)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caspar.arrays.trees import ArrayTree, leaf_at, leaves, with_leaves
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
    """Call a kernel, and return tensors that gradients flow through.

    Args:
        kernel: What `caspar.kernel` made.
        *args: As of a call of it. Tensors that require gradients get them, by each number as it is
            stored; indices, offsets and strides have none.
        out: For outputs whose access takes options, a mapping of these and `size`.
        count: As of a call.
        check: As of a call.
        **kwargs: As `args`, by name.

    Returns:
        What a call of the kernel returns, of tensors on the device of the arguments.

    Raises:
        InputError: Names the argument, what is wrong and what is allowed.
        KernelError: The kernel cannot be compiled, or in the backward pass: an access of it has no
            derivative (`ReadStridedWithDefault`, `WriteBlockSum`, your own).

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import caspar.torch
        >>> import symforce.symbolic as sf
        >>> import torch
        >>> @caspar.kernel
        ... def square(point: Annotated[sf.V2, caspar.ReadSequential]
        ... ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        ...     return point.squared_norm()
        >>> points = torch.tensor([[3.0, 4.0], [5.0, 12.0]], requires_grad=True)
        >>> caspar.torch.call(square, points).sum().backward()
        >>> points.grad
        tensor([[ 6.,  8.],
                [10., 24.]])
    """
    passed = passed_to_kernel(kernel, args, kwargs, out, count=count, check=check)
    return passed.declared.make_result(_run(passed))


def residuals(
    factor: Factor, arrays: Mapping[str, Any], *, backend: str = "auto", check: bool = True
) -> torch.Tensor:
    """The residuals of a factor, as a tensor that gradients flow through.

    Args:
        factor: What `caspar.factor` made.
        arrays: As for `Solver.solve`: node types by name, and the factor's arguments under its own;
            others are not looked at, weights and parameters of losses are not used. Tensors that
            require gradients get them, by each number as it is stored.
        backend: Where tensors of the processor are worked on: `auto`, `cuda` or `cpu`. Those on a
            CUDA device are worked on there.
        check: Whether to test indices, which waits for the device.

    Returns:
        (m, residual_dim), in the order of the arrays.

    Raises:
        InputError: Names the factor and the argument, what is wrong and what is allowed.
        FactorError: The factor cannot be traced.

    Example:
        >>> import caspar
        >>> import caspar.torch
        >>> import symforce.symbolic as sf
        >>> import torch
        >>> class Length(sf.V1): ...
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
        >>> length = torch.tensor([[2.0]], dtype=torch.float64, requires_grad=True)
        >>> arrays = {"Length": length, "measured": {"value": [0, 0], "expected": [[1.0], [1.5]]}}
        >>> caspar.torch.residuals(measured, arrays).square().sum().backward()
        >>> length.grad
        tensor([[3.]], dtype=torch.float64)
    """
    passed = passed_to_factor(factor, arrays, backend=backend, check=check)
    (found,) = _run(passed)
    return found


def _run(passed: Passed) -> list[torch.Tensor]:
    """Each output as it is declared."""
    dtype = next(
        (
            one.dtype
            for argument, one in zip(passed.declared.inputs, passed.values, strict=True)
            if isinstance(one, torch.Tensor) and one.is_floating_point() and not argument.is_half
        ),
        None,
    )
    values = []
    for argument, given in zip(passed.declared.inputs, passed.values, strict=True):
        where = f"kernel {passed.declared.name}, argument {argument.name}"
        values.append(rows_of(argument, _tensor(where, given, dtype)))
    found = _Run.apply(passed.call, *values)
    return [
        as_declared(one, rows) for one, rows in zip(passed.declared.outputs, found, strict=True)
    ]


def _tensor(where: str, given: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """An array of any library as a tensor; lists and numbers in the type of the others.

    A copy: PyTorch tells if tensors are written to before the backward pass, but not other arrays.
    """
    if isinstance(given, torch.Tensor):
        return given
    try:
        shared = torch.as_tensor(given, dtype=None if hasattr(given, "dtype") else dtype)
        return shared.clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{where}: {type(given).__name__} is no tensor and cannot become one ({error}); pass "
            "a tensor, an array or a list of numbers"
        ) from error


class _Run(torch.autograd.Function):
    """A call; its backward pass is one of another kernel."""

    @staticmethod
    def forward(call: Call, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = call.with_options(_array).run([_array(one) for one in values])
        return tuple(torch.as_tensor(one) for one in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call = inputs[0]
        if any(ctx.needs_input_grad):
            # indices may be written to before the backward pass
            ctx.call = inputs[0].with_options(_copied)
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, values = ctx.call, ctx.saved_tensors
        wanted = [
            one.name
            for one, is_wanted in zip(call.inputs, ctx.needs_input_grad[1:], strict=True)
            if is_wanted
        ]
        lengths = lengths_of(values)
        if call.count(lengths) == 0:
            zeros = (torch.zeros_like(one) for one in values)
            return (None, *zeros)
        pulled = call.pulled(wanted, lengths)
        outputs = _Run.apply(pulled, *values, *(one.contiguous() for one in gradients))
        found = iter(call.derivatives(wanted, outputs, values, torch, _added))
        return (None, *(next(found) if one.name in wanted else None for one in call.inputs))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], call: Call, *values: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """Make one call after the other."""
        found = []
        for number in range(info.batch_size):
            own = [
                one if place is None else one.select(place, number)
                for one, place in zip(values, in_dims[1:], strict=True)
            ]
            found.append(_Run.apply(call, *own))
        stacked = tuple(torch.stack(one) for one in zip(*found, strict=True))
        return stacked, (0,) * len(stacked)


def _added(length: int, places: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return numbers.new_zeros(length).index_add(0, places, numbers)


def _copied(option: Any) -> Any:
    """An index that nobody else writes to; prepared ones and numbers are not copied."""
    if isinstance(option, torch.Tensor):
        return option.clone()
    return option.copy() if hasattr(option, "dtype") and hasattr(option, "copy") else option


def _array(given: Any) -> Any:
    """Return the array that the kernel reads: NumPy's arrays have the shortest way."""
    if not isinstance(given, torch.Tensor):
        return given
    given = given.detach()
    return given.numpy() if given.device.type == "cpu" else given


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
    paths = [
        path for path, leaf in tree.items() if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    call = _Call(solver, arrays, paths, hessian, on_result, fixed, bounds, options)
    values = _Solve.apply(call, *(tree[path] for path in paths))
    return dict(zip(call.names, values, strict=True))


def _as_numpy(leaf: Any) -> Any:
    """A tensor of the processor as NumPy's array of the same memory: read several times as fast."""
    is_tensor = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
    return leaf.detach().numpy() if is_tensor and leaf.dtype in _NUMPYS else leaf


@dataclass
class _Call:
    """The arguments of a solve, and what its backward pass needs.

    Attributes:
        paths: Paths of the tensors that require gradients.
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
