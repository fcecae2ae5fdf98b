"""What users are told of a problem on several devices: that of all parts together.

Cost tier: once for a solve, or when users ask.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from caspar.solver.lm.faults import PlanFindings
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.shard import Shard, size_of
from caspar.solver.shards.team import Team
from caspar.solver.system.lone_promises import Promises

Result = TypeVar("Result")


class SharedFindings:
    """Those of all devices; see `lm.faults.Findings`.

    Args:
        each: Calls a function with each of their systems; it can be pickled.
        rows: (instances, rows) residuals of a factor by name, those of all devices.
    """

    def __init__(
        self,
        each: Callable[[Callable[[NormalEquations], Any]], list[Any]],
        rows: Callable[[str], NDArray[np.float64]],
    ) -> None:
        self._each_system = each
        self._rows = rows

    @property
    def has_lone_promises(self) -> bool:
        """Whether all devices have all nodes, and these are few."""
        return all(self._each(_has_lone_promises))

    def lone_promises(self) -> Promises | None:
        """What nodes promise one by one: all devices find the same."""
        return self._each(PlanFindings.lone_promises)[0]

    def _each(self, call: Callable[[PlanFindings], Result]) -> list[Result]:
        return self._each_system(partial(_of_findings, call))

    def faulty_costs(self) -> tuple[str, ...]:
        """The factors whose cost was not finite when the values were scored."""
        return joined(self._each(PlanFindings.faulty_costs))

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite, after a score; what was linearised is lost."""
        return joined(self._each(PlanFindings.faulty_derivatives))

    def largest_residual(self) -> float:
        """The largest magnitude of a residual when the values were scored."""
        return max(self._each(PlanFindings.largest_residual))

    def factor_costs(self) -> dict[str, float]:
        """The cost of each factor when the values were scored."""
        return _summed(self._each(PlanFindings.factor_costs))

    def num_beyond_scale(self) -> dict[str, int]:
        """By each factor with a loss how many residuals were longer than its scale."""
        found = _summed(self._each(PlanFindings.num_beyond_scale))
        return {name: int(number) for name, number in found.items()}

    def residual_rows(self, factor: str) -> NDArray[np.float64]:
        """(instances, rows) residuals of a factor when the values were scored, as given."""
        return self._rows(factor)


def _has_lone_promises(findings: PlanFindings) -> bool:
    return findings.has_lone_promises


def _of_findings(call: Callable[[PlanFindings], Result], system: NormalEquations) -> Result:
    return call(system.findings)


def rows_of_threads(
    systems: Sequence[NormalEquations], shards: Sequence[Shard], team: Team, factor: str
) -> NDArray[np.float64]:
    """(instances, rows) residuals of a factor, as given, of devices in threads."""

    def rows_of(rank: int) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        shard, system = shards[rank], systems[rank]
        count = size_of(shard.chosen[factor])
        if count == 0:
            return None
        numbers = shard.numbers(factor, np.arange(count), team.members[rank].to_host)
        return numbers, system.findings.residual_rows(factor)

    found = [one for one in team.each(rows_of) if one is not None]
    whole = np.empty((sum(len(numbers) for numbers, _ in found), found[0][1].shape[1]))
    for numbers, rows in found:
        whole[numbers] = rows
    return whole


def joined(found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What any device has found, each once."""
    return tuple(dict.fromkeys(name for names in found for name in names))


def _summed(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in found:
        for name, number in part.items():
            total[name] = total.get(name, 0.0) + number
    return total
