"""Problems whose covariance is known: dense Jacobians, and their pseudo-inverses in NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.limits import Limits
from caspar.solver.normal.instance_kernels import DerivativeKernels

Rows = NDArray[np.float64]
Arrays = dict[str, Any]

METHODS = {
    "singular values of the Jacobian": Limits(max_svd_work=1 << 40),
    "dense factorisation": Limits(max_svd_work=0),
    "sparse factorisation and selected inverse": Limits(
        max_svd_work=0, max_small_dense_covariance=0, full_share_covariance=1e9
    ),
    "conjugate gradients": Limits(
        max_svd_work=0,
        max_small_dense_covariance=0,
        max_dense_covariance=0,
        full_share_covariance=0.0,
    ),
}
"""Limits with which a covariance is found by each of the ways."""


@dataclass(frozen=True)
class Dense:
    """All of a problem as one matrix.

    Attributes:
        jacobian: (rows, unknowns).
        first: First unknown of each node type.
        dims: Unknowns of a node, by type.
    """

    jacobian: Rows
    first: Mapping[str, int]
    dims: Mapping[str, int]

    def place(self, name: str, number: int) -> slice:
        """The unknowns of a node."""
        first = self.first[name] + number * self.dims[name]
        return slice(first, first + self.dims[name])


def dense_problem(factors: Sequence[caspar.Factor], arrays: Arrays) -> Dense:
    """The Jacobian that caspar computes; `test_jacobians` compares it with finite differences."""
    recipe, backend = make_recipe(factors), CpuBackend()
    problem = read_problem(arrays, recipe.factors, recipe.nodes, backend, Precision.FLOAT64)
    first, dims, size = {}, {}, 0
    for node in recipe.nodes:
        first[node.name], dims[node.name] = size, node.tangent_dim
        size += node.tangent_dim * problem.counts[node.name]
    stacked = []
    for factor in DerivativeKernels(backend).evaluate(recipe.factors, problem):
        count, rows = factor.count, factor.num_rows
        dense = np.zeros((count, rows, size))
        for one in factor.nodes:
            places = first[one.node] + one.index[:, None] * dims[one.node]
            places = places + np.arange(dims[one.node])
            for k in range(count):
                dense[k][:, places[k]] += one.entries[k]
        stacked.append(dense.reshape(count * rows, size))
    return Dense(np.concatenate(stacked), first, dims)


def pseudo_inverse(jacobian: Rows, num_free: int = 0) -> Rows:
    """(J^T J)^+, from the singular values of J; the least of these are taken for zero."""
    scale = np.linalg.norm(jacobian, axis=0)
    present = scale > 0.0
    scaled = jacobian[:, present] / scale[present]
    padded = np.concatenate([scaled, np.zeros((scaled.shape[1], scaled.shape[1]))])
    turns = np.linalg.svd(padded, full_matrices=False)[2]
    free = turns[len(turns) - num_free :].T / scale[present, None]
    free = np.linalg.qr(free)[0]
    # rows along what is free make the matrix regular; the projection takes them out again
    held = np.concatenate([scaled, (free * scale[present, None]).T])
    triangle = np.linalg.qr(held)[1]
    root = np.linalg.inv(triangle) / scale[present, None]
    projector = np.eye(len(free)) - free @ free.T
    inverse = np.zeros((len(scale), len(scale)))
    inverse[np.ix_(present, present)] = projector @ root @ root.T @ projector
    return inverse


def largest_error(found: Any, wanted: Rows, deviations: tuple[Rows, Rows]) -> float:
    """The error of a block, relative to the standard deviations of rows and columns."""
    rows, columns = (np.where(one > 0.0, one, 1.0) for one in deviations)
    return float(np.abs((np.asarray(found) - wanted) / np.outer(rows, columns)).max())


# -- a small bundle --------------------------------------------------------------------------------


class View(sf.Pose3):
    """Camera from world."""


class Mark(sf.V3):
    """A place."""


class Ray(sf.V2):
    """A measured direction, as a point of the plane at depth 1."""


class Focal(sf.V2):
    """Focal lengths, and what nothing depends on if `observe` is used."""


@caspar.factor
def observe(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    ray: Annotated[Ray, caspar.ConstSequential],
) -> sf.V2:
    """A place in a calibrated camera."""
    seen = view * mark
    return 500.0 * (sf.V2(seen[0] / seen[2], seen[1] / seen[2]) - ray)


@caspar.factor
def observe_focal(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    focal: Annotated[Focal, caspar.TunableUnique],
    ray: Annotated[Ray, caspar.ConstSequential],
) -> sf.V2:
    """A place in a camera whose focal length, shared by all, is looked for too."""
    seen = view * mark
    return sf.V2(focal[0] * seen[0] / seen[2] - 500.0 * ray[0], focal[0] * seen[1] / seen[2]) - (
        sf.V2(0.0, 500.0 * ray[1])
    )


@caspar.factor
def known_view(
    view: Annotated[View, caspar.TunableShared],
    known: Annotated[View, caspar.ConstSequential],
) -> sf.V6:
    """Where a camera is known to be."""
    return 100.0 * sf.V6(*known.local_coordinates(view))


def bundle(num_views: int = 5, num_marks: int = 30, seed: int = 0) -> Arrays:
    """Cameras on an arc, places around the origin, each seen by two or more."""
    random = np.random.default_rng(seed)
    marks = random.uniform(-1.0, 1.0, (num_marks, 3))
    turns = Rotation.from_rotvec(
        np.linspace(-0.6, 0.6, num_views)[:, None] * np.array([0.1, 1.0, 0.2])
    )
    views = np.concatenate([turns.as_quat(), np.tile([0.0, 0.0, 6.0], (num_views, 1))], axis=1)
    is_seen = random.uniform(size=(num_views, num_marks)) < 0.7
    is_seen[0] = is_seen[-1] = True
    view, mark = np.nonzero(is_seen)
    seen = turns[view].apply(marks[mark]) + views[view, 4:]
    rays = seen[:, :2] / seen[:, 2:] + random.normal(0.0, 1e-3, (len(view), 2))
    return {
        "View": views,
        "Mark": marks,
        "observe": {"view": view, "mark": mark, "ray": rays},
        "known_view": {"view": [0, num_views - 1], "known": views[[0, -1]]},
    }


def without_gauge(arrays: Arrays) -> Arrays:
    """The same without the known cameras."""
    return {name: given for name, given in arrays.items() if name != "known_view"}


def with_focal(arrays: Arrays) -> Arrays:
    """The same for `observe_focal`; nothing depends on the second focal length."""
    kept = {name: given for name, given in arrays.items() if name != "observe"}
    return {**kept, "Focal": np.array([[500.0, 1.0]]), "observe_focal": arrays["observe"]}
