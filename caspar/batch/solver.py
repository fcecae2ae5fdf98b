"""`BatchSolver`: factors in, many small problems solved at once."""

import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from caspar.batch.input import Batch, read_batch
from caspar.batch.kernel import KERNEL, cached_batch_kernel
from caspar.batch.options import checked_options, checked_precision, option_numbers
from caspar.batch.result import BatchResult
from caspar.batch.run import BatchRun
from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.terms import with_terms
from caspar.frontend.factors.trace import TracedFactor
from caspar.options import BackendChoice, Precision
from caspar.progress import phase, showing
from caspar.runtime.backend import Backend, Kernel
from caspar.runtime.select import chosen_backend
from caspar.solver.choice.recipe import checked_factors, make_recipe
from caspar.solver.input.array_reader import ArrayReader

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
            batch = self._read(arrays, fixed, check=chosen.check)
            read_s = time.perf_counter() - start
            kernel, compile_s = self._kernel(batch)
            start = time.perf_counter()
            run = BatchRun(self.backend, kernel, batch, option_numbers(chosen, batch.shape))
            self.backend.synchronize()
            setup_s = read_s + time.perf_counter() - start
            start = time.perf_counter()
            run.launch()
            self.backend.synchronize()
            solve_s = time.perf_counter() - start
            return BatchResult(
                **run.found(arrays),
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
            batch = self._read(arrays, fixed, check=True)
            return cached_batch_kernel(batch.shape, self.backend.traits.target).text

    def _read(
        self, arrays: Mapping[str, Any], fixed: Mapping[str, Any] | None, *, check: bool
    ) -> Batch:
        """The checked arrays of problems that are not too large."""
        batch = read_batch(
            arrays,
            self._factors,
            self._nodes,
            ArrayReader(self.backend, self.precision, check_values=False),
            fixed,
            self._with_terms,
            check=check,
        )
        shape = batch.shape
        if shape.num_unknowns > MAX_UNKNOWNS:
            sizes = ", ".join(
                f"{one.count} {one.node.name} of {one.node.tangent_dim}" for one in shape.nodes
            )
            raise InputError(
                f"a problem has {shape.num_unknowns} unknowns ({sizes}); a BatchSolver solves "
                f"problems of at most {MAX_UNKNOWNS}. Use caspar.Solver for larger ones, one by "
                "one or as one problem with nodes of all"
            )
        return batch

    def _with_terms(self, number: int, by_instance: tuple[str, ...]) -> TracedFactor:
        """A factor with its terms; made once, as their keys take milliseconds."""
        key = (number, by_instance)
        if key not in self._terms:
            self._terms[key] = with_terms(self._factors[number], by_instance)
        return self._terms[key]

    def _kernel(self, batch: Batch) -> tuple[Kernel, float]:
        """The compiled kernel, and seconds that it took now."""
        spent_s, self._backlog_s = self._backlog_s, 0.0
        key = batch.shape.structure
        if key not in self._kernels:
            start = time.perf_counter()
            with phase("generating the kernel of a batch"):
                source = cached_batch_kernel(batch.shape, self.backend.traits.target)
            with phase("compiling the kernel of a batch"):
                self._kernels[key] = self.backend.load([source])[KERNEL]
            spent_s += time.perf_counter() - start
        return self._kernels[key], spent_s


def _remade(factors: tuple[Factor, ...], choices: Mapping[str, Any]) -> BatchSolver:
    return BatchSolver(factors, **choices)
