"""Derivatives by the storage of nodes, taken to their tangents and back; steps of nodes.

Input: (n, storage_dim) or (n, tangent_dim) rows of a node type. Output: the other one. Cost tier:
kernels once for a solver, launches once for a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from caspar.equations.adjoint.kernels import (
    INPUT,
    OUTPUT,
    VALUE,
    is_own_tangent,
    move_kernel,
    pull_kernel,
    push_kernel,
)
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.normal.instance_kernels import Packed, compiled, output_rows

_SPECS: Mapping[str, Callable[[Argument], KernelSpec]] = {
    "pull": pull_kernel,
    "push": push_kernel,
    "move": move_kernel,
}


class Charts:
    """The node types of some factors.

    Args:
        backend: Where the rows are.
        factors: The factors.
    """

    def __init__(self, backend: Backend, factors: Sequence[TracedFactor]) -> None:
        self._backend = backend
        self._arguments: dict[str, Argument] = {}
        for factor in factors:
            for node in factor.nodes:
                self._arguments.setdefault(node.node_type.name, node)
        self._own = {name: is_own_tangent(one) for name, one in self._arguments.items()}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._bound: dict[tuple[str, str, int], Any] = {}
        self._compiling = Lock()

    def pulled(self, name: str, values: Array, rows: Array) -> Array:
        """Derivatives by the tangent, (n, tangent_dim), from those by the storage."""
        return self._through("pull", name, values, rows)

    def pushed(self, name: str, values: Array, rows: Array) -> Array:
        """Derivatives by the storage, (n, storage_dim), from those by the tangent."""
        return self._through("push", name, values, rows)

    def moved(self, name: str, values: Array, steps: Array) -> Array:
        """Values, (n, storage_dim), after steps in the tangent, (n, tangent_dim)."""
        if self._own[name]:
            return values + steps
        return self._through("move", name, values, steps)

    def _through(self, role: str, name: str, values: Array, rows: Array) -> Array:
        if self._own[name]:
            return rows
        argument, backend = self._arguments[name], self._backend
        count, dim = int(rows.shape[0]), int(rows.shape[1])
        result_dim = argument.tangent_dim if role == "pull" else argument.storage_dim
        if count == 0:
            return backend.xp.zeros((0, result_dim))
        key = (role, name, count)
        if key not in self._bound:
            packed = Packed.empty(backend, count, argument.storage_dim)
            given = Packed.empty(backend, count, dim)
            data, output = output_rows(backend, count, result_dim)
            bindings = {
                VALUE: packed.binding,
                INPUT: given.binding,
                OUTPUT: Binding(data, count),
            }
            launch = backend.bind(self._kernel(role, name), bindings, count)
            self._bound[key] = packed, given, output, backend.repeated_runner([launch])
        packed, given, output, run = self._bound[key]
        packed.fill(values)
        given.fill(rows)
        run()
        return output.copy()

    def _kernel(self, role: str, name: str) -> Kernel:
        with self._compiling:
            if (role, name) not in self._kernels:
                argument = self._arguments[name]
                key = f"{role} {name} {argument.symbols} {argument.chart_key}"
                key += argument.node_type.retraction_key if role == "move" else ""
                specs = {key: lambda: _SPECS[role](argument)}
                (self._kernels[role, name],) = compiled(self._backend, "charts", specs)
            return self._kernels[role, name]
