"""Numbers for partners: those that nodes have in common get numbers that are close.

Partners often come in an order that says nothing (photos of a collection). Here they get a place
in a plane by reciprocal averaging (a node stands in the middle of its partners, a partner in the
middle of its nodes; M. O. Hill, *Journal of Ecology* 61, 1973), and numbers along a curve through
the plane. `memory.tiling.node_tiles` sorts nodes by these.

All in integers: a device makes the same numbers. Once for a structure, from a sample of the nodes.

Also here: keys by which eliminated nodes are ordered: those with neighbouring keys share partners.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 16
"""Rounds of averaging. (Tile, partner) runs an item, 0.68 M items in tiles of 256, after 8, 16,
32 and 128: 0.253, 0.254, 0.261, 0.266 for photos; 0.145, 0.127, 0.123, 0.117 for a street whose
cameras have numbers at random, 0.187 without labels."""

FEWEST_PARTNERS = 64
"""Labels help from this many partners on: most tiles have most of fewer ones in any order."""

MOST_PARTNERS = 1 << 17
"""Labels are found for up to this many partners: one block normalises, and sums of more would not
fit 64 bits."""

SAMPLE_OF_PARTNER = 64
"""Items of a partner that are looked at, in the mean."""

SMALLEST_SAMPLE = 1 << 16

SPREAD = 1 << 18
"""Standard deviation of a coordinate; a normalised one lies within +- CENTRE."""

CENTRE = 1 << 22
"""Added to coordinates, so that no number is below zero."""

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class NodeSample:
    """The partner of each item, grouped by node, and the first item of each node; all have some."""

    partner: NDArray[np.int32]
    start: Whole


@dataclass(frozen=True)
class PartnerLabels:
    """Two permutations, (num_partners,) int32 each.

    By `label` partners that share nodes are close; `rarity` is the place of each when sorted by
    number of items.
    """

    label: NDArray[np.int32]
    rarity: NDArray[np.int32]


def sample_stride(num_items: int, num_partners: int) -> int:
    """Nodes whose number is a multiple of it are looked at."""
    return max(1, num_items // max(SMALLEST_SAMPLE, SAMPLE_OF_PARTNER * num_partners))


def first_coordinates(num_partners: int) -> NDArray[np.int32]:
    """(2, num_partners): smooth in the given numbers, so that what they say is kept."""
    angle = np.pi * (np.arange(num_partners) + 0.5) / num_partners
    waves = np.sqrt(2.0) * SPREAD * np.cos(np.stack([angle, 2.0 * angle]))
    places: NDArray[np.int32] = (CENTRE + np.rint(waves)).astype(np.int32)
    return places


def partner_labels(sample: NodeSample, num_partners: int) -> PartnerLabels | None:
    """Numbers of partners in which those that share nodes are close; None: the given ones are."""
    if not FEWEST_PARTNERS <= num_partners <= MOST_PARTNERS or len(sample.start) == 0:
        return None
    place = first_coordinates(num_partners).astype(np.int64)
    size = np.diff(sample.start, append=len(sample.partner))
    count = np.bincount(sample.partner, minlength=num_partners)
    for _ in range(NUM_ROUNDS):
        place = normalised(_averaged(place, sample, size, count), count)
    labels = PartnerLabels(labels_along_curve(place), ranks(count).astype(np.int32))
    given = _span(sample.partner, sample.start)
    made = _span(labels.label[sample.partner], sample.start)
    return None if given <= made else labels


def _averaged(place: Whole, sample: NodeSample, size: Whole, count: Whole) -> Whole:
    """Partners in the middle of nodes in the middle of partners; rounded down, as on a device."""
    found = np.empty_like(place)
    for axis, coordinate in enumerate(place):
        middle = np.add.reduceat(coordinate[sample.partner], sample.start) // size
        # sums below 2^53 are exact in float64
        sums = np.bincount(sample.partner, np.repeat(middle, size), len(coordinate))
        found[axis] = np.where(count > 0, sums.astype(np.int64) // np.maximum(count, 1), CENTRE)
    return found


def normalised(place: Whole, count: Whole) -> Whole:
    """Coordinates without the constant that averaging tends to, and without their correlation.

    `place` is (2, num_partners), 0 or more; the weights `count` are the partners' items.
    """
    total = int(count.sum())
    first, second = (one - int((count * one).sum()) // total for one in place)
    squares, mixed = int((count * first * first).sum()), int((count * first * second).sum())
    slope = float(mixed) / float(squares) if squares > 0 else 0.0
    second = second - np.rint(slope * first).astype(np.int64)
    left = int((count * second * second).sum())
    return np.stack([_scaled(first, squares, total), _scaled(second, left, total)])


def _scaled(offset: Whole, squares: int, total: int) -> Whole:
    """Offsets with the standard deviation `SPREAD`, within +- CENTRE - 1, about CENTRE."""
    factor = SPREAD / np.sqrt(float(squares) / float(total)) if squares > 0 else 0.0
    within = np.clip(offset * factor, 1 - CENTRE, CENTRE - 1)
    scaled: Whole = CENTRE + np.rint(within).astype(np.int64)
    return scaled


def labels_along_curve(place: NDArray[np.integer]) -> NDArray[np.int32]:
    """Ranks of (2, num_partners) places, 0 or more, along Morton's curve through their ranks."""
    num_partners = place.shape[1]
    code = np.zeros(num_partners, dtype=np.int64)
    for axis in range(2):
        rank = (ranks(place[axis].astype(np.int64)) << 10) // num_partners
        for bit in range(10):
            code |= ((rank >> bit) & 1) << (2 * bit + 1 - axis)
    return ranks(code).astype(np.int32)


def ranks(value: Whole) -> Whole:
    """Place of each of (num_partners,) numbers, from 0 to 2^40, when sorted; stable."""
    number = np.arange(len(value), dtype=np.int64)
    rank = np.empty_like(number)
    rank[np.sort((value << 20) | number) & 0xFFFFF] = number
    return rank


def _span(label: NDArray[np.int32], start: Whole) -> int:
    """Return how far the partners of nodes lie apart: bits of the differences, over all nodes.

    Of two numberings the one with the lower sum gave fewer runs in every problem looked at.
    """
    apart = np.maximum.reduceat(label, start) - np.minimum.reduceat(label, start)
    return int(np.frexp(apart.astype(np.float64))[1].sum())


KEY_BITS = 30
"""Bits of a key."""


def locality_keys(
    touched: NDArray[np.int32], start: Whole, labels: PartnerLabels | None, num_partners: int
) -> Whole:
    """Keys of KEY_BITS: nodes with neighbouring keys share partners.

    How far along Hilbert's curve through the plane of lowest and highest partner a node lies. With
    labels, first the label of its rarest partner (figures: docs/design/0012-elimination.md).

    The first is for partners whose numbers say who is close, the second for others. Rejected too:
    median or mean partner, lowest and second, commonest partner first, three coordinates or more.
    """
    number = touched if labels is None else labels.label[touched]
    partner_bits, curve_bits = key_bits(num_partners, labels is not None)
    shift = max(0, partner_bits - curve_bits)
    lowest, highest = np.minimum.reduceat(number, start), np.maximum.reduceat(number, start)
    key = along_curve(lowest >> shift, highest >> shift, curve_bits)
    if labels is not None:
        label_of_rarity = np.empty_like(labels.label)
        label_of_rarity[labels.rarity] = labels.label
        rarest = np.minimum.reduceat(labels.rarity[touched], start)
        key |= label_of_rarity[rarest].astype(np.int64) << (2 * curve_bits)
    return key


def key_bits(num_partners: int, has_labels: bool) -> tuple[int, int]:
    """Bits of the number of a partner, and of a coordinate on the curve."""
    partner_bits = max(0, num_partners - 1).bit_length()
    return partner_bits, (KEY_BITS - (partner_bits if has_labels else 0)) // 2


def along_curve(x: NDArray[np.int32], y: NDArray[np.int32], bits: int) -> Whole:
    """Return how far along Hilbert's curve cells of a square lie; D. Hilbert, Math. Ann. 38, 1891.

    Columns and rows, (n,) each, are within 0 .. 2^bits - 1, with 15 bits at most.
    """
    distance = np.zeros(len(x), dtype=np.int32)
    for bit in range(bits - 1, -1, -1):
        right, down = (x >> bit) & 1, ((y >> bit) & 1) ^ 1
        distance <<= 2
        distance |= (3 * right) ^ down ^ 1
        # below: mirrored at the corner, then with x and y exchanged; lower bits are all that count
        flip = (right & down) * np.int32((1 << bit) - 1)
        change = (x ^ y) & -down
        x, y = x ^ change ^ flip, y ^ change ^ flip
    return distance.astype(np.int64)
