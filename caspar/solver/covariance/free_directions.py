"""Free directions in words: node type, instance, and field or entry of the tangent.

Input: orthonormal free directions in scaled unknowns. Output: text. Cost tier: once for a
covariance, and only where something is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.errors import RankDeficiencyError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_fields
from caspar.solver.covariance.normal_matrix import NormalMatrix

FloatArray = NDArray[np.float64]

MOST_NAMED = 5
"""Instances that are named one by one."""

ALONE = 0.99
"""Share of a free direction, squared, from which on it belongs to one instance."""

MOVED = 1e-3
"""Share of a direction, not squared, from which on an unknown takes part in it."""


@dataclass(frozen=True)
class FreeDirections:
    """What the residuals do not determine.

    Attributes:
        num_free: Directions.
        texts: Each instance or group of them in words.
        touched: By node type, (n,) whether something of an instance is free.
    """

    num_free: int
    texts: tuple[str, ...]
    touched: Mapping[str, NDArray[np.bool_]]

    def refuse(self, requested: Mapping[str, NDArray[np.int64]]) -> None:
        """Raise if something free touches what was requested.

        Args:
            requested: Instance numbers by node type.

        Raises:
            RankDeficiencyError: Says what is free, and what to do.
        """
        if not any(self.touched[name][numbers].any() for name, numbers in requested.items()):
            return
        directions = "1 direction is" if self.num_free == 1 else f"{self.num_free:,} directions are"
        listed = ". ".join(text[0].upper() + text[1:] for text in self.texts)
        raise RankDeficiencyError(
            f"covariance: the residuals do not determine all unknowns: {directions} free. "
            f"{listed}. Add factors that determine them, such as a prior on one pose; do not ask "
            "for such instances; or pass gauge='minimum_norm', which takes the pseudo-inverse",
            self.num_free,
        )


def find_free_directions(normal: NormalMatrix, joint: Mapping[str, FloatArray]) -> FreeDirections:
    """Name everything that is free.

    Args:
        normal: The system: of single eliminated nodes it knows.
        joint: By node type (n, dim, k): the other ones, orthonormal over all node types.
    """
    num_free = 0
    texts: list[str] = []
    touched: dict[str, NDArray[np.bool_]] = {}
    for node in normal.nodes:
        fields = tangent_fields(node.python_type)
        absent = normal.backend.to_host(normal.scales[node.name]) == 0.0
        has_free = absent.any(axis=1)
        named = [
            f"{node.name} {number}, {_unknowns(absent[number], fields)}"
            for number in np.flatnonzero(has_free)
        ]
        if len(named) > 0:
            texts.append(f"no residual depends on {_listed(named)}")
        num_free += int(absent.sum())
        elimination = normal.eliminations.get(node.name)
        alone = () if elimination is None else elimination.free
        named = [
            f"{node.name} {one.number}, {_unknowns(abs(one.direction) > 0.1, fields)}"
            for one in alone
        ]
        if len(named) > 0:
            texts.append(f"one direction is free of {_listed(named)}")
        num_free += len(named)
        has_free[[one.number for one in alone]] = True
        touched[node.name] = has_free
    if len(joint) > 0:
        num_joint = next(iter(joint.values())).shape[2]
        texts += _joint_texts(normal.nodes, joint, num_joint)
        num_free += num_joint
        largest = max(abs(basis).max(initial=0.0) for basis in joint.values())
        for name, basis in joint.items():
            touched[name] |= abs(basis).max(axis=(1, 2), initial=0.0) > MOVED * largest
    return FreeDirections(num_free, tuple(texts), touched)


def _joint_texts(
    nodes: Sequence[NodeType], joint: Mapping[str, FloatArray], num_joint: int
) -> list[str]:
    """Of directions in which several instances may move together."""
    texts, num_left = [], num_joint
    moved, most_moved = [], []
    for node in nodes:
        basis, fields = joint[node.name], tangent_fields(node.python_type)
        shares = (basis**2).sum(axis=2)
        named = []
        for number in np.flatnonzero(shares.sum(axis=1) > ALONE):
            values, vectors = np.linalg.eigh(basis[number] @ basis[number].T)
            for vector in vectors.T[values > ALONE]:
                named.append(f"{node.name} {number}, {_unknowns(abs(vector) > 0.1, fields)}")
        num_left -= len(named)
        if len(named) > 0:
            texts.append(f"one direction is free of {_listed(named)}")
        is_moved = shares.max(axis=1, initial=0.0) > MOVED**2 * shares.max(initial=1e-300)
        if is_moved.any():
            moved.append(f"{int(is_moved.sum()):,} {node.name}")
            most = int(shares.sum(axis=1).argmax())
            largest = shares[most] > 0.1 * shares[most].max()
            most_moved.append(f"{node.name} {most}, {_unknowns(largest, fields)}")
    if num_left > 0:
        directions = "1 direction moves" if num_left == 1 else f"{num_left} directions move"
        texts.append(
            f"{directions} {' and '.join(moved)} together without changing a residual, among them "
            f"{'; '.join(most_moved)}"
        )
    return texts


def _listed(named: Sequence[str]) -> str:
    more = len(named) - MOST_NAMED
    text = "; ".join(named[:MOST_NAMED])
    return f"{text}; and of {more:,} more" if more > 0 else text


def _unknowns(chosen: NDArray[np.bool_], fields: Mapping[str, range]) -> str:
    """Fields by name, or entries of the tangent by number."""
    if bool(chosen.all()) and len(fields) == 0:
        return "all of it" if len(chosen) > 1 else "entry 0 of its tangent"
    if len(fields) > 0:
        names = [name for name, place in fields.items() if chosen[place.start : place.stop].any()]
        return f"field{'s' if len(names) > 1 else ''} {', '.join(names)}"
    numbers = np.flatnonzero(chosen)
    listed = ", ".join(map(str, numbers))
    return f"{'entries' if len(numbers) > 1 else 'entry'} {listed} of its tangent"
