"""Structures to build node tiles of."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Problem:
    """What node tiles are built from."""

    name: str
    node: Index
    partner: Index | None
    num_nodes: int
    num_partners: int

    def __str__(self) -> str:
        return f"{self.name}, {len(self.node)} items"


def _any(rng: np.random.Generator, count: int) -> Problem:
    node, partner = rng.integers(0, count + 1, count), rng.integers(0, 7, count)
    return Problem("any", node.astype(np.int32), partner.astype(np.int32), count + 1, 7)


def _no_partner(rng: np.random.Generator, count: int) -> Problem:
    node = rng.integers(0, max(1, count // 5), count).astype(np.int32)
    return Problem("no partner", node, None, max(1, count // 5), 0)


def _one_node(rng: np.random.Generator, count: int) -> Problem:
    partner = rng.integers(0, 100, count).astype(np.int32)
    return Problem("one node", np.full(count, 3, np.int32), partner, 9, 100)


def _long_tail(rng: np.random.Generator, count: int) -> Problem:
    """Mostly few items for a node; some have more than a tile, and all partners."""
    num_nodes, num_partners = count // 4 + 1, 300
    node = np.where(
        rng.random(count) < 0.4, rng.integers(0, 3, count), rng.integers(0, num_nodes, count)
    )
    partner = (node // 3 + rng.integers(0, 5, count)) * 97 % num_partners
    return Problem(
        "long tail", node.astype(np.int32), partner.astype(np.int32), num_nodes, num_partners
    )


def _chain(rng: np.random.Generator, count: int) -> Problem:
    """Partners that are neighbours, in their order: it is kept."""
    node = np.arange(count) // 4
    partner = node % 200 + rng.integers(0, 4, count)
    return Problem("chain", node.astype(np.int32), partner.astype(np.int32), count // 4 + 2, 203)


def _sparse(rng: np.random.Generator, count: int) -> Problem:
    """Far more nodes and partners than items."""
    node = rng.choice([0, 5, 70_000, 99_999], count)
    partner = rng.choice([0, 1, 40_000, 3_000_000], count)
    return Problem("sparse", node.astype(np.int32), partner.astype(np.int32), 100_000, 3_000_001)


PROBLEMS: dict[str, Callable[[np.random.Generator, int], Problem]] = {
    "any": _any,
    "no partner": _no_partner,
    "one node": _one_node,
    "long tail": _long_tail,
    "chain": _chain,
    "sparse": _sparse,
}


def draw_problem(name: str, count: int) -> Problem:
    """Make a problem of so many items; always the same."""
    return PROBLEMS[name](np.random.default_rng(count), count)
