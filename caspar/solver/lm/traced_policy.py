"""The rules of `policy` for graphs: what its text is when numbers are those of a kernel.

Ends are numbers there. Batches decide by these rules (`batch.generate.policy_program`), and so do
runs of plain steps (`plain.decision`). Cost tier: once a kernel.
"""

from functools import cache
from types import SimpleNamespace

from caspar.ir.traced import traced
from caspar.solver.lm import policy
from caspar.solver.lm.steps import AskRounding
from caspar.solver.result.result import SolveStatus

GO_ON, ASK_DIGIT, ASK_THIRD = 0.0, -1.0, -2.0
"""Ends that are no status: none, and the questions of `AskRounding`."""

STATUSES = tuple(SolveStatus)


def code(status: SolveStatus) -> float:
    """The end that is a status."""
    return float(STATUSES.index(status) + 1)


@cache
def rules() -> SimpleNamespace:
    """The functions of the policy."""
    statuses = SimpleNamespace(**{status.name: code(status) for status in SolveStatus})
    asks = {AskRounding.LAST_DIGIT.name: ASK_DIGIT, AskRounding.LAST_THIRD.name: ASK_THIRD}
    names = {"SolveStatus": statuses, "AskRounding": SimpleNamespace(**asks), "GO_ON": GO_ON}
    return traced(policy, names)
