"""The arrays of a solve, for all that is asked of its result later.

Input: what the user passed. Output: the same, as long as nobody has written to it: residuals,
covariances, gradients and views read these arrays again. Cost tier: once for a solve, and for each
question.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from caspar.errors import InputError
from caspar.runtime.backend import Backend
from caspar.solver.input.constraints import Constraints
from caspar.solver.result.fingerprints import Fingerprints, changed, fingerprints_of, text_of


class SolvedArrays:
    """What a solve was given; the only way from a result to it.

    Arrays are not copied, so every method compares them with what they were during the solve.

    Args:
        arrays: As the user passed them to the solve, which has read them.
        constraints: Likewise.
        backends: Those on whose devices arrays may live.
        problem: The `Problem` that was read from them, which may share their memory; None: there
            is none of the whole.
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
        """The arrays with the values after the solve.

        Args:
            values: Those of the result.

        Raises:
            InputError: Names an array that has been written to since.
        """
        self._compare("factor ", self._arguments_before, self._arguments)
        self._compare("result.values, ", self._values_before, values)
        return {**self._arrays, **values}

    def at_start(self) -> dict[str, Any]:
        """The arrays with the start values.

        Raises:
            InputError: Names an array that has been written to since.
        """
        self._compare("factor ", self._arguments_before, self._arguments)
        self._compare("start values of ", self._starts_before, self._starts)
        return dict(self._arrays)

    def problem_with(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The problem that was read, with start values, and the arrays as by `with_values`.

        Raises:
            InputError: Names an array that has been written to since.
        """
        self._compare("", self._constraints_before, vars(self._constraints))
        return self._problem, self.with_values(values)

    @property
    def is_whole(self) -> bool:
        """Whether this is all of a problem, and not the part of one of several processes."""
        return self._problem is not None

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names of what was given in parts."""
        return () if self._problem is None else tuple(self._problem.in_parts)

    @property
    def constraints(self) -> Constraints:
        """What was held and bounded.

        Raises:
            InputError: Names an array that has been written to since.
        """
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
