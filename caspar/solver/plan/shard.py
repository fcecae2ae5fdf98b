"""Facts on the whole problem for a device that has a part of it.

All devices must have the same launches, and the same shapes of arrays that are added up. Both
follow from these numbers, not from the part. Cost tier: once for a solve.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array

ToHost = Callable[[Array], NDArray[Any]]


Chosen = slice | Array
"""Instances of a whole: a range, or their (n,) numbers in ascending order."""


@dataclass(frozen=True)
class ChosenParts:
    """Instances of a factor that is given in parts.

    Attributes:
        pieces: By part a range, or (n,) numbers within it in ascending order, where the part is.
        offsets: Number of the first instance of each part, and of all instances.
    """

    pieces: tuple[Chosen, ...]
    offsets: Sequence[int]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(size_of(piece) for piece in self.pieces)

    def numbers(self, to_host: ToHost) -> NDArray[Any]:
        """Return the chosen instances' numbers among all."""
        found = []
        for piece, first in zip(self.pieces, self.offsets, strict=False):
            if isinstance(piece, slice):
                found.append(np.arange(first + piece.start, first + piece.stop))
            else:
                own = piece if isinstance(piece, np.ndarray) else to_host(piece)
                found.append(own + first)
        return np.concatenate(found)


ChosenInstances = Chosen | ChosenParts
"""Instances of a factor."""


def size_of(chosen: ChosenInstances) -> int:
    """Return how many are chosen."""
    if isinstance(chosen, ChosenParts):
        return chosen.size
    if isinstance(chosen, slice):
        return int(chosen.stop) - int(chosen.start)
    return int(chosen.shape[0])


def as_range(numbers: Array) -> Chosen:
    """Ascending numbers; a range if they are contiguous."""
    size = int(numbers.shape[0])
    if size == 0:
        return slice(0, 0)
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == size else numbers


@dataclass(frozen=True)
class Shard:
    """One of the parts of a problem.

    Attributes:
        rank: Its number. What all devices have alike, the one of rank 0 counts.
        group: Number of the group whose members have the parts, 0 before there is one: no plan
            outlives it.
        most: Instances of each factor that a part has at most, by name.
        added: Instances that add to the nodes of each type that remains, in the part with the most.
        in_order: Eliminated types whose nodes each part has in the order of tiles.
        chosen: By factor which of its instances in the whole problem this part has.
    """

    rank: int
    size: int
    counts: Mapping[str, int]
    instances: Mapping[str, int]
    most: Mapping[str, int]
    added: Mapping[str, int]
    group: int = 0
    in_order: tuple[str, ...] = ()
    chosen: dict[str, ChosenInstances] = field(default_factory=dict, compare=False, repr=False)
    nodes: dict[str, Chosen] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """Return whether it counts what all devices have alike."""
        return self.rank == 0

    def numbers(self, factor: str, places: NDArray[Any], to_host: ToHost) -> NDArray[Any]:
        """The numbers in the whole problem of (k,) instances of this part."""
        chosen = self.chosen[factor]
        if isinstance(chosen, slice):
            return places + int(chosen.start)
        if isinstance(chosen, ChosenParts):
            return np.asarray(chosen.numbers(to_host)[places])
        numbers: NDArray[Any] = chosen if isinstance(chosen, np.ndarray) else to_host(chosen)
        return np.asarray(numbers[places])

    def node_number(self, name: str, place: int) -> int:
        """The number in the whole problem of a node of this part."""
        nodes = self.nodes.get(name, slice(0, None))
        return int(nodes.start) + place if isinstance(nodes, slice) else int(nodes[place])

    def take_over(self, other: "Shard") -> None:
        """Have what a later solve has, which the plan fits: its numbers may be others."""
        for own, later in ((self.chosen, other.chosen), (self.nodes, other.nodes)):
            kept = dict(later)
            own.clear()
            own.update(kept)

    @property
    def key(self) -> tuple[object, ...]:
        """Key by which plans differ."""
        sizes = (self.counts, self.instances, self.most, self.added)
        own = (self.rank, self.size, self.group, self.in_order)
        return *own, *(tuple(sorted(one.items())) for one in sizes)
