"""Keys by which eliminated nodes are ordered: those with neighbouring keys share partners.

Whole numbers only, so that a device finds the same; see `memory.tiling.node_tiles`.
"""

import numpy as np
from numpy.typing import NDArray

from caspar.memory.tiling.partner_labels import PartnerLabels

KEY_BITS = 30
"""Bits of a key."""

IntArray = NDArray[np.int64]


def locality_keys(
    touched: NDArray[np.int32], start: IntArray, labels: PartnerLabels | None, num_partners: int
) -> IntArray:
    """Keys of KEY_BITS: nodes with neighbouring keys share partners.

    How far along Hilbert's curve through the plane of lowest and highest partner a node lies. With
    labels, first the label of its rarest partner. Distinct (tile, partner) pairs for each item,
    tiles of 256, synthetic problems:

    items, shape              0.68 M street  photos  5 M street  photos  29 M photos
    nodes by lowest partner           0.158   0.286       0.189   0.262        0.388
    by lowest, then highest           0.143   0.284               0.225        0.330
    by rarest, then commonest         0.149   0.262               0.207        0.278
    on the curve                      0.096   0.404       0.104   0.267        0.398
    on the curve of labels            0.115   0.254       0.127   0.204        0.375
    rarest, curve of labels                   0.243               0.190        0.268
    by place (not known)                      0.184               0.173

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


def along_curve(x: NDArray[np.int32], y: NDArray[np.int32], bits: int) -> IntArray:
    """Return how far along Hilbert's curve cells of a square lie; D. Hilbert, Math. Ann. 38, 1891.

    Args:
        x: (n,) column, within 0 .. 2^bits - 1.
        y: (n,) row, likewise.
        bits: At most 15.
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
