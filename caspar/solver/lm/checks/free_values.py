"""Numbers that ran away, and positions that nothing holds.

Needed by a rate beside an exponential that has vanished (`test_a_rate_that_ran_away`), and by maps
without an anchor (`test_a_graph_that_nothing_holds`). Cost: some reductions over the values, and
evaluations of the cost if something is suspected (`system.free_values`).
"""

from caspar.solver.lm.checks.remaining import WITHOUT_REMAINING
from caspar.solver.lm.course import Course, Judgment

LONG_ENOUGH = 4
"""Iterations after which values may have run away. Solves that go on from a solution take fewer."""

MUCH_FALLEN = 0.5
"""Share of the first cost that is left after a solve that did not go on from a solution, although
it took fewer iterations: a first step without damping solves linear problems at once."""


def check(course: Course) -> Judgment | None:
    """Remarks on both, unless the solve only went on from a solution."""
    has_fallen = course.cost <= MUCH_FALLEN * course.initial_cost
    if course.status in WITHOUT_REMAINING or not (has_fallen or len(course.records) >= LONG_ENOUGH):
        return None
    return Judgment(remarks=course.system.remarks_on_values(course.cost, course.initial_cost))
