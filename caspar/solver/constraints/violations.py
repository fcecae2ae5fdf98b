"""Evaluate constraints at some values: c, its Jacobian, and sizes that cancel units.

Input: traced constraints and a `Problem` in float64. Output: a `Linearised` for each constraint, on
the host. Cost tier: kernels once for a solver; the rest once for a solve of the loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.adjoint import constraint_kernel
from caspar.equations.parts import FactorPart
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import Problem
from caspar.solver.normal.instance_kernels import InstanceInputs, InstanceKernels, Packed

Floats = NDArray[np.float64]

Flags = Mapping[str, NDArray[np.bool_]]
"""By constraint, (m, dim)."""

Sizes = Mapping[str, Floats]
"""By node type, (tangent_dim,)."""

FIRST = "constraint"
"""Role of the kernel that writes c and its Jacobian."""


@dataclass(frozen=True)
class NodeRows:
    """The derivative of a constraint by one of its nodes.

    Attributes:
        node: Name of the node type.
        index: (m,) the node of each instance.
        entries: (m, dim, tangent_dim).
    """

    node: str
    index: NDArray[np.integer[Any]]
    entries: Floats


@dataclass(frozen=True)
class Linearised:
    """A constraint at some values.

    Attributes:
        kind: What must hold.
        rows: (m, dim) c.
        nodes: Its derivatives.
    """

    kind: ConstraintKind
    rows: Floats
    nodes: tuple[NodeRows, ...]

    @property
    def is_finite(self) -> bool:
        """Return whether c and its derivatives are finite."""
        return bool(
            np.isfinite(self.rows).all()
            and all(np.isfinite(one.entries).all() for one in self.nodes)
        )

    @property
    def violation(self) -> Floats:
        """(m, dim) how far each entry is from what must hold."""
        if self.kind is ConstraintKind.ZERO:
            return np.abs(self.rows)
        return np.maximum(-self.rows, 0.0)

    def scale(self, sizes: Sizes) -> Floats:
        """(m, dim) what each entry of c would be, if its terms did not cancel.

        Args:
            sizes: Of values; see `value_sizes`. Those of a batch are (n, tangent_dim), by node.
        """
        total = np.zeros_like(self.rows)
        for one in self.nodes:
            size = sizes[one.node]
            if size.ndim == 1:
                total += np.abs(one.entries) @ size
            else:
                total += (np.abs(one.entries) @ size[one.index][:, :, None])[:, :, 0]
        return np.where(total > 0.0, total, 1.0)


def pushing_multipliers(kind: ConstraintKind, multipliers: Floats) -> Floats:
    """Multipliers without those of inequalities below 0, which would hold values at a limit."""
    return np.maximum(multipliers, 0.0) if kind is ConstraintKind.POSITIVE else multipliers


class Constraints:
    """The constraints of a solver.

    Args:
        backend: Where they are evaluated.
        factors: As their functions are.
        kinds: By name what must hold.
    """

    def __init__(
        self,
        backend: Backend,
        factors: Sequence[TracedFactor],
        kinds: Mapping[str, ConstraintKind],
    ) -> None:
        self._backend, self.factors, self.kinds = backend, tuple(factors), kinds
        makers = {FIRST: partial(constraint_kernel, is_curved=False)}
        self._kernels = InstanceKernels(backend, "constraints", makers)

    def load(self) -> None:
        """Compile the kernels, if that has not been done."""
        self._kernels.load(self.factors, [FIRST])

    def at(self, problem: Problem, *, on_host: bool = True) -> dict[str, Linearised]:
        """Linearise the constraints that have instances, by name.

        Args:
            problem: The values.
            on_host: Whether arrays are brought to the host, or stay on the backend's device.
        """
        self.load()
        backend = self._backend
        values = {name: Packed.of(backend, rows) for name, rows in problem.values.items()}
        found = {}
        for factor in self.factors:
            if problem.factors[factor.name].count == 0:
                continue
            inputs = InstanceInputs(backend, factor, problem, values)
            launch, outputs = inputs.bind(self._kernels.of(factor, FIRST), first_dims(factor))
            backend.runner([launch])()
            kind = self.kinds[factor.name]
            found[factor.name] = linearised(backend, inputs, kind, outputs, on_host=on_host)
        return found


def first_dims(factor: TracedFactor) -> dict[str, int]:
    """Outputs of the kernel of a constraint, and their scalars."""
    dim = len(factor.residual)
    by_node = {one.part(FactorPart.JACOBIAN.text): dim * one.tangent_dim for one in factor.nodes}
    return {FactorPart.RESIDUAL.text: dim, **by_node}


def linearised(
    backend: Backend,
    inputs: InstanceInputs,
    kind: ConstraintKind,
    outputs: Mapping[str, Any],
    *,
    on_host: bool = True,
) -> Linearised:
    """A constraint from the arrays that its kernel wrote."""

    def brought(array: Any) -> Any:
        return np.array(backend.to_host(array)) if on_host else array

    rows = brought(outputs[FactorPart.RESIDUAL.text])
    nodes = tuple(
        NodeRows(
            one.node_type.name,
            brought(inputs.index[one.name]),
            brought(outputs[one.part(FactorPart.JACOBIAN.text)]).reshape(
                *rows.shape, one.tangent_dim
            ),
        )
        for one in inputs.factor.nodes
    )
    return Linearised(kind, rows, nodes)


def value_sizes(nodes: Sequence[NodeType], values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return (tangent_dim,) by node type: the largest number of each component, 1 for turns.

    Args:
        nodes: Node types.
        values: By name (n, storage_dim) on the host.
    """
    sizes = {}
    for node in nodes:
        size, rows = np.ones(node.tangent_dim), values[node.name]
        for component, place in node.shifted_places.items():
            size[component] = np.abs(rows[:, place]).max(initial=0.0)
        sizes[node.name] = np.where(size > 0.0, size, 1.0)
    return sizes
