"""Model the time of an iteration and the memory of a problem on several devices.

Input: the problem prepared on one device, and the time of an iteration there. Output: numbers.
docs/design/0037-devices.md compares them with measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caspar.errors import OptionError
from caspar.solver.prepared import Prepared


@dataclass(frozen=True)
class Link:
    """The time in which devices add up an array, all of them getting the sums.

    Attributes:
        latency_s: Seconds for two devices and next to no bytes; it grows with the logarithm of
            their number.
        byte_s: Seconds for each byte, of any number of devices.
    """

    latency_s: float
    byte_s: float


NVLINK = Link(6.3e-6, 6.7e-12)
"""Devices of one host, by NCCL in a captured graph (docs/design/0037-devices.md)."""

UNEVEN = 1.04
"""Times a device's part of the products takes longer than its share: fitted, as the next two."""

WHOLE_S = 18e-6
"""Seconds of an iteration that each device takes for what is not split, and for being one of
several: launches, merging of slots, the wait for the slowest."""

WHOLE_BYTE_S = 4.5e-12
"""Seconds of that for each byte of a vector over the nodes that remain."""


@dataclass(frozen=True)
class Estimate:
    """A problem on a number of devices.

    Attributes:
        devices: How many.
        iteration_s: Seconds of a PCG iteration.
        speedup: Times as fast as on one.
        adding_up_s: Seconds of that for adding up.
        bytes_of_device: Bytes that each device holds.
    """

    devices: int
    iteration_s: float
    speedup: float
    adding_up_s: float
    bytes_of_device: int


def estimate(
    prepared: Prepared,
    iteration_s: float,
    devices: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    link: Link = NVLINK,
) -> tuple[Estimate, ...]:
    """Time and memory of a problem on several devices, by a model.

    What belongs to factors and eliminated nodes is split, what belongs to nodes that remain is not;
    each iteration adds up one vector over the latter. The model was compared with up to four
    devices of one host (docs/design/0037-devices.md); nothing has been measured with more.

    Args:
        prepared: The problem on one device, by `Solver.prepare`.
        iteration_s: Seconds of a PCG iteration there, measured.
        devices: Numbers of devices.
        link: How fast they add up.

    Returns:
        One estimate for each number.

    Raises:
        OptionError: A number of devices below 1, or a time that is not positive.
    """
    if not (math.isfinite(iteration_s) and iteration_s > 0.0):
        raise OptionError(f"iteration_s={iteration_s!r}: must be a positive number of seconds")
    if len(devices) == 0 or any(number < 1 for number in devices):
        raise OptionError(f"devices={devices!r}: must be numbers of devices of at least 1")
    sizes = {name: region.num_bytes for name, region in prepared.regions.items()}
    remaining = [name for name in prepared.problem.nodes if name not in prepared.eliminated]
    replicated = sum(
        size for name, size in sizes.items() if name.partition(".")[0] in remaining and "." in name
    )
    replicated = min(replicated, prepared.num_bytes)
    vector = sum(sizes.get(f"{name}.direction", 0) for name in remaining)
    found = []
    for number in devices:
        adding_up_s = _adding_up_s(link, vector, number)
        taken_s = _taken_s(iteration_s, vector, number) + adding_up_s
        held = replicated + (prepared.num_bytes - replicated) // number
        found.append(Estimate(number, taken_s, iteration_s / taken_s, adding_up_s, held))
    return tuple(found)


def _taken_s(iteration_s: float, num_bytes: int, devices: int) -> float:
    """An iteration without adding up."""
    if devices == 1:
        return iteration_s
    whole_s = WHOLE_BYTE_S * num_bytes
    return UNEVEN * max(iteration_s - whole_s, 0.0) / devices + WHOLE_S + whole_s


def _adding_up_s(link: Link, num_bytes: int, devices: int) -> float:
    """A tree in latency; all links carry as much at the same time."""
    return link.latency_s * math.log2(devices) + link.byte_s * num_bytes if devices > 1 else 0.0
