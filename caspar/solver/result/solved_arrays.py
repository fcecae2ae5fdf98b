"""The results of a solver, and the arrays of their solves, for all that is asked of them later.

Input: what the user passed. Output: the same, as long as nobody has written to it: residuals,
covariances, gradients and views read these arrays again. Cost tier: once for a solve, and for each
question.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from caspar.errors import InputError
from caspar.runtime.arrays import HOST, location, reading, to_numpy
from caspar.runtime.backend import Backend
from caspar.solver.input.array_reader import Blocked, PreparedIndex
from caspar.solver.input.constraints import Constraints
from caspar.solver.result.result import SolveResult

WHOLE_BYTES, PAGE_BYTES = 16 << 20, 4096
"""Bytes of the largest array of the host that is read whole; of a larger one as many are read, in
spaced pages. Reading all of a large problem may take longer than solving it
(docs/design/0020-repeated-calls.md)."""

Names = tuple[str, ...]
"""The names that lead to an array, such as a factor's and an argument's."""

Fingerprints = Mapping[tuple[Names, ...], object]
"""Checksums, or a text, by the names of arrays; they differ once an array was written to."""


def fingerprints_of(given: Any, backends: Sequence[Backend], names: Names = ()) -> Fingerprints:
    """Fingerprints of arrays that a solve has read."""
    leaves: list[tuple[Names, Any]] = []
    _collect(given, names, leaves)
    found: dict[tuple[Names, ...], object] = {}
    on_devices: dict[int, list[tuple[Names, Any]]] = {}
    for place, leaf in leaves:
        if type(leaf) is np.ndarray:
            found[(place,)] = _of_host(leaf)
            continue
        where = location(leaf)
        if where == HOST:
            with reading(text_of(place), leaf):
                found[(place,)] = _of_host(to_numpy(leaf))
            continue
        owners = [one.accepts_device(where.kind, where.number) for one in backends]
        on_devices.setdefault(owners.index(True), []).append((place, leaf))
    for number, there in on_devices.items():
        backend = backends[number]
        with backend.scope():
            arrays = [backend.upload(leaf) for _, leaf in there]
            found[tuple(place for place, _ in there)] = backend.checksum(arrays)
    return found


def changed(before: Fingerprints, now: Fingerprints) -> tuple[Names, ...]:
    """The names of arrays one of which has been written to; none if all are as they were."""
    for places, number in before.items():
        if now.get(places) != number:
            return places
    return ()


def text_of(names: Names) -> str:
    """The names that lead to an array, in words."""
    return ", ".join(names)


def _collect(given: Any, names: Names, leaves: list[tuple[Names, Any]]) -> None:
    """Append everything with a checksum of its own."""
    if type(given) is np.ndarray or given is None:
        leaves.append((names, given))
    elif isinstance(given, Mapping):
        for name, part in given.items():
            _collect(part, (*names, str(name)), leaves)
    elif hasattr(given, "to_rows") and isinstance(given, Blocked):
        _collect(list(given.chunks), names, leaves)
    elif hasattr(given, "tiles") and isinstance(given, PreparedIndex):
        leaves.append((names, given.index))
    elif isinstance(given, list | tuple) and not _is_one_array(given):
        for number, part in enumerate(given):
            _collect(part, (*names, f"part {number}"), leaves)
    else:
        leaves.append((names, given))


def _is_one_array(given: Sequence[Any]) -> bool:
    """Return whether a list is read as one array of numbers; else it has parts, or holds None."""
    if len(given) > 0 and hasattr(given[0], "shape"):
        return False
    try:
        return np.asarray(given).dtype != object
    except (TypeError, ValueError, RuntimeError):  # of arrays of a device, or of unequal lengths
        return False


def _of_host(array: Any) -> object:
    if array.dtype == object:  # None, for example
        return repr(array.tolist())
    numbers = np.ascontiguousarray(array)
    if numbers.nbytes > WHOLE_BYTES:
        numbers = numbers.reshape(-1).view(np.uint8)
        pages = numbers[: numbers.size // PAGE_BYTES * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        chosen = np.linspace(0, len(pages) - 1, WHOLE_BYTES // PAGE_BYTES).astype(np.int64)
        last = zlib.crc32(numbers[-PAGE_BYTES:].data)
        return array.dtype, array.shape, zlib.crc32(pages[chosen].data, last)
    return array.dtype, array.shape, zlib.crc32(numbers.data)


class SolvedArrays:
    """The input of a solve; a result reaches it only through this class.

    Arrays are not copied, so every method compares them with what they were during the solve.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        constraints: Constraints,
        backends: Sequence[Backend],
        problem: Any = None,
    ) -> None:
        self._backends = backends
        self._problem = problem
        # users may put other arrays into their mappings
        self._arrays = _without_later_entries(arrays)
        named = self._arrays.items()
        self._arguments = {name: part for name, part in named if isinstance(part, Mapping)}
        self._starts = {name: part for name, part in named if name not in self._arguments}
        self._constraints = Constraints(
            _without_later_entries(constraints.fixed), _without_later_entries(constraints.bounds)
        )
        self._arguments_before = self._fingerprints(self._arguments)
        self._starts_before = self._fingerprints(self._starts)
        self._constraints_before = self._fingerprints(vars(self._constraints))
        self._values_before: Fingerprints = {}

    def note_values(self, values: Mapping[str, Any]) -> None:
        """Remember the values that the solve ended with."""
        self._values_before = self._fingerprints(values)

    def with_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays with the values after the solve."""
        self._compare("factor ", self._arguments_before, self._arguments)
        self._compare("result.values, ", self._values_before, values)
        return {**self._arrays, **values}

    def at_start(self) -> dict[str, Any]:
        """The arrays with the start values."""
        self._compare("factor ", self._arguments_before, self._arguments)
        self._compare("start values of ", self._starts_before, self._starts)
        return dict(self._arrays)

    def problem_with(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The problem that was read, with start values, and the arrays as by `with_values`."""
        self._compare("", self._constraints_before, vars(self._constraints))
        return self._problem, self.with_values(values)

    @property
    def is_whole(self) -> bool:
        """Return whether this is a whole problem, not the part of one of several processes."""
        return self._problem is not None

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names of what was given in parts."""
        return () if self._problem is None else tuple(self._problem.in_parts)

    @property
    def constraints(self) -> Constraints:
        """Constraints of the solve: held parts and bounds."""
        self._compare("", self._constraints_before, vars(self._constraints))
        return self._constraints

    def _fingerprints(self, given: Mapping[str, Any]) -> Fingerprints:
        return fingerprints_of(given, self._backends)

    def _compare(self, what: str, before: Fingerprints, given: Mapping[str, Any]) -> None:
        places = changed(before, self._fingerprints(given))
        if len(places) == 0:
            return
        texts = "; ".join(f"{what}{text_of(names)}" for names in places)
        one_of = "one of " if len(places) > 1 else ""
        raise InputError(
            f"the arrays have changed since the solve, which does not copy them: {one_of}"
            f"{texts}. Pass copies to solve; or pass {{**arrays, **result.values}} with the arrays "
            "of the solve (to Solver.evaluate, covariance or gradient) instead of the result"
        )


def _without_later_entries(given: Any) -> Any:
    """Mappings as they are now; what is in the arrays may change."""
    if not isinstance(given, Mapping):
        return given
    return {name: _without_later_entries(part) for name, part in given.items()}


@dataclass(frozen=True, eq=False)
class Given:
    """The input of a solve.

    Attributes:
        arrays: Start values, arguments and constraints, unless they have been written to since.
    """

    factors: tuple[Any, ...]
    arrays: SolvedArrays
    evaluate: Callable[[Mapping[str, Any]], Any]


Solved = SolveResult | Mapping[str, Any]
"""A result or arrays, of which a covariance is computed."""


class SolvedResults:
    """The results of a solver that are still in use."""

    def __init__(self) -> None:
        self._results: WeakSet[SolveResult] = WeakSet()
        self._lock = Lock()

    def kept(self, result: SolveResult) -> SolveResult:
        """The result, which is known from then on."""
        with self._lock:
            self._results.add(result)
        return result

    def origin(
        self, given: Any, constraints: Constraints
    ) -> tuple[Mapping[str, Any], Constraints, SolveResult | None]:
        """Arrays with solved values, what restricts them, and the result that has these values."""
        if not isinstance(given, SolveResult):
            return given, constraints, self._with_values(given)
        with self._lock:
            is_own = given in self._results
        if not is_own or given.given is None:
            raise InputError(
                "covariance: this result is of another solver, or a copy, which does not hold the "
                "arrays that were solved: pass {**arrays, **result.values}, and the fixed and "
                "bounds of the solve"
            )
        arrays, solved = given.given.arrays, given.given.arrays.constraints
        fixed = solved.fixed if constraints.fixed is None else constraints.fixed
        bounds = solved.bounds if constraints.bounds is None else constraints.bounds
        return arrays.with_values(given.values), Constraints(fixed, bounds), given

    def _with_values(self, arrays: Any) -> SolveResult | None:
        """The result whose values stand in the arrays themselves, no copies of them."""
        if not isinstance(arrays, Mapping):
            return None
        with self._lock:
            results = list(self._results)
        for result in results:
            values = result.values
            if values and all(arrays.get(name) is rows for name, rows in values.items()):
                return result
        return None
