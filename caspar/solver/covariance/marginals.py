"""Covariances of nodes from the inverse of the reduced system, in tangent coordinates.

With G the inverse in which free directions are pinned, N an orthonormal basis of those and M = G N,

    (I - N N^T) G (I - N N^T) = G - N M^T - M N^T + N (N^T M) N^T

is the pseudo-inverse of J^T J (Moore-Penrose), whichever unknowns are pinned. Its blocks are found
one by one. Free directions of single eliminated nodes, which may be many, are not in N: they are
projected away from the rows and columns of their node. Cost tier: blocks once for a covariance,
cross blocks when asked for.

Also here: free directions in words: node type, instance, and field or entry of the tangent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.errors import RankDeficiencyError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_fields
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.covariance.inverses import FloatArray, KnownBlocks, ReducedInverse
from caspar.solver.normal.matrix import NormalMatrix, add_rows

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
        touched: By node type, (n,) whether something of an instance is free.
    """

    num_free: int
    texts: tuple[str, ...]
    touched: Mapping[str, NDArray[np.bool_]]

    def refuse(self, requested: Mapping[str, NDArray[np.int64]]) -> None:
        """Raise if something free touches what was requested."""
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

    Of single eliminated nodes `normal` knows it; `joint` are the others, (n, dim, k) by node type.
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


COLUMNS_OF_PIECE = 64
"""Right-hand sides that are solved for at once."""


class Marginals:
    """Blocks of the covariance."""

    def __init__(self, normal: NormalMatrix, inverse: ReducedInverse) -> None:
        self._normal = normal
        self._inverse = inverse
        self._backend: Backend = normal.backend
        self.scaled_free = self._find_free()
        self._projectors = {
            name: _projectors(normal, name)
            for name, elimination in normal.eliminations.items()
            if len(elimination.free) > 0
        }
        self._correction = self._find_correction()

    def blocks(self, name: str, numbers: NDArray[np.int64]) -> Array:
        """(k, d, d) of the nodes of those numbers, on the device."""
        numbers, places = np.unique(numbers, return_inverse=True)
        index = self._backend.upload(numbers)
        known = self._inverse.blocks
        if known is None:
            found = self._by_columns(name, numbers)
        elif name in self._normal.eliminations:
            found = self._eliminated(name, index, known)
        else:
            found = known((name, name), index, index)
        found = self._in_tangent(name, numbers, found)
        found = self._in_tangent(name, numbers, found.transpose(0, 2, 1))
        found = found + self._projected(name, index, name, index)
        return (0.5 * (found + found.transpose(0, 2, 1)))[self._backend.upload(places)]

    def cross(self, name: str, number: int, other: str, other_number: int) -> FloatArray:
        """(d, other d) of two nodes, on the host."""
        one = np.array([number])
        two = np.array([other_number])
        left, right = self._sides(name, one), self._sides(other, two)
        found = left.T @ self._inverse.solve(right)
        if name == other and number == other_number and name in self._normal.eliminations:
            root = self._backend.to_host(self._normal.eliminations[name].roots[one])[0]
            found = found + root @ root.T
        upload = self._backend.upload
        block = self._in_tangent(name, one, upload(found[None]))
        block = self._in_tangent(other, two, block.transpose(0, 2, 1)).transpose(0, 2, 1)
        block = block + self._projected(name, upload(one), other, upload(two))
        return np.asarray(self._backend.to_host(block)[0])

    def _in_tangent(self, name: str, numbers: NDArray[np.int64], rows: Array) -> Array:
        """Rows of some nodes in scaled unknowns, (k, d, any), as those of tangents.

        Without what they have along free directions of these nodes alone.
        """
        rows = self._normal.scales[name][self._backend.upload(numbers)][:, :, None] * rows
        if name not in self._projectors:
            return rows
        weak, projectors = self._projectors[name]
        place = np.minimum(np.searchsorted(weak, numbers), len(weak) - 1)
        found = np.flatnonzero(weak[place] == numbers)
        index, upload = self._backend.upload(found), self._backend.upload
        rows[index] = upload(projectors[place[found]]) @ rows[index]
        return rows

    def _find_free(self) -> dict[str, Array]:
        """The free directions of the reduced system over all nodes, orthonormal, scaled unknowns.

        (n, d, k) by node type, on the device. Found from J^T J, they are off by its rounding over
        the least eigenvalue. Two corrections by way of J make that the rounding of J over the least
        singular value.
        """
        normal, free = self._normal, self._inverse.free
        if free.shape[1] == 0:
            return {}
        remaining = normal.unknowns.split(self._backend.upload(free))
        found = dict(remaining)
        for name, elimination in normal.eliminations.items():
            moved = elimination.moved(self._backend.xp, remaining)
            found[name] = -(elimination.roots @ moved)
        for _ in range(2):
            wrong = self._solved(normal.gradients(found))
            found = {name: part - wrong[name] for name, part in found.items()}
        return _orthonormal(self._backend, found)

    def _find_correction(self) -> "_Correction | None":
        """N, M and N^T M; None where no free direction moves several nodes."""
        if len(self.scaled_free) == 0:
            return None
        free = _orthonormal(self._backend, self._all_in_tangent(self.scaled_free))
        scales = self._normal.scales
        moved = self._solved({name: part * scales[name][:, :, None] for name, part in free.items()})
        moved = self._all_in_tangent(moved)
        num = next(iter(free.values())).shape[2]
        inner = sum(free[name].reshape(-1, num).T @ moved[name].reshape(-1, num) for name in free)
        return _Correction(free, moved, inner)

    def _solved(self, sides: Mapping[str, Array]) -> dict[str, Array]:
        """G times (n, d, k) by node type, scaled unknowns, on the device."""
        normal, backend, xp = self._normal, self._backend, self._backend.xp
        rhs = {name: sides[name] for name in normal.unknowns.nodes}
        whitened = {}
        for name, elimination in normal.eliminations.items():
            whitened[name] = elimination.roots.transpose(0, 2, 1) @ sides[name]
            for other, part in elimination.taken(xp, whitened[name]).items():
                rhs[other] = rhs[other] - part
        reduced = self._inverse.solve(backend.to_host(normal.unknowns.joined(xp, rhs)))
        remaining = normal.unknowns.split(backend.upload(reduced))
        solved = dict(remaining)
        for name, elimination in normal.eliminations.items():
            moved = elimination.moved(xp, remaining)
            solved[name] = elimination.roots @ (whitened[name] - moved)
        return solved

    def _all_in_tangent(self, parts: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: self._in_tangent(name, np.arange(len(part)), part) for name, part in parts.items()
        }

    def _eliminated(self, name: str, index: Array, known: KnownBlocks) -> Array:
        """R (I + Z Sigma Z^T) R^T."""
        xp = self._backend.xp
        elimination = self._normal.eliminations[name].of_nodes(xp, index)
        dim = int(elimination.roots.shape[1])
        half = xp.zeros((len(index), dim, dim))
        widest = max((node.dim for node in self._normal.unknowns.nodes.values()), default=1)
        for pairs in elimination.pairs(xp, widest**2):
            left, right = (elimination.couplings[type_] for type_ in pairs.types)
            rows, columns = pairs.rows, pairs.columns
            block = known(pairs.types, left.other[rows], right.other[columns])
            product = left.blocks[rows] @ (block @ right.blocks[columns].transpose(0, 2, 1))
            if left is right:
                # a coupling with itself comes once, others twice
                product *= xp.where(rows == columns, 0.5, 1.0)[:, None, None]
            add_rows(xp, half, left.node[rows], product)
        inner = half + half.transpose(0, 2, 1) + xp.eye(dim)
        return elimination.roots @ inner @ elimination.roots.transpose(0, 2, 1)

    def _by_columns(self, name: str, numbers: NDArray[np.int64]) -> Array:
        """The same by solving for each node."""
        dim = int(self._normal.scales[name].shape[1])
        found = np.zeros((len(numbers), dim, dim))
        step = max(1, COLUMNS_OF_PIECE // dim)
        for first in range(0, len(numbers), step):
            chosen = numbers[first : first + step]
            right = self._sides(name, chosen)
            left = right.reshape(-1, len(chosen), dim)
            solved = self._inverse.solve(right).reshape(-1, len(chosen), dim)
            found[first : first + step] = np.einsum("rka,rkb->kab", left, solved)
        if name in self._normal.eliminations:
            roots = self._backend.to_host(self._normal.eliminations[name].roots)[numbers]
            found += roots @ roots.transpose(0, 2, 1)
        return self._backend.upload(found)

    def _sides(self, name: str, numbers: NDArray[np.int64]) -> FloatArray:
        """(size, k * d): what the covariance of nodes is the reduced inverse between.

        Columns of the identity; of eliminated nodes those of -Z^T R^T.
        """
        unknowns, backend = self._normal.unknowns, self._backend
        dim = int(self._normal.scales[name].shape[1])
        result = np.zeros((unknowns.size, len(numbers), dim))
        if name in unknowns.nodes:
            places = unknowns.numbers(np, name, numbers, np.arange(dim))
            result[places, np.arange(len(numbers))[:, None], np.arange(dim)] = 1.0
        else:
            index = backend.upload(numbers)
            elimination = self._normal.eliminations[name].of_nodes(backend.xp, index)
            for other, one in elimination.couplings.items():
                turned = backend.to_host(elimination.roots[one.node] @ one.blocks)
                nodes, columns = backend.to_host(one.other), backend.to_host(one.node)[:, None]
                rows = unknowns.numbers(np, other, nodes, np.arange(turned.shape[2]))
                result[rows, columns] = -turned.transpose(0, 2, 1)
        return result.reshape(unknowns.size, -1)

    def _projected(self, name: str, index: Array, other: str, other_index: Array) -> Array:
        """The term of the projection away from the free directions: (k, d, other d)."""
        correction = self._correction
        if correction is None:
            return 0.0
        n, m = correction.free[name][index], correction.moved[name][index]
        other_n, other_m = correction.free[other][other_index], correction.moved[other][other_index]
        inner = correction.inner
        turned_n, turned_m = other_n.transpose(0, 2, 1), other_m.transpose(0, 2, 1)
        return n @ (inner @ turned_n) - n @ turned_m - m @ turned_n


@dataclass(frozen=True)
class _Correction:
    """N, M = G N and N^T M in tangent coordinates, by node type (n, d, k), on the device."""

    free: Mapping[str, Array]
    moved: Mapping[str, Array]
    inner: Array


def _orthonormal(backend: Backend, parts: Mapping[str, Array]) -> dict[str, Array]:
    """The same space, by columns of length 1 across each other over all node types."""
    basis = backend.xp.concatenate([part.reshape(-1, part.shape[2]) for part in parts.values()])
    basis = basis / (basis**2).sum(axis=0) ** 0.5
    # by the eigenvectors of the small Gram matrix, twice for full accuracy: millions of rows are
    # slow to orthogonalise by reflections
    for _ in range(2):
        values, vectors = np.linalg.eigh(backend.to_host(basis.T @ basis))
        floor = np.finfo(float).eps * values.max()
        basis = basis @ backend.upload(vectors / np.sqrt(np.maximum(values, floor)))
    result, first = {}, 0
    for name, part in parts.items():
        rows = part.shape[0] * part.shape[1]
        result[name] = basis[first : first + rows].reshape(part.shape)
        first += rows
    return result


def _projectors(normal: NormalMatrix, name: str) -> tuple[NDArray[np.int64], FloatArray]:
    """Eliminated nodes of which a direction is free, ascending, and I - n n^T of their tangents."""
    free = normal.eliminations[name].free
    numbers = np.unique([one.number for one in free])
    scales = normal.backend.to_host(normal.scales[name])
    projectors = np.zeros((len(numbers), scales.shape[1], scales.shape[1]))
    for place, number in enumerate(numbers):
        columns = [one.direction * scales[number] for one in free if one.number == number]
        basis = np.linalg.qr(np.stack(columns, axis=1))[0]
        projectors[place] = np.eye(scales.shape[1]) - basis @ basis.T
    return numbers, projectors
