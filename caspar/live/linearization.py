"""Costs, residuals and Jacobians of all factor instances of a live problem, on the processor.

Input: tables. Output: `RowGroup`s. Memory has the capacities of the tables, and kernels are bound
to it again only if one of them grows. Cost tier: kernels once for a problem, an evaluation once for
each step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import COUNT
from caspar.equations.factor_kernels import row_kernel
from caspar.equations.node_kernels import move_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.live.block_functions import Function
from caspar.live.tables import FactorTable, GrowingRows, NodeTable, Rows
from caspar.memory.array import Binding, address
from caspar.options import Precision
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem
from caspar.solver.normal.instance_kernels import (
    InstanceInputs,
    InstanceKernels,
    Packed,
    compiled,
    output_rows,
)

EXACT = TYPES[Precision.FLOAT64]

COST, RESIDUAL = SolverPart.COSTS.addend, FactorPart.RESIDUAL.text
JACOBIAN = FactorPart.JACOBIAN.text
"""Outputs of the kernels."""

Places = NDArray[np.int64]
NO_PLACES: Places = np.zeros(0, np.int64)

FEW_INSTANCES = 16
"""The least number of instances that there is memory for if only some are evaluated."""


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


class FactorRows:
    """Costs and rows of all instances of a factor.

    Args:
        costs: (m,).
        group: The rows; their memory is written to from now on.

    Attributes:
        costs: (m,) as they are now.
        group: The rows as they are now.
        total: The sum of the costs.
    """

    def __init__(self, costs: Rows, group: RowGroup) -> None:
        self.costs, self.group, self.total = costs, group, float(costs.sum())
        self._parts: list[GrowingRows] = []

    def append(self, costs: Rows, group: RowGroup) -> None:
        """Add instances."""
        if len(self._parts) == 0:
            old = (self.costs, self.group.residual, self.group.columns, self.group.entries)
            self._parts = [GrowingRows.of(rows.reshape(len(rows), -1)) for rows in old]
        new = (costs, group.residual, group.columns, group.entries)
        for part, rows in zip(self._parts, new, strict=True):
            part.append(rows)
        self.costs = self._parts[0].column
        residual, columns, entries = (part.rows for part in self._parts[1:])
        shape = (len(entries), *group.entries.shape[1:])
        self.group = RowGroup(residual, columns, entries.reshape(shape))
        self.total += float(costs.sum())

    def write(self, places: Places, costs: Rows, group: RowGroup) -> None:
        """Set costs and rows of some instances, which depend on the same unknowns as before."""
        self.costs[places] = costs
        self.group.residual[places], self.group.entries[places] = group.residual, group.entries
        self.total = float(self.costs.sum())


class _Counted:
    """A kernel that is bound to memory for many items, and runs on as many as there are.

    In the caller's thread: waking up others takes as long as a small problem does.
    """

    def __init__(self, launch: Any) -> None:
        self._launch = launch
        self._function, self._table = Function(launch.kernel.address), address(launch.table)
        params = launch.kernel.source.params
        self._count_at = [param.field for param in params].index(COUNT)

    def run(self, count: int) -> None:
        """Run on the first items."""
        self._launch.set_address(self._count_at, count)
        for tile in range(-(-count // self._launch.kernel.block_size)):
            self._function(self._table, tile)


def _unknowns_used(factor: TracedFactor, argument: Argument, block_size: int) -> Places:
    """The unknowns of a node that a residual depends on, in whole blocks: not a velocity's."""
    chart = argument.storage_by_tangent
    used = [
        any(
            str(symbol) in factor.symbols_used and chart[row, component] != 0
            for row, symbol in enumerate(argument.symbols)
        )
        for component in range(argument.tangent_dim)
    ]
    blocks = np.reshape(used if any(used) else [True] * len(used), (-1, block_size))
    return np.flatnonzero(np.repeat(blocks.any(axis=1), block_size))


class _BoundFactor:
    """The kernel of a factor, bound to memory for some instances.

    Args:
        backend: The processor.
        kernel: Of the factor.
        table: Of the factor.
        values: Memory of the node types, by name.
        capacity: Instances that fit.
        used: By node argument the unknowns that have columns.
    """

    def __init__(
        self,
        backend: Backend,
        kernel: Kernel,
        table: FactorTable,
        values: Mapping[str, Packed],
        capacity: int,
        used: Mapping[str, Places],
    ) -> None:
        self.table, self.capacity, self._used = table, capacity, used
        self._values = {one.node_type.name: values[one.node_type.name] for one in table.arguments}
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
        num_rows, width = len(factor.residual), sum(map(len, used.values()))
        dims = {COST: 1, RESIDUAL: num_rows, JACOBIAN: num_rows * width}
        launch, outputs = self._inputs.bind(kernel, dims)
        self._kernel = _Counted(launch)
        self._outputs = (
            outputs[COST][:, 0],
            outputs[RESIDUAL],
            outputs[JACOBIAN].reshape(capacity, num_rows, width),
        )

    def fits(self, values: Mapping[str, Packed], count: int) -> bool:
        """Return whether some instances fit, values are in the same memory, and so are tables."""
        is_same = all(values[name] is packed for name, packed in self._values.items())
        pools = self.table.pools.items()
        is_same = is_same and all(pool.version == self._versions[name] for name, pool in pools)
        return is_same and count <= self.capacity

    def forget(self) -> None:
        """Rows of the table have changed: copy all again."""
        self._columns = self._columns[:0]

    def evaluate(
        self, tables: Mapping[str, NodeTable], places: Places | None
    ) -> tuple[Rows, RowGroup]:
        """Costs, (m,), and rows of some instances, or of all."""
        table = self.table
        if places is None:
            chosen: slice | Places = slice(0, table.count)
            self._copy(tables, slice(len(self._columns), table.count))
        else:
            chosen, self._columns = places, self._columns[:0]
            self._copy(tables, places)
        columns, count = self._columns, len(self._columns)
        self._kernel.run(count)
        costs, residual, entries = (rows[:count].copy() for rows in self._outputs)
        if any(tables[name].has_held for name in self._values):
            moves = []
            for argument in table.arguments:
                free = tables[argument.node_type.name].free.rows
                places = table.nodes[argument.source].column[chosen]
                moves.append(free[places][:, self._used[argument.name]])
            entries *= np.concatenate(moves, axis=1)[:, None]
        if WEIGHT in table.constants:
            ignored = table.constants[WEIGHT].column[chosen] == 0.0
            if ignored.any():
                # whatever the residual is
                for rows in (costs, residual, entries):
                    rows[ignored] = 0.0
        return costs, RowGroup(residual, columns, entries)

    def _copy(self, tables: Mapping[str, NodeTable], chosen: slice | Places) -> None:
        """Copy what the kernel reads of some instances behind those that were copied."""
        table, known = self.table, len(self._columns)
        columns, count = [], 0
        for argument in table.arguments:
            places = table.nodes[argument.source].column[chosen]
            count = len(places)
            if count == 0:
                return
            self._inputs.index[argument.name][known : known + count] = places
            unknowns = tables[argument.node_type.name].unknowns.column[places, None]
            columns.append(unknowns + self._used[argument.name])
        added, new = np.concatenate(columns, axis=1), slice(known, known + count)
        self._columns = np.concatenate([self._columns, added]) if known > 0 else added
        for one in table.factor.tables:
            if not table.is_shared(one.source):
                numbers = table.constants[one.source].column[chosen]
                self._inputs.rows[one.name][new] = table.pools[one.source].starts(numbers)
        for source, constant in table.constants.items():
            if source in table.pools:
                continue
            if table.is_shared(source):
                self._inputs.write(source, constant.rows, slice(0, 1))
            else:
                self._inputs.write(source, constant.rows[chosen], new)


class Linearizer:
    """Evaluates the factors of a live problem, and moves its nodes.

    Args:
        backend: The processor.
        nodes: Tables of the node types, by name.
        factors: Tables of the factors, by name.
        block_size: Unknowns of a block; of a node a factor has columns for whole blocks.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Mapping[str, NodeTable],
        factors: Mapping[str, FactorTable],
        block_size: int = 1,
    ) -> None:
        self._backend = backend
        self._nodes, self._factors, self._block_size = nodes, factors, block_size
        self._role = f"rows by {block_size}"
        makers = {self._role: lambda factor: row_kernel(factor, EXACT, self._used[factor.name])}
        self._kernels = InstanceKernels(backend, "rows of live problems", makers)
        self._bound: dict[tuple[str, bool], _BoundFactor] = {}
        self._used: dict[str, dict[str, Places]] = {}
        self._values: dict[str, Packed] = {}
        self._moves: dict[str, tuple[Packed, Callable[[Rows, Rows, Rows], Rows]]] = {}

    def forget(self) -> None:
        """Rows of factors were removed or written: read all of them again."""
        for bound in self._bound.values():
            bound.forget()

    def evaluate(
        self, values: Mapping[str, Rows], chosen: Mapping[str, Places] | None = None
    ) -> dict[str, tuple[Rows, RowGroup]]:
        """Return the (m,) costs and the rows of each factor that has instances.

        Args:
            values: By node type (count, storage_dim).
            chosen: By factor which of its instances; others are left out. Best if few remain.
        """
        places: dict[str, Places | None] = {}
        for name, table in self._factors.items():
            own = None if chosen is None else chosen.get(name, NO_PLACES)
            if table.count > 0 and (own is None or len(own) > 0):
                places[name] = own
        for name, rows in values.items() if len(places) > 0 else ():
            packed = self._values.get(name)
            if packed is None or packed.count < len(rows):
                capacity = self._nodes[name].values.capacity
                packed = Packed.empty(self._backend, capacity, rows.shape[1])
                self._values[name] = packed
            packed.write(rows, slice(0, len(rows)))
        return {
            name: self._bound_factor(name, own).evaluate(self._nodes, own)
            for name, own in places.items()
        }

    def _bound_factor(self, name: str, places: Places | None) -> _BoundFactor:
        table, key = self._factors[name], (name, places is None)
        count = table.count if places is None else len(places)
        bound = self._bound.get(key)
        if bound is None or not bound.fits(self._values, count):
            factor = table.factor
            if factor.name not in self._used:
                self._used[factor.name] = {
                    one.name: _unknowns_used(factor, one, self._block_size)
                    for one in table.arguments
                }
            self._kernels.load([factor], [self._role])
            kernel = self._kernels.of(factor, self._role)
            most = max(one.capacity for one in table.nodes.values())
            capacity = most if places is None else max(2 * count, FEW_INSTANCES)
            used = self._used[factor.name]
            bound = _BoundFactor(self._backend, kernel, table, self._values, capacity, used)
            self._bound[key] = bound
        return bound

    def moved(self, step: Rows, chosen: Mapping[str, Places] | None = None) -> dict[str, Rows]:
        """Return (count, storage_dim) values by node type, after a step of all unknowns.

        Args:
            step: (num_unknowns,).
            chosen: By node type the nodes that move, if the others stay.
        """
        found = {}
        for name, table in self._nodes.items():
            if table.count == 0:
                continue
            rows, free, firsts = table.values.rows, table.free.rows, table.unknowns.column
            if chosen is None:
                places = firsts[:, None] + np.arange(table.dim)
                found[name] = self._move(table)(rows, step[places], free)
            else:
                own = chosen[name]
                found[name] = moved = rows.copy()
                if len(own) > 0:
                    places = firsts[own, None] + np.arange(table.dim)
                    moved[own] = self._move(table)(rows[own], step[places], free[own])
        return found

    def _move(self, table: NodeTable) -> Callable[[Rows, Rows, Rows], Rows]:
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
        bound = _Counted(backend.bind(kernel, bindings, capacity))

        def move(values: Rows, by: Rows, share: Rows) -> Rows:
            used = slice(0, len(values))
            for memory, rows in ((packed, values), (step, by), (free, share)):
                memory.write(rows, used)
            bound.run(len(values))
            return np.array(output[used])

        self._moves[name] = packed, move
        return move
