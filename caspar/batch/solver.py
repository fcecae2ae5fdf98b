"""`BatchSolver`: factors in, many small problems solved at once."""

import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from caspar.batch import parameters as names
from caspar.batch.input import Batch, read_batch
from caspar.batch.kernel import KERNEL, batch_kernel
from caspar.batch.options import checked_options, checked_precision, option_numbers
from caspar.batch.result import STATUSES, BatchResult
from caspar.batch.shape import BatchShape
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.codegen.targets import TARGETS
from caspar.driver import cached
from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.terms import with_terms
from caspar.frontend.factors.trace import TracedFactor
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.options import BackendChoice, Precision
from caspar.progress import phase, showing
from caspar.runtime.arrays import HOST, Moved, as_library, give_back, location
from caspar.runtime.backend import Backend, Kernel
from caspar.runtime.select import chosen_backend
from caspar.solver.choice.recipe import checked_factors, make_recipe
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.result.result import SolveStatus

MAX_UNKNOWNS = 24
"""Of a problem: its normal matrix is factorised in registers by code without loops."""


class BatchSolver:
    """Many small independent nonlinear least squares problems at once, one a thread.

    Each problem has its own damping, acceptance, stopping rule, status and number of iterations.
    All of its Levenberg-Marquardt loop is one generated kernel, which is compiled for the factors
    and for how arrays are passed, not for the number of problems or of instances.

    Pickles and copies hold factors, by module and name, and the arguments below.

    Args:
        factors: Functions decorated with `caspar.factor`; a single one needs no list. Together
            their nodes have at most 24 unknowns in a problem.
        backend: `cuda`, `cpu`, `auto`, or a backend object, as for `Solver`.
        precision: `float64`, which `auto` is, or `float32`: values, residuals and normal equations
            in float32, costs summed in float64.

    Raises:
        FactorError: A factor cannot be compiled.
        BackendError: The backend is not usable here.
        OptionError: An unknown choice.
    """

    def __init__(
        self,
        factors: Sequence[Factor] | Factor,
        *,
        backend: str | BackendChoice | Backend = "auto",
        precision: str | Precision = "auto",
    ) -> None:
        start = time.perf_counter()
        self._given = checked_factors(factors)
        self._choices = {"backend": backend, "precision": precision}
        self.precision: Precision = checked_precision(precision)
        with showing(None):
            recipe = make_recipe(self._given, precision=self.precision)
        self._factors, self._nodes = recipe.factors, recipe.nodes
        self.backend: Backend = chosen_backend(backend)
        self._terms: dict[tuple[int, tuple[str, ...]], TracedFactor] = {}
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._backlog_s = time.perf_counter() - start

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as its factors and choices; traced and compiled where it arrives.

        Raises:
            pickle.PicklingError: A factor is not found by its module and name, or the backend was
                given as an object, which belongs to this process.
        """
        if not isinstance(self._choices["backend"], str | BackendChoice):
            raise pickle.PicklingError(
                f"a BatchSolver with the backend object {self.backend!r} cannot be pickled: a "
                "backend belongs to its process. Use backend='auto', 'cuda' or 'cpu'"
            )
        return _remade, (self._given, self._choices)

    def __copy__(self) -> "BatchSolver":
        """A solver of the same factors and choices."""
        return _remade(self._given, self._choices)

    def __deepcopy__(self, memo: object) -> "BatchSolver":
        """The same."""
        return self.__copy__()

    def __repr__(self) -> str:
        """Factors, node types, where it runs and in which precision."""
        factors = ", ".join(factor.name for factor in self._factors)
        nodes = ", ".join(node.name for node in self._nodes)
        return (
            f"BatchSolver(factors: {factors}; node types: {nodes}; {self.backend.name}, "
            f"{self.precision.value} precision)"
        )

    def solve(
        self,
        arrays: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> BatchResult:
        """Minimise each problem's 1/2 * sum of w rho(|r|^2) over its own values.

        Args:
            arrays: One nested mapping. A node type's class name -> (P, storage_dim) start values,
                one node in each of P problems, or (P, n, storage_dim), n nodes in each. A factor's
                name -> its arguments: (P, m, dim) for sequential constants, (P, dim) for unique
                ones, (P, m) integers, counted within the problem, for shared nodes if a problem has
                several. A first axis of 1 stands for the same in all problems. Where problems have
                different numbers of instances: {"values": (n, dim), "problem": (n,)}, rows of all
                problems and the problem of each, in any order. `weight` and the parameters of
                losses likewise. NumPy, CuPy or DLPack arrays, all on one device; they are never
                written. A value that is NaN or infinite spoils its own problem only.
            fixed: What is held, by node type, as for `Solver.solve`: problems are the instances;
                with n nodes in each, node i of problem p is instance n p + i.
            **options: `max_iterations`, `initial_damping`, `min_damping`, `max_damping`,
                `cost_tolerance`, `gradient_tolerance`, `step_tolerance`, `check`: see
                `caspar.SolveOptions`. None stands for what `Solver` would take for one problem.

        Raises:
            InputError: Arrays or `fixed` do not fit the factors, or problems are too large.
            OptionError: An unknown option, or a value out of range.
            OutOfMemoryError: The arrays do not fit the device.
        """
        chosen = checked_options(options)
        with showing(None), self.backend.scope():
            start = time.perf_counter()
            reader = ArrayReader(self.backend, self.precision, check_values=False)
            batch = read_batch(
                arrays,
                self._factors,
                self._nodes,
                reader,
                fixed,
                self._with_terms,
                check=chosen.check,
            )
            self._check_size(batch.shape)
            read_s = time.perf_counter() - start
            kernel, compile_s = self._kernel(batch.shape)
            start = time.perf_counter()
            run = _Run(self.backend, kernel, batch, option_numbers(chosen, batch.shape))
            self.backend.synchronize()
            setup_s = read_s + time.perf_counter() - start
            start = time.perf_counter()
            run.launch()
            self.backend.synchronize()
            solve_s = time.perf_counter() - start
            found = run.found(arrays, reader)
        return BatchResult(
            **found,
            backend=self.backend.name,
            device=self.backend.device,
            precision=self.precision.value,
            compile_time_s=compile_s,
            setup_time_s=setup_s,
            solve_time_s=solve_s,
        )

    def source(self, arrays: Mapping[str, Any], *, fixed: Mapping[str, Any] | None = None) -> str:
        """The text of the kernel that would solve such problems: CUDA C, or that of the processor.

        Args:
            arrays: As for `solve`.
            fixed: Likewise.

        Raises:
            InputError: As `solve`.
        """
        with self.backend.scope():
            reader = ArrayReader(self.backend, self.precision, check_values=False)
            batch = read_batch(
                arrays, self._factors, self._nodes, reader, fixed, self._with_terms, check=True
            )
        self._check_size(batch.shape)
        return self._generated(batch.shape).text

    def _with_terms(self, number: int, by_instance: tuple[str, ...]) -> TracedFactor:
        """A factor with its terms; made once, as their keys take milliseconds."""
        key = (number, by_instance)
        if key not in self._terms:
            self._terms[key] = with_terms(self._factors[number], by_instance)
        return self._terms[key]

    def _check_size(self, shape: BatchShape) -> None:
        if shape.num_unknowns > MAX_UNKNOWNS:
            sizes = ", ".join(
                f"{one.count} {one.node.name} of {one.node.tangent_dim}" for one in shape.nodes
            )
            raise InputError(
                f"a problem has {shape.num_unknowns} unknowns ({sizes}); a BatchSolver solves "
                f"problems of at most {MAX_UNKNOWNS}. Use caspar.Solver for larger ones, one by "
                "one or as one problem with nodes of all"
            )

    def _kernel(self, shape: BatchShape) -> tuple[Kernel, float]:
        """The compiled kernel, and seconds that it took now."""
        spent_s, self._backlog_s = self._backlog_s, 0.0
        key = shape.structure
        if key not in self._kernels:
            start = time.perf_counter()
            source = self._generated(shape)
            with phase("compiling the kernel of a batch"):
                self._kernels[key] = self.backend.load([source])[KERNEL]
            spent_s += time.perf_counter() - start
        return self._kernels[key], spent_s

    def _generated(self, shape: BatchShape) -> KernelSource:
        target = TARGETS[self.backend.traits.target]
        with phase("generating the kernel of a batch"):
            return cached(
                [target.name, shape.key],
                lambda: batch_kernel(shape, target),
                source_to_json,
                source_from_json,
            )


class _Run:
    """A kernel with the memory of one batch.

    Args:
        backend: Where it runs.
        kernel: What runs.
        batch: Checked arrays.
        options: What the kernel reads, by `Option`.
    """

    def __init__(self, backend: Backend, kernel: Kernel, batch: Batch, options: Array) -> None:
        self._backend = backend
        self._batch = batch
        xp, count = backend.xp, batch.num_problems
        storage = batch.shape.storage.value
        self._starts = [backend.upload(batch.starts[one.node.name]) for one in batch.shape.nodes]
        self._ends = [xp.empty(start.shape, storage) for start in self._starts]
        self._outputs = {
            names.INITIAL_COST: xp.empty(count, np.float64),
            names.FINAL_COST: xp.empty(count, np.float64),
            names.ITERATIONS: xp.empty(count, np.int32),
            names.STATUS: xp.empty(count, np.int32),
        }
        arrays: dict[str, Array] = {names.OPTIONS: backend.upload(options), **self._outputs}
        strides: dict[str, int] = {}
        for number, nodes in enumerate(batch.shape.nodes):
            arrays[names.values_name(number)] = self._starts[number]
            arrays[names.result_name(number)] = self._ends[number]
            if nodes.is_masked:
                arrays[names.free_name(number)] = backend.upload(batch.free[nodes.node.name])
        for name, (array, stride) in batch.arrays.items():
            arrays[name], strides[name] = backend.upload(array), stride
        bindings = {
            name: Binding(array, 0, fields={names.STRIDE: strides.get(name, 0)})
            for name, array in arrays.items()
        }
        for number, length in batch.instances.items():
            name = names.factor_name(number)
            bindings[name] = Binding(arrays[names.STATUS], 0, fields={names.INSTANCES: length})
        self._run = None if count == 0 else backend.runner([backend.bind(kernel, bindings, count)])

    def launch(self) -> None:
        """Enqueue the kernel."""
        if self._run is not None:
            self._run()

    def found(self, arrays: Mapping[str, Any], reader: ArrayReader) -> dict[str, Any]:
        """What `BatchResult` holds of it, as the kind of arrays that were given."""
        backend, batch = self._backend, self._batch
        values = {}
        for start, end, nodes in zip(self._starts, self._ends, batch.shape.nodes, strict=True):
            name = nodes.node.name
            given = arrays[name]
            moved = Moved(start, end, has_held=nodes.is_masked)
            flat = given.reshape(start.shape) if hasattr(given, "reshape") else given
            made = give_back(moved, flat, reader.dtype(given), backend.to_host, backend.upload)
            values[name] = made.reshape(given.shape) if hasattr(given, "shape") else made
        like = arrays[batch.shape.nodes[0].node.name]
        status, iterations = self._outputs[names.STATUS], self._outputs[names.ITERATIONS]
        if batch.may_be_empty:
            is_empty = backend.upload(batch.num_residuals) == 0
            status[is_empty] = STATUSES.index(SolveStatus.NO_RESIDUALS)
            iterations[is_empty] = 0
        is_host = location(like) == HOST

        def given_back(array: Array) -> Any:
            return as_library(backend.to_host(array) if is_host else array, like)

        return {
            "values": values,
            "status_codes": given_back(status),
            "initial_cost": given_back(self._outputs[names.INITIAL_COST]),
            "final_cost": given_back(self._outputs[names.FINAL_COST]),
            "iterations": given_back(iterations),
            "num_residuals": given_back(backend.upload(batch.num_residuals)),
        }


def _remade(factors: tuple[Factor, ...], choices: Mapping[str, Any]) -> BatchSolver:
    return BatchSolver(factors, **choices)
