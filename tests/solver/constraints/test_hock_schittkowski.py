"""Problems with known minima end there, or at another minimum that is known."""

import pytest

from benchmarks.constrained_cases import CASES, Case, solved, solver_of

OTHER_MINIMA = {"HS15": 360.379767, "HS16": 3.98206045, "HS20": 40.1987298}
"""Sums of squares at local minima nearer to the start."""


DEPENDENT = "BT8"
"""At its minimum the derivatives of both constraints are along one line."""

MOST_ITERATIONS = 150
"""Of any of them: about twice as many as the longest takes."""


BY_DEFAULT = (
    *("HS6", "HS8", "HS12", "HS14", "HS15", "HS16", "HS20", "HS27"),
    *("HS32", "HS53", "HS65", "HS77", "BT1", "BT3", DEPENDENT),
)
"""With and without an objective, bounds, and constraints of either kind."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.name in BY_DEFAULT else pytest.mark.reliability)
        for case in CASES
    ],
    ids=lambda case: case.name,
)
def test_known_minima(case: Case) -> None:
    result = solved(case, solver_of(case, backend="cpu"))
    assert result.status.is_success
    assert result.violation is not None
    assert result.violation.unscaled <= 1e-12
    assert len(result.iterations) <= MOST_ITERATIONS
    known = [case.minimum, OTHER_MINIMA.get(case.name, case.minimum)]
    found = 2.0 * result.final_cost
    assert any(found == pytest.approx(one, rel=1e-8, abs=1e-15) for one in known)
    assert len(result.remarks) == (1 if case.name == DEPENDENT else 0)
    assert all("entries of constraints depend" in remark for remark in result.remarks)
