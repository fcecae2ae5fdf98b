"""`Problem`: nodes and factors that come and go, and values that follow."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError, OptionError
from caspar.frontend.factors.factor import constraint_kinds
from caspar.live.gaussian import Gaussian
from caspar.live.gaussians import Gaussians
from caspar.live.incremental import Incremental, UpdateResult
from caspar.live.tables import FactorTable, Flags, Ids, NodeTable, Rows, empty_tables, on_host
from caspar.options import (
    MAX_ITERATIONS,
    BackendChoice,
    Precision,
    SolveOptions,
    SolveOptionsDict,
    Unpack,
    checked_count,
)
from caspar.runtime.select import select_backend
from caspar.solver.choice.recipe import checked_factors
from caspar.solver.constraints.problems import check_names
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.input.constraints import read_fixed
from caspar.solver.input.problem_reader import read_factor
from caspar.solver.result.by_name import ByName, unknown_name
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver

Table = TypeVar("Table", NodeTable, FactorTable)


class Problem:
    """A least-squares problem whose nodes and factors come and go.

    Nodes are named by ids and factor instances by handles, which are integers that are never used
    twice. Values stay where they are until `update` or `solve` moves them. An error leaves the
    problem as it was. Methods may be called from several threads: each waits for the others.

    `update` works on the processor, in float64, with the factorisation of earlier updates as far
    as it is of use. `solve` is that of `caspar.Solver`, where and how that was asked for, unless
    the problem has Gaussians.

    Args:
        factors: Functions decorated with `caspar.factor`, with node arguments marked
            `TunableShared`; a single one needs no list.
        **options: As for `caspar.Solver`; they are those of `solve`.

    Raises:
        FactorError, BackendError, OptionError: As `caspar.Solver`.
        InputError: A factor counts nodes by position (`TunableUnique`, `TunablePair`).

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> step = caspar.factors.between(Place, noise="unit", name="step")
        >>> problem = caspar.Problem(step)
        >>> ids = problem.add_nodes("Place", [[1.0], [2.9]])
        >>> problem.set_fixed("Place", ids[:1])
        >>> _ = problem.add_factors("step", {"a": ids[:1], "b": ids[1:], "a_from_b": [[2.5]]})
        >>> _ = problem.update()
        >>> problem.values_of("Place", ids[1:]).round(3)
        array([[3.5]])
    """

    def __init__(self, factors: Any, **options: Any) -> None:
        self._begin(factors, options)

    def _begin(self, factors: Any, options: Mapping[str, Any]) -> None:
        self._solver = Solver(factors, **options)
        self._constraints = constraint_kinds(checked_factors(factors))
        self._options, self._lock = options, RLock()
        self._given = factors
        self._nodes, self._factors = empty_tables(factors)
        self._backend = select_backend(BackendChoice.CPU)
        self._gaussians = Gaussians(self._backend, self._nodes)
        plain = {name: t for name, t in self._factors.items() if name not in self._constraints}
        self._incremental = Incremental(self._backend, self._nodes, plain, self._gaussians)

    def __repr__(self) -> str:
        """Counts."""
        nodes = ", ".join(f"{table.count} {name}" for name, table in self._nodes.items())
        factors = ", ".join(f"{table.count} {name}" for name, table in self._factors.items())
        return f"Problem(nodes: {nodes}; factors: {factors}; Gaussians: {len(self.gaussians)})"

    def __getstate__(self) -> dict[str, Any]:
        """Factors by module and name, and the rows of the tables; nothing compiled."""
        with self._lock:
            tables = {**self._nodes, **self._factors}
            return {
                "factors": self._given,
                "options": self._options,
                "rows": {name: table.rows() for name, table in tables.items()},
                "gaussians": (self._gaussians.by_handle, self._gaussians.next_handle),
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew with the same nodes, factors and numbers."""
        self._begin(state["factors"], state["options"])
        for name, table in {**self._nodes, **self._factors}.items():
            table.take(state["rows"][name])
        by_handle, self._gaussians.next_handle = state["gaussians"]
        self._gaussians.by_handle.update(by_handle)
        self._gaussians.list_nodes()
        self._incremental.forget()

    # -- what there is -------------------------------------------------------------------------

    def add_nodes(self, name: str, values: Any) -> Ids:
        """Add nodes.

        Args:
            name: Of the node type.
            values: (k, storage_dim) start values, in SymForce's storage order.

        Returns:
            (k,) int64 ids.

        Raises:
            InputError: No such node type, or values that do not fit it.
        """
        with self._lock:
            table = self._node_table(name)
            rows = np.asarray(self._reader().of_node(table.node, on_host(values)), np.float64)
            made = table.add(rows, self._incremental.num_unknowns)
            self._incremental.num_unknowns += len(rows) * table.dim
            return made

    def add_factors(self, name: str, arrays: Mapping[str, Any]) -> Ids:
        """Add instances of a factor.

        Args:
            name: Of the factor.
            arrays: As for `caspar.Solver.solve`, with ids of nodes instead of indices.

        Returns:
            (m,) int64 handles.

        Raises:
            InputError: No such factor, arrays that do not fit it, or an id that is unknown or was
                removed.
        """
        with self._lock:
            table = self._factor_table(name)
            if len(table.given.patches) > 0:
                from caspar.frontend.patches import with_patches

                arrays = with_patches({name: arrays}, [table.given])[name]
            check_names({name: arrays}, tuple(self._constraints))
            given = on_host(arrays)
            if isinstance(given, dict):
                for source in table.nodes:
                    if source in given:
                        nodes = self._of_argument(table, source)
                        where = f"factor {name}, argument {source}"
                        given[source] = nodes.places(where, given[source], repeated=True)
            counts = {one: nodes.count for one, nodes in self._nodes.items()}
            return table.add(read_factor(table.given, given, counts, self._reader()))

    def remove_factors(self, name: str, handles: Any) -> None:
        """Remove instances of a factor.

        Args:
            name: Of the factor.
            handles: (m,) handles, each once.

        Raises:
            InputError: No such factor, or a handle is unknown, removed or repeated.
        """
        with self._lock:
            table = self._factor_table(name)
            table.keep(~table.flags(f"remove_factors, factor {name}", handles))
            self._incremental.forget()

    def remove_nodes(self, name: str, ids: Any, *, with_factors: bool = False) -> None:
        """Remove nodes, and what they are known by: see `marginalize` for the alternative.

        Args:
            name: Of the node type.
            ids: (k,) ids, each once.
            with_factors: Whether factor instances and Gaussians that touch them are removed too.

        Raises:
            InputError: No such node type; an id is unknown, removed or repeated; or something
                touches a node and `with_factors` is False.
        """
        with self._lock:
            where = f"remove_nodes, node type {name}"
            removed = {name: self._node_table(name).flags(where, ids)}
            touched = self._touching(removed)
            gaussians = self._gaussians.touching(removed)
            if not with_factors:
                for factor, flags in touched.items():
                    if flags.any():
                        handle = int(self._factors[factor].numbers[flags][0])
                        raise InputError(
                            f"{where}: {int(flags.sum())} instances of "
                            f"factor {factor} touch these nodes, first handle {handle}; remove "
                            "them first, pass with_factors=True, or use marginalize"
                        )
                if len(gaussians) > 0:
                    raise InputError(
                        f"{where}: Gaussian {gaussians[0]} touches these "
                        "nodes; remove it first, pass with_factors=True, or use marginalize"
                    )
            self._remove(removed, touched, gaussians)

    def marginalize(self, name: str | Mapping[str, Any], ids: Any = None) -> int | None:
        """Take nodes out, and keep what they tell of their neighbours as a Gaussian.

        Factors that touch the nodes, and Gaussians that do, are linearised at the current values
        and removed; the Gaussian has their minimum over the nodes and the same curvature.

        Args:
            name: Of the node type; or a mapping of several types to their ids.
            ids: (k,) ids, each once.

        Returns:
            The Gaussian's handle in `gaussians`; None if no node is left that it would touch.

        Raises:
            InputError: No such node type, or an id is unknown, removed or repeated.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Place(sf.V1): ...
            >>> problem = caspar.Problem(caspar.factors.between(Place, noise="unit", name="step"))
            >>> a, b, c = problem.add_nodes("Place", [[0.0], [0.9], [2.1]])
            >>> steps = {"a": [a, b], "b": [b, c], "a_from_b": [[1.0], [1.0]]}
            >>> handles = problem.add_factors("step", steps)
            >>> handle = problem.marginalize("Place", [b])
            >>> problem.gaussians[handle].nodes
            {'Place': array([0, 2])}
        """
        chosen = name if isinstance(name, Mapping) else {name: ids}
        with self._lock:
            removed = {
                one: self._node_table(one).flags(f"marginalize, node type {one}", numbers)
                for one, numbers in chosen.items()
            }
            touched, gaussians = self._touching(removed), self._gaussians.touching(removed)
            self._refuse_constraints("marginalize", touched)
            incremental = self._incremental

            def make() -> Gaussian | None:
                groups = incremental.current().touching(touched, gaussians)
                return self._gaussians.made(groups, removed, incremental.num_unknowns)

            made = incremental.alone(make, is_dense=True)
            if made is not None:
                constants = (self._gaussians.by_handle[one].constant for one in gaussians)
                made = replace(made, constant=made.constant + sum(constants))
            handle = self._remove(removed, touched, gaussians, made)
            return None if made is None else handle

    def set_values(self, name: str, ids: Any, values: Any) -> None:
        """Put nodes elsewhere.

        Args:
            name: Of the node type.
            ids: (k,) ids, each once.
            values: (k, storage_dim).

        Raises:
            InputError: As `add_nodes`; or an id is unknown, removed or repeated.
        """
        with self._lock:
            table = self._node_table(name)
            places = table.places(f"set_values, node type {name}", ids)
            rows = self._reader().of_node(table.node, on_host(values))
            _check_length(f"set_values, node type {name}", len(rows), len(places), "ids")
            table.values.rows[places] = rows
            self._incremental.forget()

    def set_fixed(self, name: str, held: Any) -> None:
        """Say what of a node type is held; what was held before is free unless it is named again.

        Args:
            name: Of the node type.
            held: (k,) ids of nodes that are held as a whole; or booleans in the order of `ids`:
                (n,) for whole nodes, (n, tangent_dim) for components of their tangents; or a
                mapping of fields to such booleans, as for `caspar.Solver.solve`; True or False for
                all nodes.

        Raises:
            InputError: No such node type, an unknown id, or masks that do not fit.
        """
        with self._lock:
            table = self._node_table(name)
            where = f"set_fixed, node type {name}"
            given = held
            if not isinstance(held, Mapping | bool | np.bool_):
                array = np.asarray(on_host(held))
                if array.dtype.kind != "b":
                    given = table.places(where, held)
            counts = {name: table.count}
            types = self._reader().types
            masks = read_fixed({name: given}, [table.node], counts, types.values)
            table.free.rows[...] = masks[name]
            self._incremental.forget()

    def set_arguments(self, name: str, handles: Any, arrays: Mapping[str, Any]) -> None:
        """Change constants, weights or loss scales of factor instances.

        Args:
            name: Of the factor.
            handles: (m,) handles, each once.
            arrays: By argument (m, dim) values, (m,) of weights and loss scales; (dim,) of a
                constant that all instances share, and then `handles` must be all of them.

        Raises:
            InputError: No such factor or argument, an unknown handle, or arrays that do not fit.
        """
        with self._lock:
            table = self._factor_table(name)
            where = f"set_arguments, factor {name}"
            places = table.places(where, handles)
            if not isinstance(arrays, Mapping):
                raise InputError(f"{where}: expected a mapping of arguments, got {arrays!r}")
            for source in arrays:
                if source not in table.constants:
                    known = ", ".join(table.constants)
                    raise InputError(f"{where}: {source!r} is none of its constants: {known}")
                if table.is_shared(source) and len(places) != table.count:
                    raise InputError(
                        f"{where}, argument {source}: all instances share it, so it is set for all "
                        "handles at once"
                    )
            # with the rest as it is, what is new is checked as ever
            given = {**table.arrays(places), **on_host(arrays)}
            counts = {one: nodes.count for one, nodes in self._nodes.items()}
            read = read_factor(table.given, given, counts, self._reader())
            _check_length(where, read.count, len(places), "handles")
            table.write(arrays, places, read)
            self._incremental.forget()

    # -- results -------------------------------------------------------------------------------

    def ids(self, name: str) -> Ids:
        """(n,) ids of the nodes of a type, ascending.

        Raises:
            InputError: There is no such node type.
        """
        return self._node_table(name).numbers

    def handles(self, name: str) -> Ids:
        """(m,) handles of the instances of a factor, ascending.

        Raises:
            InputError: There is no such factor.
        """
        return self._factor_table(name).numbers

    @property
    def values(self) -> Mapping[str, Rows]:
        """Current values by node type, (n, storage_dim), in the order of `ids`; copies."""
        with self._lock:
            found = {name: table.values.rows.copy() for name, table in self._nodes.items()}
            return ByName(found, "node type")

    def values_of(self, name: str, ids: Any) -> Rows:
        """(k, storage_dim) current values of some nodes.

        Args:
            name: Of the node type.
            ids: (k,) ids, which may repeat.

        Raises:
            InputError: No such node type, or an id is unknown or was removed.
        """
        with self._lock:
            table = self._node_table(name)
            places = table.places(f"values_of, node type {name}", ids, repeated=True)
            found: Rows = table.values.rows[places]
            return found

    @property
    def gaussians(self) -> Mapping[int, Gaussian]:
        """Gaussians of `marginalize` and `add_gaussian`, by handle."""
        return dict(self._gaussians.by_handle)

    def add_gaussian(self, gaussian: Gaussian) -> int:
        """Add a quadratic cost of some nodes, such as one of another problem with these ids.

        Returns:
            Its handle.

        Raises:
            InputError: An id is unknown or removed, or shapes do not agree.
        """
        with self._lock:
            if not isinstance(gaussian, Gaussian):
                raise InputError(f"add_gaussian: expected a caspar Gaussian, got {gaussian!r}")
            width = 0
            for name, ids in gaussian.nodes.items():
                table = self._node_table(name)
                where = f"add_gaussian, node type {name}"
                width += table.dim * len(table.places(where, ids))
                values = gaussian.values.get(name, np.zeros((0, 0)))
                expected = (len(ids), table.node.storage_dim)
                if np.shape(values) != expected:
                    raise InputError(f"{where}: values {np.shape(values)}; expected {expected}")
            shape = (len(gaussian.residual), width)
            if gaussian.rows.shape != shape:
                raise InputError(f"add_gaussian: rows {gaussian.rows.shape}; expected {shape}")
            self._incremental.forget()
            return self._gaussians.replace([], gaussian)

    def remove_gaussian(self, handle: int) -> None:
        """Remove a Gaussian.

        Raises:
            InputError: There is none with this handle.
        """
        with self._lock:
            if handle not in self.gaussians:
                known = ", ".join(map(str, self.gaussians)) or "there is none"
                raise InputError(f"remove_gaussian: no Gaussian has handle {handle!r}: {known}")
            self._gaussians.replace([handle])
            self._incremental.forget()

    def arrays(self) -> dict[str, Any]:
        """Return arrays for `caspar.Solver.solve`: copies, positions instead of ids.

        Gaussians are not among them.
        """
        with self._lock:
            found: dict[str, Any] = dict(self.values)
            return found | {name: table.arrays() for name, table in self._factors.items()}

    def refused(self, name: str) -> NDArray[np.bool_]:
        """Return which instances are left out: they look up outside of a table that refuses that.

        Args:
            name: Of the factor. Tables of a class with `border="refuse"` count.

        Returns:
            (count,) in the order of `handles`.

        Raises:
            InputError: There is no such factor.
        """
        with self._lock:
            table = self._factor_table(name)
            if table.count > 0 and table.factor.inside:
                return self._solver.evaluate(self.arrays()).refused(name)
            return np.zeros(table.count, np.bool_)

    def update(self, *, max_iterations: int = 1, cost_tolerance: float = 1e-7) -> UpdateResult:
        """Move the values towards the minimum, as quickly as can be.

        Args:
            max_iterations: Steps at most.
            cost_tolerance: No step is taken that promises a decrease below this, relative to the
                cost.

        Raises:
            SizeError: Kernels of a factor would take minutes to compile.
            OptionError: An option out of range.
        """
        most = checked_count("max_iterations", max_iterations, 1, MAX_ITERATIONS)
        checked = SolveOptions(cost_tolerance=cost_tolerance)
        assert checked.cost_tolerance is not None
        with self._lock, self._backend.scope():
            self._refuse_constraints("update")
            return self._incremental.run(most, checked.cost_tolerance)

    def solve(
        self, *, bounds: Mapping[str, Any] | None = None, **options: Unpack[SolveOptionsDict]
    ) -> SolveResult:
        """Move the values to the minimum.

        By `caspar.Solver.solve`; a problem with Gaussians by Gauss-Newton steps on the processor,
        with damping only if a step does not lower the cost.

        Args:
            bounds: As for `caspar.Solver.solve`, nodes in the order of `ids`. They are those of
                this call: `update` does not know them.
            **options: As for `caspar.Solver.solve`. With Gaussians `max_iterations` and
                `cost_tolerance` only, and no bounds.

        Returns:
            What `caspar.Solver.solve` returns; arrays are in the order of `ids` and `handles`.

        Raises:
            OptionError: An unknown option, one out of range, or one that Gaussians do not allow.
            SizeError, InputError, OutOfMemoryError: As `caspar.Solver.solve`.
        """
        if "fixed" in options:
            raise OptionError("fixed: say what a live problem holds by set_fixed, not in solve")
        checked = SolveOptions.from_mapping(options)
        with self._lock:
            if len(self.gaussians) > 0:
                self._refuse_constraints("solve with Gaussians")
                named = [*options, *(["bounds"] if bounds is not None else [])]
                with self._backend.scope():
                    return self._incremental.solve(checked, named)
            fixed = {
                name: table.free.rows == 0.0
                for name, table in self._nodes.items()
                if not table.free.rows.all()
            }
            result = self._solver.solve(self.arrays(), fixed=fixed, bounds=bounds, **options)
            for name, rows in result.values.items():
                self._nodes[name].values.rows[...] = rows
            self._incremental.forget()
            return result

    def covariance(self, blocks: Mapping[str, Any]) -> dict[str, Rows]:
        """The covariance of some nodes at the current values, marginal over all others.

        Args:
            blocks: By node type (k,) ids, or `all`.

        Returns:
            By node type (k, tangent_dim, tangent_dim), in tangent coordinates, angles in radians;
            zero for what is held.

        Raises:
            InputError: No such node type, or an id is unknown, removed or repeated.
            RankDeficiencyError: Factors leave some direction free.
        """
        with self._lock, self._backend.scope():
            self._refuse_constraints("covariance")
            chosen = {}
            for name, ids in blocks.items():
                table = self._node_table(name)
                is_all = isinstance(ids, str) and ids == "all"
                numbers = table.numbers if is_all else ids
                chosen[name] = table.places(f"covariance, node type {name}", numbers)
            work = partial(self._incremental.covariances, chosen)
            return self._incremental.alone(work, is_dense=False)

    # -- parts ---------------------------------------------------------------------------------

    def _reader(self) -> ArrayReader:
        return ArrayReader(self._backend, Precision.FLOAT64, check_values=True)

    def _node_table(self, name: str) -> NodeTable:
        return _found(self._nodes, name, "node type")

    def _factor_table(self, name: str) -> FactorTable:
        return _found(self._factors, name, "factor")

    def _of_argument(self, table: FactorTable, source: str) -> NodeTable:
        (name,) = {one.node_type.name for one in table.arguments if one.source == source}
        return self._nodes[name]

    def _refuse_constraints(self, what: str, touched: Mapping[str, Flags] | None = None) -> None:
        """Refuse what does not keep constraints, if there are instances, or touched ones."""
        for name in self._constraints:
            count = self._factors[name].count if touched is None else int(touched[name].sum())
            if count > 0:
                raise InputError(
                    f"{what}: {count} instances of constraint {name}; only solve keeps them, if "
                    "there are no Gaussians"
                )

    def _touching(self, removed: Mapping[str, Flags]) -> dict[str, Flags]:
        return {name: table.touching(removed) for name, table in self._factors.items()}

    def _remove(
        self,
        removed: Mapping[str, Flags],
        touched: Mapping[str, Flags],
        gaussians: list[int],
        added: Gaussian | None = None,
    ) -> int:
        for name, flags in touched.items():
            self._factors[name].keep(~flags)
        for name, flags in removed.items():
            kept = ~flags
            places = np.cumsum(kept) - 1
            for table in self._factors.values():
                table.renumber(name, places)
            self._nodes[name].keep(kept)
        self._incremental.forget()
        return self._gaussians.replace(gaussians, added)


def _found(tables: Mapping[str, Table], name: str, what: str) -> Table:
    table = tables.get(name)
    if table is None:
        raise unknown_name(name, what, tables)
    return table


def _check_length(where: str, found: int, expected: int, what: str) -> None:
    if found != expected:
        raise InputError(f"{where}: {found} rows for {expected} {what}; give one row for each")
