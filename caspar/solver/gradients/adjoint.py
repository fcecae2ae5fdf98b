"""Turn a derivative by values into derivatives by everything that determines them.

Input: a `Problem`, the values that minimise it, a derivative by these. Output: `Derived`. For each
factor there are two kernels: one writes its instances' parts of the Hessian, the other, once the
system is solved, derivatives by everything that they read. Cost tier: kernels once for a solver;
memory, bound kernels and the analysis once for a structure, that is, for counts and indices;
copies, kernels, sums and a factorisation once for a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caspar.equations.adjoint import kernels as parts
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.array_tools import host_checksum
from caspar.runtime.backend import Backend
from caspar.solver.gradients.charts import Charts
from caspar.solver.gradients.system import HessianSystem, Instances, SparseSystem
from caspar.solver.input.problem import Problem
from caspar.solver.normal.blocks import Unknowns
from caspar.solver.normal.instance_kernels import InstanceInputs, InstanceKernels, Packed
from caspar.solver.normal.sums import add_rows

EXACT, GAUSS_NEWTON, ADJOINT = "exact", "gauss_newton", "adjoint"
"""Roles: see `equations.adjoint.kernels`."""

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
        damping: See `Solution`.
        remarks: What is to be said of the Hessian.
    """

    starts: Mapping[str, Array | None]
    constants: Mapping[str, Mapping[str, Array]]
    damping: float
    remarks: tuple[str, ...]


class _FactorKernels:
    """The kernels of one factor, bound to memory of their own.

    Args:
        backend: Where they run.
        kernels: Compiled ones.
        inputs: What they read.
        adjoints: z of node types, by name.
        role: That of the kernel of the Hessian.

    Attributes:
        inputs: As given.
        factor: Theirs.
        launches: By role.
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
        """Derivatives of a loss function by the constants of a factor, by name: (rows, dim).

        Args:
            is_partial: Numbers that are not finite count as 0.

        Raises:
            InputError: A derivative is not finite.
        """
        found = {}
        for one in self.factor.inputs:
            if one.node is not None:
                continue
            given = self.inputs.given(one)
            if one.table is None:
                summed = self._summed(one, self._finite(one, given, is_partial=is_partial), given)
            elif one.name in self._loads:
                pull = self._finite(one, given, is_partial=is_partial)
                summed = self._by_numbers(one, one.table.dims, pull, given)
            else:
                summed = given * 0.0
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

    def _by_numbers(self, one: Argument, num_axes: int, pull: Array, given: Array) -> Array:
        """The derivatives by the memory of tables, from those by what instances load of them."""
        xp, loads = self._backend.xp, self._loads[one.name]
        places = self._pulls[one.part(parts.PLACES)].reshape(*pull.shape, num_axes)
        sizes = given[:num_axes, 0]
        # as kernels do it: a NaN compares as false
        nearest = xp.minimum(xp.where(places > 0.0, places, 0.0), sizes - 1.0)
        is_inside = ((places >= 0.0) & (places < sizes)).all(axis=2)
        number = nearest[:, :, 0]
        for axis in range(1, num_axes):
            number = number * sizes[axis] + nearest[:, :, axis]
        channel = xp.asarray([load.channel for load in loads])
        begin = self.inputs.rows[one.name][:, None] if one.name in self.inputs.rows else 0
        at = begin + num_axes + loads[0].num_channels * number.astype(int) + channel
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


@dataclass(frozen=True)
class _Solved:
    """The solved adjoint system of a gradient.

    Attributes:
        factors: Those with instances; `pull` has the derivatives.
        held: By node type (n, tangent_dim), derivatives by components that keep their start value,
            else 0; None: all move.
        damping: See `Solution`.
        remarks: Remarks on the Hessian.
        is_partial: Whether numbers that are not finite count as 0.
    """

    factors: Sequence["_FactorKernels"]
    held: Mapping[str, Array | None]
    damping: float
    remarks: tuple[str, ...]
    is_partial: bool


class _Assembly:
    """Systems of one structure.

    Args:
        backend: Where the arrays are.
        kernels: Compiled for the factors.
        factors: With their terms and at least one instance each.
        nodes: Node types that they touch.
        problem: Its counts and indices.
        role: That of the kernels of the Hessian.
        make_system: Makes what solves.
    """

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
        self._factors = [
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
            one: backend.repeated_runner([factor.launches[one] for factor in self._factors])
            for one in (role, ADJOINT)
        }
        self._role = role
        unknowns = Unknowns.of({one.name: (counts[one.name], one.tangent_dim) for one in nodes})
        instances = [
            Instances(
                tuple(node.node_type.name for node in one.factor.nodes),
                tuple(backend.to_host(one.inputs.index[node.name]) for node in one.factor.nodes),
            )
            for one in self._factors
        ]
        self._system = make_system(backend, unknowns, instances)

    def solve(
        self,
        problem: Problem,
        tangents: Mapping[str, Array],
        moving: Mapping[str, Array],
    ) -> _Solved:
        """Solve H z = b, and run what reads z.

        Args:
            problem: Arrays of the structure, with values on the device.
            tangents: b: (n, tangent_dim) derivatives by the tangents, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.

        Raises:
            InputError: A second derivative is not finite.
        """
        for name, packed in self._values.items():
            packed.fill(problem.values[name])
        for one in self._factors:
            one.inputs.fill(problem)
        self._run[self._role]()
        solution = self._system.solve([one.hessian for one in self._factors], tangents, moving)
        if solution is None:
            raise InputError(self._not_finite())
        for name, packed in self._adjoints.items():
            packed.fill(solution.z[name])
        self._run[ADJOINT]()
        held = {
            name: self._held(name, tangents[name], mask, is_partial=solution.is_partial)
            for name, mask in solution.stays.items()
        }
        return _Solved(self._factors, held, solution.damping, solution.remarks, solution.is_partial)

    def _not_finite(self) -> str:
        xp = self._backend.xp
        for one in self._factors:
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
        for one in self._factors:
            for node in one.factor.nodes:
                if node.node_type.name == name:
                    add_rows(xp, products, one.inputs.index[node.name], one.pull(node))
        if is_partial:
            mask = mask & xp.isfinite(products)
        return xp.where(mask, tangents - products, 0.0)


class Adjoint:
    """Derivatives for problems of some factors.

    Args:
        backend: Where the arrays are.
        nodes: Node types.
        factors: Factors, with any terms.
        make_system: Makes what solves the linear systems.
        kernels: Shared with others; None: its own.
    """

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

        Args:
            problem: With the values after a solve, on the device, in float64.
            factors: Those that have instances, with their terms.
            by_values: (n, storage_dim) derivatives by the values, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.
            role: `exact` or `gauss_newton`: see `gradient_kernels`.

        Raises:
            InputError: A second derivative is not finite.
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
        solved = self._assembly(factors, nodes, problem, role).solve(problem, tangents, moving)
        starts: dict[str, Array | None] = dict(by_values)
        for name, rows in solved.held.items():
            if rows is not None and name in problem.bounds:
                # what is at a bound is not where it started
                rows = rows * (self._backend.upload(problem.free[name]) == 0.0)
            starts[name] = None if rows is None else charts.pushed(name, values[name], rows)
        constants = {
            one.factor.name: one.by_constants(is_partial=solved.is_partial)
            for one in solved.factors
        }
        return Derived(starts, constants, solved.damping, solved.remarks)

    def _assembly(
        self,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
    ) -> "_Assembly":
        """Memory and analysis for a structure, kept from gradient to gradient."""
        key = _structure(self._backend, factors, problem, role)
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


def _structure(
    backend: Backend, factors: Sequence[TracedFactor], problem: Problem, role: str
) -> object:
    """Return the key of memory and analysis."""
    indices: list[Array] = []
    sizes: list[object] = [role, *problem.counts.items()]
    for factor in factors:
        arrays = problem.factors[factor.name]
        sizes.append((factor.name, arrays.by_instance, arrays.count))
        indices += [index for index in arrays.nodes.values() if index is not None]
        for source, constant in arrays.constants.items():
            sizes.append((source, constant.rows.shape))
            if constant.index is not None:
                indices.append(constant.index)
    on_host = [index for index in indices if isinstance(index, np.ndarray)]
    others = [index for index in indices if not isinstance(index, np.ndarray)]
    # each where it is: an index of the host goes to the device once for a structure
    sums = (host_checksum(on_host), backend.checksum(others) if len(others) > 0 else 0)
    places = tuple(isinstance(index, np.ndarray) for index in indices)
    return (*sizes, *places, *sums)
