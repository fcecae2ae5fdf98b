"""Graduated non-convexity: the problems of the benchmark, solved by caspar."""

import numpy as np
import pytest

from benchmarks import gnc


@pytest.mark.parametrize("seed", range(5))
def test_registrations_with_four_of_five_matches_wrong(seed: int) -> None:
    own, plain = gnc.registration_rows(gnc.registration(seed, 300), "clouds", None)
    assert (own.wrong_kept, plain.wrong_kept) == (0, 240)
    assert own.right_kept > 0.95
    assert own.error < 0.03 < 0.5 < plain.error


def test_a_graph_with_two_of_five_closures_wrong() -> None:
    made = gnc.graph(0, 400)
    assert np.count_nonzero(made.is_wrong) == round(0.4 * (len(made.is_wrong) - len(made.known)))
    assert not made.is_wrong[made.known].any()
    own, plain = gnc.graph_rows(made, "graph", None)
    assert own.wrong_kept == 0
    assert own.right_kept > 0.98
    assert own.error < 0.2 * plain.error


def test_the_page_has_a_line_for_each() -> None:
    rows = [gnc.Row("clouds", "caspar", 0.995, 2, 0.01, 0.5)]
    assert "| clouds | caspar | 99.5 % | 2 | 0.0100 | 0.50 |" in gnc.page(rows)
