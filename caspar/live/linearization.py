"""Costs, residuals and Jacobians of all factor instances of a live problem, on the processor.

Input: tables. Output: `RowGroup`s. Memory has the capacities of the tables, and kernels are bound
to it again only if one of them grows. Cost tier: kernels once for a problem, an evaluation once for
each step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.factor_kernels import derivative_kernel
from caspar.equations.node_kernels import move_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind
from caspar.frontend.precision import TYPES
from caspar.live.tables import FactorTable, NodeTable, Rows
from caspar.memory.binding import Binding
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.solver.input.factor_arrays import ConstantArray, FactorArrays
from caspar.solver.input.problem import Problem
from caspar.solver.normal.instance_kernels import (
    InstanceInputs,
    InstanceKernels,
    Packed,
    compiled,
    output_rows,
)

EXACT = TYPES[Precision.FLOAT64]

FEW_INSTANCES = 16
"""The least number of instances that there is memory for if only new ones are evaluated."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of the whitened residual and its Jacobian: m blocks of one shape.

    Attributes:
        residual: (m, rows).
        columns: (m, width) the unknowns that a block depends on; one may stand twice.
        entries: (m, rows, width) derivatives by these; 0 for what is held.
    """

    residual: Rows
    columns: NDArray[np.int64]
    entries: Rows

    def chosen(self, blocks: Any) -> "RowGroup":
        """Some of the blocks: a slice, or (m,) flags."""
        return RowGroup(self.residual[blocks], self.columns[blocks], self.entries[blocks])


class _BoundFactor:
    """The kernel of a factor, bound to memory for some instances.

    Args:
        backend: The processor.
        kernels: Of all factors.
        table: Of the factor.
        values: Memory of the node types, by name.
        capacity: Instances that fit.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: InstanceKernels,
        table: FactorTable,
        values: Mapping[str, Packed],
        capacity: int,
    ) -> None:
        self.table, self.capacity = table, capacity
        self._values = {one.node_type.name: values[one.node_type.name] for one in table.arguments}
        self._copied = 0, 0
        self._columns: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        factor = table.factor
        nodes = {one.name: np.zeros(capacity, np.int32) for one in table.arguments}
        constants = {}
        self._versions = {name: pool.version for name, pool in table.pools.items()}
        for one in factor.inputs:
            if one.node is None and one.table is not None:
                memory = table.pools[one.source].tables.reshape(-1, 1)
                is_shared = table.is_shared(one.source)
                starts = None if is_shared else np.zeros(capacity, np.int32)
                constants[one.source] = ConstantArray(memory, starts)
            elif one.node is None:
                rows = np.zeros((1 if table.is_shared(one.source) else capacity, one.storage_dim))
                is_indexed = one.kind is ArgumentKind.CONST_INDEXED
                index = np.arange(capacity, dtype=np.int32) if is_indexed else None
                constants[one.source] = ConstantArray(rows, index)
        arrays = FactorArrays(capacity, nodes, constants, (), capacity)
        problem = Problem({}, {}, {}, {factor.name: arrays})
        self._inputs = InstanceInputs(backend, factor, problem, values)
        dims = {SolverPart.COSTS.addend: 1, FactorPart.RESIDUAL.text: len(factor.residual)}
        for one in table.arguments:
            dims[_jacobian(one)] = len(factor.residual) * one.tangent_dim
        launch, self._outputs = self._inputs.bind(kernels.of(factor, "rows"), dims)
        self._run = backend.repeated_runner([launch])

    def fits(self, values: Mapping[str, Packed], count: int) -> bool:
        """Return whether some instances fit, values are in the same memory, and so are tables."""
        is_same = all(values[name] is packed for name, packed in self._values.items())
        pools = self.table.pools.items()
        is_same = is_same and all(pool.version == self._versions[name] for name, pool in pools)
        return is_same and count <= self.capacity

    def forget(self) -> None:
        """Rows of the table have changed: copy all again."""
        self._copied = 0, 0

    def evaluate(self, tables: Mapping[str, NodeTable], first: int) -> tuple[Rows, RowGroup]:
        """Costs, (m,), and rows of the instances from one on."""
        table, count = self.table, self.table.count - first
        self._copy(tables, first)
        self._run()
        costs = self._outputs[SolverPart.COSTS.addend][:count, 0].copy()
        residual = self._outputs[FactorPart.RESIDUAL.text][:count].copy()
        entries = np.empty(
            (count, residual.shape[1], sum(one.tangent_dim for one in table.arguments))
        )
        end = 0
        for argument in table.arguments:
            nodes = tables[argument.node_type.name]
            places = table.nodes[argument.source].column[first:]
            begin, end = end, end + argument.tangent_dim
            own = entries[:, :, begin:end]
            own[...] = self._outputs[_jacobian(argument)][:count].reshape(own.shape)
            is_held = (nodes.free.rows == 0.0).any(axis=1)[places]
            if is_held.any():
                own[is_held] *= nodes.free.rows[places[is_held]][:, None, :]
        found = RowGroup(residual, self._columns, entries)
        if WEIGHT in table.constants:
            ignored = table.constants[WEIGHT].column[first:] == 0.0
            if ignored.any():
                # whatever the residual is
                for rows in (costs, found.residual, found.entries):
                    rows[ignored] = 0.0
        return costs, found

    def _copy(self, tables: Mapping[str, NodeTable], first: int) -> None:
        """Copy what the kernel reads of instances from one on; those that were copied stay."""
        table, count = self.table, self.table.count - first
        known = self._copied[1] if self._copied[0] == first else 0
        self._copied = first, count
        if known == count:
            return
        given, new = slice(first + known, table.count), slice(known, count)
        columns = []
        for argument in table.arguments:
            places = table.nodes[argument.source].column[given]
            self._inputs.index[argument.name][new] = places
            unknowns = tables[argument.node_type.name].unknowns.column[places, None]
            columns.append(unknowns + np.arange(argument.tangent_dim))
        added = np.concatenate(columns, axis=1)
        before = self._columns[:known].reshape(known, added.shape[1])
        self._columns = np.concatenate([before, added])
        for one in table.factor.tables:
            if not table.is_shared(one.source):
                numbers = table.constants[one.source].column[given]
                self._inputs.rows[one.name][new] = table.pools[one.source].starts(numbers)
        for source, constant in table.constants.items():
            if source in table.pools:
                continue
            if table.is_shared(source):
                self._inputs.write(source, constant.rows, slice(0, 1))
            else:
                self._inputs.write(source, constant.rows[given], new)


def _jacobian(argument: Argument) -> str:
    return argument.part(FactorPart.JACOBIAN.text)


class Linearizer:
    """Evaluates the factors of a live problem, and moves its nodes.

    Args:
        backend: The processor.
        nodes: Tables of the node types, by name.
        factors: Tables of the factors, by name.
    """

    def __init__(
        self, backend: Backend, nodes: Mapping[str, NodeTable], factors: Mapping[str, FactorTable]
    ) -> None:
        self._backend = backend
        self._nodes, self._factors = nodes, factors
        maker = partial(derivative_kernel, types=EXACT, has_residual=True)
        self._kernels = InstanceKernels(backend, "rows of live problems", {"rows": maker})
        self._bound: dict[tuple[str, bool], _BoundFactor] = {}
        self._values: dict[str, Packed] = {}
        self._moves: dict[str, tuple[Packed, Callable[[Rows, Rows], Rows]]] = {}

    def forget(self) -> None:
        """Rows of factors were removed or written: read all of them again."""
        for bound in self._bound.values():
            bound.forget()

    def evaluate(
        self, values: Mapping[str, Rows], known: Mapping[str, int] | None = None
    ) -> dict[str, tuple[Rows, RowGroup]]:
        """Return the (m,) costs and the rows of each factor that has instances.

        Args:
            values: By node type (count, storage_dim).
            known: By factor the number of instances, from the first one on, that are left out;
                factors without others are left out then. Best if few remain.
        """
        chosen = {
            name: 0 if known is None else known.get(name, 0)
            for name, table in self._factors.items()
            if table.count > (0 if known is None else known.get(name, 0))
        }
        for name, rows in values.items() if len(chosen) > 0 else ():
            packed = self._values.get(name)
            if packed is None or packed.count < len(rows):
                capacity = self._nodes[name].values.capacity
                packed = Packed.empty(self._backend, capacity, rows.shape[1])
                self._values[name] = packed
            packed.write(rows, slice(0, len(rows)))
        return {
            name: self._bound_factor(name, is_part=known is not None, first=first).evaluate(
                self._nodes, first
            )
            for name, first in chosen.items()
        }

    def _bound_factor(self, name: str, *, is_part: bool, first: int) -> _BoundFactor:
        table, key = self._factors[name], (name, is_part)
        count = table.count - first
        bound = self._bound.get(key)
        if bound is None or not bound.fits(self._values, count):
            self._kernels.load([table.factor], ["rows"])
            most = max(one.capacity for one in table.nodes.values())
            capacity = max(2 * count, FEW_INSTANCES) if is_part else most
            bound = _BoundFactor(self._backend, self._kernels, table, self._values, capacity)
            self._bound[key] = bound
        return bound

    def moved(self, step: Rows) -> dict[str, Rows]:
        """Return (count, storage_dim) values by node type, after a step of all unknowns."""
        found = {}
        for name, table in self._nodes.items():
            if table.count > 0:
                places = table.unknowns.column[:, None] + np.arange(table.dim)
                found[name] = self._move(table)(table.values.rows, step[places])
        return found

    def _move(self, table: NodeTable) -> Callable[[Rows, Rows], Rows]:
        name = table.node.name
        known = self._moves.get(name)
        if known is not None and known[0].count >= table.count:
            return known[1]
        backend, node, capacity = self._backend, table.node, table.values.capacity
        key = f"move {name} {node.retraction_key}"
        (kernel,) = compiled(
            backend, "moves of live problems", {key: lambda: move_kernel(node, EXACT)}
        )
        packed = Packed.empty(backend, capacity, node.storage_dim)
        step, free = (Packed.empty(backend, capacity, node.tangent_dim) for _ in range(2))
        data, output = output_rows(backend, capacity, node.storage_dim)
        bindings = {
            "value": packed.binding,
            "step": step.binding,
            "free": free.binding,
            "moved": Binding(data, capacity),
        }
        run = backend.repeated_runner([backend.bind(kernel, bindings, capacity)])

        def move(values: Rows, by: Rows) -> Rows:
            used = slice(0, len(values))
            packed.write(values, used)
            step.write(by, used)
            free.write(table.free.rows, used)
            run()
            return np.array(output[used])

        self._moves[name] = packed, move
        return move
