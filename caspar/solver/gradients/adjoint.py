"""Turn a derivative by values into derivatives by everything that determines them.

Input: a `Problem`, the values that minimise it, a derivative by these. Output: `Derived`. For each
factor there are two kernels: one writes its instances' parts of the Hessian, the other, once the
system is solved, derivatives by everything that they read. `Charts` take derivatives by the storage
of nodes to their tangents and back. Cost tier: kernels once for a solver; memory and analysis once
for a structure; copies, kernels, sums and a factorisation once for a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from caspar.equations import adjoint as parts
from caspar.equations.adjoint import (
    INPUT,
    OUTPUT,
    VALUE,
    is_own_tangent,
    move_kernel,
    pull_kernel,
    push_kernel,
)
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.markers import Table
from caspar.memory.array import Array, Binding
from caspar.memory.kernel import KernelSpec
from caspar.runtime.array_tools import host_checksum
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.gradients.system import HessianSystem, Instances, Solution, SparseSystem
from caspar.solver.input.problem import Problem
from caspar.solver.normal.blocks import Unknowns
from caspar.solver.normal.instance_kernels import (
    InstanceInputs,
    InstanceKernels,
    Packed,
    compiled,
    output_rows,
)
from caspar.solver.normal.matrix import add_rows

_SPECS: Mapping[str, Callable[[Argument], KernelSpec]] = {
    "pull": pull_kernel,
    "push": push_kernel,
    "move": move_kernel,
}


class Charts:
    """The node types of some factors."""

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
            bindings = {VALUE: packed.binding, INPUT: given.binding, OUTPUT: Binding(data, count)}
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


EXACT, GAUSS_NEWTON, ADJOINT = "exact", "gauss_newton", "adjoint"
"""Roles: see `equations.adjoint`."""

MAX_KEPT = 4
"""Structures whose memory and analysis are kept."""

MakeSystem = Callable[[Backend, Unknowns, Sequence[Instances]], HessianSystem]
"""A function of the backend, the unknowns, and the nodes of each factor's instances."""


def gradient_kernels(backend: Backend) -> InstanceKernels:
    """The kernels of factors for gradients."""
    makers = {
        EXACT: lambda factor: parts.hessian_kernel(factor, is_exact=True),
        GAUSS_NEWTON: lambda factor: parts.hessian_kernel(factor, is_exact=False),
        ADJOINT: parts.adjoint_kernel,
    }
    return InstanceKernels(backend, "gradients", makers)


@dataclass(frozen=True)
class Derived:
    """Derivatives of a loss function, on the device.

    Attributes:
        starts: By node type (n, storage_dim), by what stays where it starts; None: zeros.
        constants: By factor with instances, and by argument, (rows, dim).
    """

    starts: Mapping[str, Array | None]
    constants: Mapping[str, Mapping[str, Array]]
    damping: float
    remarks: tuple[str, ...]


class _FactorKernels:
    """The kernels of one factor, bound to memory of their own.

    Attributes:
        hessian: (count, hessian_dim), once the kernel has run; the next run overwrites it.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: InstanceKernels,
        inputs: InstanceInputs,
        adjoints: Mapping[str, Packed],
        role: str,
    ) -> None:
        self._backend, self.inputs = backend, inputs
        factor = self.factor = inputs.factor
        dims = {one.part(parts.PULL): one.storage_dim for one in factor.inputs}
        dims |= {one.part(parts.PULL): one.tangent_dim for one in factor.nodes}
        self._loads = parts.table_loads(factor)
        for table in factor.tables:
            del dims[table.part(parts.PULL)]
            if table.name in self._loads:
                dims |= parts.load_dims(table, len(self._loads[table.name]))
        own = {
            one.part(parts.ADJOINT): adjoints[one.node_type.name].binding for one in factor.nodes
        }
        hessian, outputs = inputs.bind(
            kernels.of(factor, role), {parts.HESSIAN: parts.hessian_dim(factor)}
        )
        adjoint, self._pulls = inputs.bind(kernels.of(factor, ADJOINT), dims, own)
        self.launches = {role: hessian, ADJOINT: adjoint}
        self.hessian = outputs[parts.HESSIAN]

    def pull(self, argument: Argument) -> Array:
        """(count, dim) derivatives of an argument's, once the kernel has run."""
        return self._pulls[argument.part(parts.PULL)]

    def by_constants(self, *, is_partial: bool) -> dict[str, Array]:
        """Derivatives of a loss function by the constants of a factor, by name: (rows, dim)."""
        found = {}
        for one in self.factor.inputs:
            if one.node is not None:
                continue
            given = self.inputs.given(one)
            if one.table is None:
                summed = self._summed(one, self._finite(one, given, is_partial=is_partial), given)
            elif one.name in self._loads:
                pull = self._finite(one, given, is_partial=is_partial)
                summed = self._by_numbers(one, one.table, pull, given)
            else:
                summed = self._backend.xp.zeros(given.shape)
            found[one.source] = -summed
        return found

    def _finite(self, one: Argument, given: Array, *, is_partial: bool) -> Array:
        """(count, dim) derivatives by a constant that are finite."""
        xp, pull = self._backend.xp, self.pull(one)
        if one.source == WEIGHT:
            # of an instance that weighs nothing the residual may be anything
            weights = (
                given if one.name not in self.inputs.rows else given[self.inputs.rows[one.name]]
            )
            pull = xp.where((weights > 0.0) | xp.isfinite(pull), pull, 0.0)
        is_finite = xp.isfinite(pull)
        if is_partial:
            return xp.where(is_finite, pull, 0.0)
        if not bool(is_finite.all()):
            instance = int(xp.flatnonzero(~is_finite.all(axis=1))[0])
            raise InputError(
                f"factor {self.factor.name}: the derivative by {one.source} of instance "
                f"{instance} is not finite at these values. Look for a root or a norm of zero "
                "in the residual"
            )
        return pull

    def _by_numbers(self, one: Argument, table: type[Table], pull: Array, given: Array) -> Array:
        """The derivatives by the memory of tables, from those by what instances load of them."""
        xp, loads = self._backend.xp, self._loads[one.name]
        places = self._pulls[one.part(parts.PLACES)].reshape(*pull.shape, table.dims)
        first = table.first_number()
        sizes = xp.asarray(table.sizes(self._backend.to_host(given[:first, 0])), float)
        # as kernels do it: a NaN compares as false
        nearest = xp.minimum(xp.where(places > 0.0, places, 0.0), sizes - 1.0)
        is_inside = ((places >= 0.0) & (places < sizes)).all(axis=2)
        number = nearest[:, :, 0]
        for axis in range(1, table.dims):
            number = number * sizes[axis] + nearest[:, :, axis]
        channel = xp.asarray([load.channel for load in loads])
        begin = self.inputs.rows[one.name][:, None] if one.name in self.inputs.rows else 0
        at = begin + first + loads[0].num_channels * number.astype(int) + channel
        kept = xp.where(is_inside, pull, 0.0) if loads[0].is_zero_outside else pull
        total = xp.zeros(given.shape)
        add_rows(xp, total, at.reshape(-1), xp.ascontiguousarray(kept.reshape(-1, 1)))
        return total

    def _summed(self, one: Argument, pull: Array, given: Array) -> Array:
        """The derivatives by the rows of a constant, from those of instances."""
        xp = self._backend.xp
        if one.kind is ArgumentKind.CONST_UNIQUE:
            pull = pull.sum(axis=0)[None]
        elif one.name in self.inputs.rows:
            rows = xp.zeros((int(given.shape[0]), int(pull.shape[1])))
            add_rows(xp, rows, self.inputs.rows[one.name], xp.ascontiguousarray(pull))
            pull = rows
        if len(one.unit_ranges) > 0:
            pull = pull.copy()
        for part in one.unit_ranges:
            # what is nearly of unit length gets it before it is used
            columns = slice(part.start, part.stop)
            unit = given[:, columns]
            along = (unit * pull[:, columns]).sum(axis=1) / (unit * unit).sum(axis=1)
            pull[:, columns] -= along[:, None] * unit
        return pull


class _Assembly:
    def __init__(
        self,
        backend: Backend,
        kernels: InstanceKernels,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
        make_system: MakeSystem,
    ) -> None:
        self._backend, counts = backend, problem.counts
        self._values = {
            one.name: Packed.empty(backend, counts[one.name], one.storage_dim) for one in nodes
        }
        self._adjoints = {
            one.name: Packed.empty(backend, counts[one.name], one.tangent_dim) for one in nodes
        }
        self.factors = [
            _FactorKernels(
                backend,
                kernels,
                InstanceInputs(backend, factor, problem, self._values),
                self._adjoints,
                role,
            )
            for factor in factors
        ]
        self._run = {
            one: backend.repeated_runner([factor.launches[one] for factor in self.factors])
            for one in (role, ADJOINT)
        }
        self._role = role
        unknowns = Unknowns.of({one.name: (counts[one.name], one.tangent_dim) for one in nodes})
        instances = [
            Instances(
                tuple(node.node_type.name for node in one.factor.nodes),
                tuple(backend.to_host(one.inputs.index[node.name]) for node in one.factor.nodes),
            )
            for one in self.factors
        ]
        self._system = make_system(backend, unknowns, instances)

    def solve(
        self, problem: Problem, tangents: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> tuple[Solution, dict[str, Array | None]]:
        """Solve H z = b, and run what reads z; by node type the derivatives by what is held.

        They are (n, tangent_dim), 0 for what moves; None: all of it does. `tangents`, b, are
        derivatives by the tangents; `moving` is 0 for what is held, by types with something held.
        """
        for name, packed in self._values.items():
            packed.fill(problem.values[name])
        for one in self.factors:
            one.inputs.fill(problem)
        self._run[self._role]()
        solution = self._system.solve([one.hessian for one in self.factors], tangents, moving)
        if solution is None:
            raise InputError(self._not_finite())
        for name, packed in self._adjoints.items():
            packed.fill(solution.z[name])
        self._run[ADJOINT]()
        held = {
            name: self._held(name, tangents[name], mask, is_partial=solution.is_partial)
            for name, mask in solution.stays.items()
        }
        return solution, held

    def _not_finite(self) -> str:
        xp = self._backend.xp
        for one in self.factors:
            bad = xp.flatnonzero(~xp.isfinite(one.hessian).all(axis=1))
            if len(bad) > 0:
                return (
                    f"factor {one.factor.name}: a second derivative of instance {int(bad[0])} is "
                    "not finite at these values, so there is no gradient. Look for a root or a "
                    "norm of zero in the residual, or pass hessian='gauss_newton'"
                )
        return "a sum of second derivatives is not finite, so there is no gradient"

    def _held(self, name: str, tangents: Array, mask: Array, *, is_partial: bool) -> Array | None:
        """Derivatives by the tangent of what stays where it starts: b - H z."""
        xp = self._backend.xp
        if not bool(mask.any()):
            return None
        products = xp.zeros(tangents.shape)
        for one in self.factors:
            for node in one.factor.nodes:
                if node.node_type.name == name:
                    add_rows(xp, products, one.inputs.index[node.name], one.pull(node))
        if is_partial:
            mask = mask & xp.isfinite(products)
        return xp.where(mask, tangents - products, 0.0)


class Adjoint:
    """Derivatives for problems of some factors."""

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        factors: Sequence[TracedFactor],
        make_system: MakeSystem = SparseSystem,
        kernels: InstanceKernels | None = None,
    ) -> None:
        self._backend = backend
        self._nodes = nodes
        self._make_system = make_system
        self._kernels = gradient_kernels(backend) if kernels is None else kernels
        self._charts = Charts(backend, factors)
        self._assemblies: dict[object, _Assembly] = {}

    def derive(
        self,
        problem: Problem,
        factors: Sequence[TracedFactor],
        by_values: Mapping[str, Array],
        moving: Mapping[str, Array],
        role: str,
    ) -> Derived:
        """Derive a solution by the implicit function theorem.

        The problem has the values after a solve, on the device, in float64. `by_values`: (n,
        storage_dim) derivatives by these. `moving`: By node type of which something is held (n,
        tangent_dim), 0 for that. `role`: `exact` or `gauss_newton`.
        """
        touched = {node.node_type.name for factor in factors for node in factor.nodes}
        nodes = [node for node in self._nodes if node.name in touched]
        values, charts = problem.values, self._charts
        if len(nodes) == 0:
            return Derived(by_values, {}, 0.0, ())
        tangents = {
            node.name: charts.pulled(node.name, values[node.name], by_values[node.name])
            for node in nodes
        }
        assembly = self._assembly(factors, nodes, problem, role)
        solution, held = assembly.solve(problem, tangents, moving)
        starts: dict[str, Array | None] = dict(by_values)
        for name, rows in held.items():
            if rows is not None and name in problem.bounds:
                # what is at a bound is not where it started
                rows = rows * (self._backend.upload(problem.free[name]) == 0.0)
            starts[name] = None if rows is None else charts.pushed(name, values[name], rows)
        constants = {
            one.factor.name: one.by_constants(is_partial=solution.is_partial)
            for one in assembly.factors
        }
        return Derived(starts, constants, solution.damping, solution.remarks)

    def _assembly(
        self,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
    ) -> "_Assembly":
        """Memory and analysis for a structure, kept from gradient to gradient."""
        sizes, indices = problem.structure()
        on_host = [index for index in indices if isinstance(index, np.ndarray)]
        others = [index for index in indices if not isinstance(index, np.ndarray)]
        # each where it is: an index of the host goes to the device once for a structure
        sums = host_checksum(on_host), self._backend.checksum(others) if len(others) > 0 else 0
        places = tuple(isinstance(index, np.ndarray) for index in indices)
        key = role, *sizes, *places, *sums
        known = self._assemblies.pop(key, None)
        if known is None:
            self._kernels.load(factors, [role, ADJOINT])
            known = _Assembly(
                self._backend, self._kernels, factors, nodes, problem, role, self._make_system
            )
        while len(self._assemblies) >= MAX_KEPT:
            del self._assemblies[next(iter(self._assemblies))]
        self._assemblies[key] = known
        return known
