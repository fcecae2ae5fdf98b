"""Index arrays of known statistics, on which shared reads and adds are timed.

An index has one entry for each item: the object that the item reads or adds to. What decides the
time is how many items name an object, and how near to each other they stand. `KINDS` has the ends
of both and what lies between: what bundle adjustment has. Output: NumPy arrays; the same kind,
number of items and seed give the same array. Cost: up to about two seconds for 30 million items.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int32]
Whole = NDArray[np.int64]

MULTIPLICITY = 6
"""Items of an object where every object has as many: observations of a point in bundle adjustment,
as in BAL's Final-13682 (28,987,644 of 4,456,117 points)."""

NUM_CAMERAS = 13_682
"""Cameras of BAL's Final-13682."""

CAMERA_SPREAD = 1.2
"""Standard deviation of the logarithm of how often a camera is chosen as a point's first. The
busiest of NUM_CAMERAS then has 12 times as many observations as the average, the idlest 0.4."""

MEAN_GAP = 4.0
"""Cameras between two that see the same point one after the other, on average."""


@dataclass(frozen=True)
class IndexKind:
    """A way of choosing objects.

    Attributes:
        name: For the tables and JSON.
        description: For the tables.
        num_objects: From the number of items.
        draw: (num_items, num_objects, generator) -> index, (num_items,).
    """

    name: str
    description: str
    num_objects: Callable[[int], int]
    draw: Callable[[int, int, np.random.Generator], Index]

    def index(self, num_items: int, seed: int = 0) -> Index:
        """Return (num_items,) numbers of objects."""
        generator = np.random.default_rng(seed)
        return self.draw(num_items, self.num_objects(num_items), generator)


def all_equal(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Name one object always."""
    return np.full(num_items, num_objects // 2, dtype=np.int32)


def uniform(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Choose each object with the same probability, independently."""
    return generator.integers(num_objects, size=num_items, dtype=np.int32)


def in_order(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Name every object MULTIPLICITY times in a row: the points of observations in point order."""
    return (np.arange(num_items, dtype=np.int32) // MULTIPLICITY).astype(np.int32, copy=False)


def cameras_of_points(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Choose the cameras of observations in point order; consecutive points are unrelated."""
    lengths = _track_lengths(num_items, num_objects, generator)
    first = _busy_cameras(len(lengths), num_objects, generator)
    return _windows(first, lengths, num_items, num_objects, generator)


def cameras_of_near_points(
    num_items: int, num_objects: int, generator: np.random.Generator
) -> Index:
    """Do the same where points are numbered along the way of the cameras."""
    lengths = _track_lengths(num_items, num_objects, generator)
    first = np.sort(_busy_cameras(len(lengths), num_objects, generator))
    return _windows(first, lengths, num_items, num_objects, generator)


def permutation(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Name each object once, in random order."""
    return generator.permutation(np.arange(num_items, dtype=np.int32))


def reversed_order(num_items: int, num_objects: int, generator: np.random.Generator) -> Index:
    """Name each object once, the last first."""
    return np.arange(num_items - 1, -1, -1, dtype=np.int32)


def _track_lengths(num_items: int, num_cameras: int, generator: np.random.Generator) -> Whole:
    """Draw how many cameras see each point: two and a geometric tail, with MULTIPLICITY as mean.

    They add up to `num_items` at least; no point is seen by more cameras than there are.
    """
    longest = min(num_cameras, 1_000)
    lengths = np.zeros(0, dtype=np.int64)
    while (missing := num_items - int(lengths.sum())) > 0:
        count = 1 + missing // MULTIPLICITY
        more = 1 + generator.geometric(1 / (MULTIPLICITY - 1), count)
        lengths = np.concatenate((lengths, np.minimum(more, longest)))
    return lengths


def _busy_cameras(count: int, num_cameras: int, generator: np.random.Generator) -> Whole:
    """Draw `count` cameras, some of which are drawn much more often than others."""
    popularity = np.cumsum(generator.lognormal(sigma=CAMERA_SPREAD, size=num_cameras))
    drawn: Whole = np.searchsorted(popularity, generator.random(count) * popularity[-1])
    return np.minimum(drawn, num_cameras - 1)


def _windows(
    first: Whole, lengths: Whole, num_items: int, num_cameras: int, generator: np.random.Generator
) -> Index:
    """Continue from each point's first camera to higher ones, with random gaps, round the end.

    A point may be seen twice by a camera, where its window is longer than all the cameras.
    """
    starts = np.cumsum(lengths) - lengths
    steps = generator.geometric(1 / MEAN_GAP, int(lengths.sum()))
    steps[starts] = 0
    total = np.cumsum(steps)
    offset = total - np.repeat(total[starts], lengths)
    cameras: Whole = (np.repeat(first, lengths) + offset) % num_cameras
    return cameras[:num_items].astype(np.int32)


def _constant(count: int) -> Callable[[int], int]:
    return lambda num_items: count


def _each(num_items: int) -> int:
    return num_items


def _sixth(num_items: int) -> int:
    return -(-num_items // MULTIPLICITY)


KINDS = (
    IndexKind("all equal", "one object", _constant(1), all_equal),
    IndexKind("random of 1,000", "any of 1,000 objects", _constant(1_000), uniform),
    IndexKind("random of 13,682", "any of 13,682 objects", _constant(NUM_CAMERAS), uniform),
    IndexKind("random of 1,000,000", "any of a million objects", _constant(1_000_000), uniform),
    IndexKind("random of a sixth", "as many objects as items / 6", _sixth, uniform),
    IndexKind("points", "each object six times in a row", _sixth, in_order),
    IndexKind(
        "cameras",
        "observations in point order: 13,682 cameras, some much busier; a point is seen from a "
        "random window of them",
        _constant(NUM_CAMERAS),
        cameras_of_points,
    ),
    IndexKind(
        "cameras, near points",
        "the same where points are numbered along the way of the cameras",
        _constant(NUM_CAMERAS),
        cameras_of_near_points,
    ),
    IndexKind("permutation", "each object once, in random order", _each, permutation),
    IndexKind("reversed", "each object once, the last first", _each, reversed_order),
)
"""All that is measured, by the order in the tables."""
