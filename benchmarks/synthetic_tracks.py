"""Which cameras see which points of a synthetic problem: tracks of the shapes of real data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Index = NDArray[np.int32]
Whole = NDArray[np.int64]

SEEN_TWICE = 0.48
"""Fraction of the points with two observations."""
ACTIVITY_RANGE = 3.0
"""Ratio of the expected observations of the busiest and the idlest camera."""
LOCALITY = 0.05
"""Disorder of the points' numbering: deviation from a sorted one, as a fraction of all."""


@dataclass(frozen=True, eq=False)
class Tracks:
    """Observations of all points, sorted by point, then by camera, without repetitions."""

    camera_index: Index
    """(num_observations,)"""
    point_index: Index
    """(num_observations,)"""


def track_lengths(
    num_points: int, num_observations: int, longest: int, generator: np.random.Generator
) -> Whole:
    """Return (num_points,) lengths from 2 to `longest` that sum to `num_observations`.

    About SEEN_TWICE of the points have two; the rest has a geometric tail, one twentieth of it
    with four times the mean. Raises ValueError when no such lengths exist.
    """
    excess = num_observations - 2 * num_points
    if longest >= 8 and 3 * excess <= num_points * longest:
        longest = 2 * longest // 3  # a point that every camera sees is rare
    if not 0 <= excess <= num_points * (longest - 2):
        raise ValueError(
            f"{num_observations} observations of {num_points} points do not fit tracks of 2 to "
            f"{longest} cameras; change the number of observations or of cameras"
        )
    num_long = min(round((1 - SEEN_TWICE) * num_points), round(0.6 * excess))
    num_long = max(num_long, -(-excess // max(longest - 2, 1)))
    long = generator.permutation(num_points)[:num_long]
    lengths = np.full(num_points, 2, dtype=np.int64)
    if num_long > 0:
        mean = np.where(generator.random(num_long) < 0.05, 4.0, 1.0) * excess / num_long / 1.15
        extra = generator.geometric(1 / np.maximum(mean, 1.0))
        lengths[long] += _with_sum(np.clip(extra, 1, longest - 2), excess, longest - 2, generator)
    return lengths


def _with_sum(values: Whole, total: int, highest: int, generator: np.random.Generator) -> Whole:
    """Add or subtract ones at random, within 1 to `highest`, until the sum is `total`."""
    values = values.copy()
    while (missing := total - int(values.sum())) != 0:
        free = np.flatnonzero(values < highest if missing > 0 else values > 1)
        # Only a part at a time: subtracting from all would empty the tail's beginning.
        count = min(abs(missing), max(1, len(free) // 4))
        chosen = generator.choice(free, count, replace=False)
        values[chosen] += 1 if missing > 0 else -1
    return values


def band_tracks(
    lengths: Whole, num_cameras: int, closed: bool, generator: np.random.Generator
) -> tuple[Tracks, Float, Whole]:
    """Draw tracks along a line or loop of cameras; return also their middles and spans.

    Consecutive observations of a point are 1, 2, 3, ... cameras apart (mean 2; one point in
    twenty 4). `middle` (num_points,) is a camera number, on a loop modulo num_cameras; `span`
    (num_points,) the distance from the first to the last camera, at most half of a loop.
    """
    num_points = len(lengths)
    activity = _smooth_activity(num_cameras, generator)
    first = generator.choice(num_cameras, num_points, p=activity) - lengths
    first = first[_nearly_sorted(first.astype(np.float64), generator)]
    starts = np.cumsum(lengths) - lengths
    chance = np.where(generator.random(num_points) < 0.05, 0.25, 0.5)
    gaps = generator.geometric(np.repeat(chance, lengths))
    span = _offsets(gaps, starts, lengths)[starts + lengths - 1]
    gaps[np.repeat(span > (num_cameras // 2 if closed else num_cameras - 1), lengths)] = 1
    offset = _offsets(gaps, starts, lengths)
    span = offset[starts + lengths - 1]
    if not closed:
        first = np.clip(first, 0, num_cameras - 1 - span)
    cameras = (np.repeat(first, lengths) + offset) % num_cameras
    key = np.repeat(np.arange(num_points), lengths) * num_cameras + cameras
    return _tracks_from_keys(np.sort(key), num_cameras), first + span / 2, span


def _offsets(gaps: Whole, starts: Whole, lengths: Whole) -> Whole:
    """Return running sums of the gaps within each track, beginning with zero."""
    gaps = gaps.copy()
    gaps[starts] = 0
    total = np.cumsum(gaps)
    return total - np.repeat(total[starts], lengths)


def _smooth_activity(num_cameras: int, generator: np.random.Generator) -> Float:
    """Return (num_cameras,) probabilities that vary smoothly, by ACTIVITY_RANGE in all."""
    at = np.arange(num_cameras) / num_cameras
    periods = np.arange(1, 2 + num_cameras // 60)
    phases = generator.uniform(0, 2 * np.pi, len(periods))
    wave = np.sum(np.sin(2 * np.pi * periods[:, None] * at + phases[:, None]), axis=0)
    rank = np.argsort(np.argsort(wave)) / max(num_cameras - 1, 1)
    activity = 1 + (ACTIVITY_RANGE - 1) * rank**2
    probabilities: Float = activity / activity.sum()
    return probabilities


def _nearly_sorted(values: Float, generator: np.random.Generator) -> Whole:
    """Return an order that sorts the values up to noise of LOCALITY times their range."""
    noise = LOCALITY * max(float(np.ptp(values)), 1.0) * generator.standard_normal(len(values))
    return np.argsort(values + noise, kind="stable")


def cell_tracks(
    lengths: Whole, affinity: Float, generator: np.random.Generator
) -> tuple[Tracks, Whole]:
    """Draw tracks of points that lie in cells; return also the cell of each point.

    `seen` (num_cameras, num_cells) says which camera may see the points of which cell. A cell gets
    points in proportion to the activity that looks at it, so that the observations of a camera are
    in proportion to its own activity, which varies by ACTIVITY_RANGE.
    """
    num_cameras, num_cells = affinity.shape
    activity = 1 + (ACTIVITY_RANGE - 1) * generator.random(num_cameras) ** 2
    weight = (activity / affinity.sum(axis=1))[:, None] * affinity
    share = weight.sum(axis=0)
    cell = generator.choice(num_cells, len(lengths), p=share / share.sum())
    # A track longer than the cell's cameras moves to the cell with the most.
    crowd = (weight > 0).sum(axis=0)
    cell[lengths > crowd[cell]] = int(np.argmax(crowd))
    order = _nearly_sorted(cell.astype(np.float64), generator)
    lengths, cell = lengths[order], cell[order]

    starts = np.cumsum(lengths) - lengths
    key = np.empty(int(lengths.sum()), dtype=np.int64)
    crowded = 4 * lengths > crowd[cell]
    for number in np.unique(cell[crowded]):
        members = np.flatnonzero(crowded & (cell == number))
        _draw_crowded(key, members, starts, lengths, weight[:, number], generator)
    sparse = np.repeat(~crowded, lengths)
    points = np.repeat(np.arange(len(lengths)), lengths)[sparse]
    key[sparse] = _draw_sparse(points, cell, weight, generator)
    return _tracks_from_keys(np.sort(key), num_cameras), cell


def _draw_crowded(
    key: Whole,
    members: Whole,
    starts: Whole,
    lengths: Whole,
    weight: Float,
    generator: np.random.Generator,
) -> None:
    """Fill the keys of `members`, points of one cell, that need a large part of its cameras.

    Weighted sampling without replacement: the largest of log(weight) + Gumbel noise (Vieira 2014).
    """
    cameras = np.flatnonzero(weight)
    with_log = np.log(weight[cameras])
    for first in range(0, len(members), 4096):
        part = members[first : first + 4096]
        noise = generator.gumbel(size=(len(part), len(cameras)))
        ranked = cameras[np.argsort(-(with_log + noise), axis=1)]
        taken = np.arange(len(cameras)) < lengths[part][:, None]
        row, column = np.nonzero(taken)
        key[starts[part][row] + column] = part[row] * len(weight) + ranked[row, column]


def _draw_sparse(
    points: Whole, cell: Whole, weight: Float, generator: np.random.Generator
) -> Whole:
    """Return keys point * num_cameras + camera for observations of `points` (sorted, repeated).

    Weighted sampling with replacement, and repetitions drawn again until there are none: every
    track takes less than a quarter of its cameras, so a few rounds suffice.
    """
    num_cameras = len(weight)
    number, candidate = np.nonzero(weight.T)
    cumulative = np.concatenate([[0.0], np.cumsum(weight.T[number, candidate])])
    bounds = np.searchsorted(number, np.arange(weight.shape[1] + 1))
    low, high = cumulative[bounds[:-1]], cumulative[bounds[1:]]

    def draw(of: Whole) -> Whole:
        where = cell[of]
        level = low[where] + generator.random(len(of)) * (high - low)[where]
        # Rounding may step over a cell's end.
        place = np.searchsorted(cumulative, level, side="right") - 1
        place = np.clip(place, bounds[where], bounds[where + 1] - 1)
        drawn: Whole = of * num_cameras + candidate[place]
        return drawn

    key = np.sort(draw(points))
    active = np.arange(len(key))
    while len(active) > 0:
        repeated = np.zeros(len(active), dtype=bool)
        repeated[1:] = key[active[1:]] == key[active[:-1]]
        if not repeated.any():
            break
        redrawn = key[active]
        redrawn[repeated] = draw(points[active[repeated]])
        affected = np.isin(points[active], points[active[repeated]], assume_unique=False)
        active = active[affected]
        key[active] = np.sort(redrawn[affected])
    return key


def _tracks_from_keys(key: Whole, num_cameras: int) -> Tracks:
    """Split sorted keys point * num_cameras + camera."""
    point, camera = np.divmod(key, num_cameras)
    return Tracks(camera_index=camera.astype(np.int32), point_index=point.astype(np.int32))
