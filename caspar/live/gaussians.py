"""The Gaussians of a live problem: kept by handle, evaluated at any values, made of rows.

The step from the values at which a Gaussian was made to the current ones is the residual of
`caspar.factors.prior` without noise, evaluated for all nodes of all Gaussians at once. Cost tier:
an evaluation once for each step, the list of nodes once for each Gaussian that comes or goes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from caspar.factors.poses import prior
from caspar.live.gaussian import Gaussian, eliminated
from caspar.live.linearization import Linearizer, RowGroup
from caspar.live.tables import FactorTable, Flags, Ids, NodeTable, Rows
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import ConstantArray, FactorArrays
from caspar.tracing import traced_factor


class Gaussians:
    """The Gaussians of one problem.

    Args:
        backend: The processor.
        nodes: Tables of the node types, by name.

    Attributes:
        by_handle: The Gaussians.
        next_handle: Of the next one.
    """

    def __init__(self, backend: Backend, nodes: Mapping[str, NodeTable]) -> None:
        self.by_handle: dict[int, Gaussian] = {}
        self.next_handle = 0
        self._backend, self._nodes = backend, nodes
        self._steps: dict[str, FactorTable] = {}
        self._linearizer = Linearizer(backend, nodes, self._steps)

    @property
    def constant(self) -> float:
        """The cost of all Gaussians at their minima."""
        return sum(one.constant for one in self.by_handle.values())

    def replace(self, handles: Sequence[int], gaussian: Gaussian | None = None) -> int:
        """Drop some and keep another; the next handle, which is that of the other one."""
        for handle in handles:
            del self.by_handle[handle]
        handle = self.next_handle
        if gaussian is not None:
            self.next_handle += 1
            self.by_handle[handle] = gaussian
        self.list_nodes()
        return handle

    def list_nodes(self) -> None:
        """List the nodes of all Gaussians in order, with a step for each; again if nodes went."""
        for table in self._steps.values():
            table.keep(np.zeros(table.count, np.bool_))
        for gaussian in self.by_handle.values():
            for name, ids in gaussian.nodes.items():
                nodes = self._nodes[name]
                if name not in self._steps:
                    factor = prior(nodes.node.python_type, noise="unit", name=f"step_of_{name}")
                    self._steps[name] = FactorTable(traced_factor(factor))
                steps = self._steps[name]
                places = nodes.places(f"Gaussian, {nodes.title}", ids)
                expected = {"expected": ConstantArray(gaussian.values[name], None)}
                steps.add(FactorArrays(len(ids), {"value": places}, expected, (), len(ids)))
        self._linearizer.forget()

    def touching(self, removed: Mapping[str, Flags]) -> list[int]:
        """Handles of those that touch one of some nodes, flags by name of their type."""
        return [
            handle
            for handle, gaussian in self.by_handle.items()
            if any(
                removed[name][self._nodes[name].places(f"Gaussian {handle}", ids)].any()
                for name, ids in gaussian.nodes.items()
                if name in removed
            )
        ]

    def evaluate(self, values: Mapping[str, Rows]) -> dict[int, RowGroup]:
        """Return their rows by handle, at some values of the node types."""
        if len(self.by_handle) == 0:
            return {}
        needed = {name: values[name] for name in self._steps if name in values}
        steps = {name: one[1] for name, one in self._linearizer.evaluate(needed).items()}
        used = dict.fromkeys(steps, 0)
        found = {}
        for handle, gaussian in self.by_handle.items():
            step, columns, entries = [], [], []
            first, height = 0, len(gaussian.rows)
            for name, ids in gaussian.nodes.items():
                count, dim, group = len(ids), self._nodes[name].dim, steps[name]
                part = slice(used[name], used[name] + count)
                used[name] = part.stop
                rows = gaussian.rows[:, first : first + dim * count].reshape(height, count, dim)
                first += dim * count
                turned = rows.swapaxes(0, 1) @ group.entries[part]
                entries.append(turned.swapaxes(0, 1).reshape(height, count * dim))
                columns.append(group.columns[part].ravel())
                step.append(group.residual[part].ravel())
            found[handle] = RowGroup(
                (gaussian.residual + gaussian.rows @ np.concatenate(step))[None],
                np.concatenate(columns)[None],
                np.concatenate(entries, axis=1)[None],
            )
        return found

    def made(
        self, groups: Sequence[RowGroup], removed: Mapping[str, Flags], num_unknowns: int
    ) -> Gaussian | None:
        """Marginalise rows to the nodes that stay; None: they depend on no such node.

        Args:
            groups: All rows that depend on a node that goes.
            removed: By node type flags of the nodes that go.
            num_unknowns: Unknowns of all nodes.
        """
        if len(groups) == 0:
            return None
        columns = np.concatenate([group.columns.ravel() for group in groups])
        uses = np.bincount(columns, minlength=num_unknowns)
        taken: list[tuple[int, Ids]] = []
        nodes: dict[str, Ids] = {}
        values: dict[str, Rows] = {}
        kept = []
        for name, table in self._nodes.items():
            unknowns = table.unknowns.column[:, None] + np.arange(table.dim)
            flags = removed.get(name, np.zeros(table.count, np.bool_))
            of_node = uses[unknowns].max(axis=1, initial=0)
            taken += zip(of_node[flags].tolist(), unknowns[flags], strict=True)
            beside = ~flags & (of_node > 0)
            if beside.any():
                nodes[name] = table.numbers[beside]
                values[name] = table.values.rows[beside]
                kept.append(unknowns[beside].ravel())
        if len(nodes) == 0:
            return None
        # those with few rows first, such as landmarks before the poses that see them
        taken.sort(key=lambda one: one[0])
        unknowns_taken = [own for _, own in taken]
        return Gaussian(nodes, values, *eliminated(groups, unknowns_taken, np.concatenate(kept)))
