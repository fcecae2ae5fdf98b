"""Products of test parameters: by default a few rows in which every two values meet."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def covering(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by the product of some axes.

    Of three axes or more, the default run takes rows that hold every pair of values of two axes.
    `-m reliability` takes the others.

    Args:
        axes: By argument of the test: its values.
    """
    values = [list(axis) for axis in axes.values()]
    rows = [
        pytest.param(
            *(axis[place] for axis, place in zip(values, places, strict=True)), marks=marks
        )
        for places, marks in _marked([len(axis) for axis in values])
    ]
    return pytest.mark.parametrize(tuple(axes), rows)


def alternating(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Rows of two axes: each value of the first once by default, with values of the second in turn.

    `-m reliability` takes the others.
    """
    others = list(second)
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            other,
            marks=[] if place == number % len(others) else [pytest.mark.reliability],
        )
        for number, one in enumerate(first)
        for place, other in enumerate(others)
    ]


def newest(architectures: Sequence[str]) -> list[Any]:
    """The last of some architectures by default; `-m reliability` takes the others."""
    *others, last = architectures
    return [*(pytest.param(one, marks=pytest.mark.reliability) for one in others), last]


def first(number: int, rows: Iterable[Any]) -> list[Any]:
    """The first so many rows by default; `-m reliability` takes the others."""
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=[] if place < number else [pytest.mark.reliability],
        )
        for place, row in enumerate(rows)
    ]


def usual(rows: Sequence[Any], *axes: Iterable[Any]) -> list[Any]:
    """These rows by default; `-m reliability` takes the others of the product of some axes."""
    return first(len(rows), dict.fromkeys((*rows, *itertools.product(*axes))))


def _marked(lengths: list[int]) -> list[tuple[tuple[int, ...], list[pytest.MarkDecorator]]]:
    """All rows in order, with the mark of those that bring no new pair of values."""
    rows = list(itertools.product(*map(range, lengths)))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = set()
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(_pairs(row))))
        chosen.add(best)
        missing.difference_update(_pairs(best))
    return [(row, [] if row in chosen else [pytest.mark.reliability]) for row in rows]


def _pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(row), 2))
