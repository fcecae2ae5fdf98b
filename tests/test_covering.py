"""Which rows of a product the default run takes."""

import itertools
from typing import Any

from tests.covering import alternating, covering


def usual(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [row.values for row in rows if row.marks == []]


def test_every_pair_is_in_the_default_run() -> None:
    axes: dict[str, Any] = {"problem": "abcd", "way": [1, 2, 3], "is_ordered": [False, True]}
    mark = covering(**axes).mark
    names, rows = mark.args
    assert names == tuple(axes)
    assert [row.values for row in rows] == list(itertools.product(*axes.values()))
    taken = usual(rows)
    assert len(taken) <= 13
    for first, second in itertools.combinations(range(3), 2):
        pairs = itertools.product(*(list(axes.values())[place] for place in (first, second)))
        assert {(row[first], row[second]) for row in taken} == set(pairs)


def test_values_in_turn() -> None:
    rows = alternating([("a", 1), ("b", 2), ("c", 3)], ["x", "y"])
    assert len(rows) == 6
    assert usual(rows) == [("a", 1, "x"), ("b", 2, "y"), ("c", 3, "x")]
