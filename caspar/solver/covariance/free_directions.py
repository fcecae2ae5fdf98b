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
from caspar.memory.array import Array
from caspar.solver.normal.matrix import NormalMatrix

MOST_NAMED = 5
"""Instances that are named one by one."""

ALONE = 0.99
"""Share of a free direction, squared, from which on it belongs to one instance."""

SHOWN = 0.1
"""Share of the length of a direction, in its node, from which on an unknown is named."""

MOVED = 1e-3
"""Share of a direction, not squared, from which on an unknown takes part in it."""


@dataclass(frozen=True)
class FreeDirections:
    """Everything that the residuals do not determine.

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
            f"{listed}. Hold something by fixed=, such as one pose, or add factors that determine "
            "it; do not ask for such instances; or pass gauge='minimum_norm', which takes the "
            "pseudo-inverse",
            self.num_free,
        )


def find_free_directions(normal: NormalMatrix, joint: Mapping[str, Array]) -> FreeDirections:
    """Name everything that is free.

    Args:
        normal: The system: of single eliminated nodes it knows.
        joint: By node type (n, dim, k), on the device: the other ones, orthonormal over all node
            types.
    """
    num_free = 0
    texts: list[str] = []
    touched: dict[str, NDArray[np.bool_]] = {}
    for node in normal.nodes:
        absent = normal.backend.to_host(normal.scales[node.name]) == 0.0
        if node.name in normal.held:
            absent &= ~normal.backend.to_host(normal.held[node.name])
        elimination = normal.eliminations.get(node.name)
        alone = () if elimination is None else elimination.free
        has_free = absent.any(axis=1)
        numbers = np.flatnonzero(has_free)
        nothing = [(int(number), absent[number]) for number in numbers[:MOST_NAMED]]
        texts += _listed("no residual depends on", node, nothing, len(numbers))
        single = [(one.number, abs(one.direction) > SHOWN) for one in alone[:MOST_NAMED]]
        texts += _listed("one direction is free of", node, single, len(alone))
        has_free[[one.number for one in alone]] = True
        touched[node.name] = has_free
        num_free += int(absent.sum()) + len(alone)
    if len(joint) > 0:
        num_joint = next(iter(joint.values())).shape[2]
        texts += _joint_texts(normal, joint, num_joint)
        num_free += num_joint
        to_host = normal.backend.to_host
        parts = {name: to_host(abs(basis).max(axis=(1, 2))) for name, basis in joint.items()}
        largest = max(part.max(initial=0.0) for part in parts.values())
        for name, part in parts.items():
            touched[name] |= part > MOVED * largest
    return FreeDirections(num_free, tuple(texts), touched)


def _joint_texts(normal: NormalMatrix, joint: Mapping[str, Array], num_joint: int) -> list[str]:
    """Name directions in which several instances may move together."""
    texts, num_left = [], num_joint
    moved, most_moved = [], []
    to_host = normal.backend.to_host
    for node in normal.nodes:
        basis = joint[node.name]
        # along the first axis, which is quicker by far to add up than three numbers each
        shares = to_host((basis**2).sum(axis=2).T)
        by_instance = shares.sum(axis=0)
        alone = []
        for number in np.flatnonzero(by_instance > ALONE):
            rows = to_host(basis[int(number)])
            values, vectors = np.linalg.eigh(rows @ rows.T)
            alone += [(int(number), abs(one) > SHOWN) for one in vectors.T[values > ALONE]]
        num_left -= len(alone)
        texts += _listed("one direction is free of", node, alone[:MOST_NAMED], len(alone))
        is_moved = shares.max(axis=0, initial=0.0) > MOVED**2 * shares.max(initial=1e-300)
        if is_moved.any():
            moved.append(f"{int(is_moved.sum()):,} {node.name}")
            most = int(by_instance.argmax())
            share = shares[:, most]
            most_moved.append(_unknowns(node, most, share > SHOWN * share.max()))
    if num_left > 0:
        directions = "1 direction moves" if num_left == 1 else f"{num_left} directions move"
        texts.append(
            f"{directions} {' and '.join(moved)} together without changing a residual, among them "
            f"{'; '.join(most_moved)}"
        )
    return texts


def _listed(
    what: str, node: NodeType, named: Sequence[tuple[int, NDArray[np.bool_]]], count: int
) -> list[str]:
    """A text of some instances and their unknowns, which are `count` in all; nothing of none."""
    if count == 0:
        return []
    text = "; ".join(_unknowns(node, number, chosen) for number, chosen in named)
    more = f"; and of {count - len(named):,} more" if count > len(named) else ""
    return [f"{what} {text}{more}"]


def _unknowns(node: NodeType, number: int, chosen: NDArray[np.bool_]) -> str:
    """An instance, and some of its unknowns: fields by name, or entries of the tangent."""
    fields = tangent_fields(node.python_type)
    owner = f"{node.name} {number}"
    if len(fields) > 0:
        names = [name for name, place in fields.items() if chosen[place.start : place.stop].any()]
        return f"{owner}, field{'s' if len(names) > 1 else ''} {', '.join(names)}"
    numbers = np.flatnonzero(chosen)
    if len(numbers) == len(chosen) > 1:
        return f"{owner}, all of it"
    listed = ", ".join(map(str, numbers))
    return f"{owner}, {'entries' if len(numbers) > 1 else 'entry'} {listed} of its tangent"
