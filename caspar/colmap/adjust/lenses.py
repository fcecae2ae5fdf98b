"""Lenses as nodes: which camera models share a node type, and which parameters it has.

Input: camera models. Output: node types and, for each of their columns, the parameter of a camera
that it holds. Some microseconds for each camera model.

Principal points that nobody refines are no part of a node: pixels are taken relative to them. A few
camera models in one problem have one node type and one factor, which chooses by a number of each
observation: points that several factors see would need two passes over all observations in a
product, instead of one (docs/design/0012-elimination.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.cameras import MODELS, CameraModel
from caspar.colmap.adjust.observations import used_rows
from caspar.colmap.adjust.problem import Mask, Problem
from caspar.colmap.model import Floats, Integers
from caspar.factors.whitening import vector_type

GROUPS = ("focal", "principal", "extra")
"""Groups of intrinsics: fields of `CameraModel` and of lenses."""

NO_PARAMETER = -1
"""A column that a camera model has no parameter for; it is held."""


@dataclass(frozen=True)
class LensForm:
    """The node type of some camera models.

    Attributes:
        camera_models: Names.
        has_principal: Whether principal points are parts of nodes.
    """

    camera_models: tuple[str, ...]
    has_principal: bool

    @property
    def name(self) -> str:
        """The names of the camera models."""
        return "_".join(self.camera_models)

    @property
    def models(self) -> tuple[CameraModel, ...]:
        """The camera models."""
        return tuple(MODELS[name] for name in self.camera_models)

    @property
    def sizes(self) -> dict[str, int]:
        """Columns of each group that has any: as many as the model with the most needs."""
        groups = [one for one in GROUPS if one != "principal" or self.has_principal]
        sizes = {one: max(len(getattr(model, one)) for model in self.models) for one in groups}
        return {name: size for name, size in sizes.items() if size > 0}

    def columns(self, model: CameraModel) -> list[int]:
        """Return the model's parameter in each column, or `NO_PARAMETER`."""
        found: list[int] = []
        for name, size in self.sizes.items():
            own = list(getattr(model, name))
            found += own + [NO_PARAMETER] * (size - len(own))
        return found

    def parameters(self, model: CameraModel, values: Sequence[Any]) -> list[Any]:
        """Return a model's parameters, from those of a node; what is not in it is zero."""
        parameters: list[Any] = [0] * model.num_parameters
        for place, value in zip(self.columns(model), values, strict=True):
            if place != NO_PARAMETER:
                parameters[place] = value
        return parameters


def plain_lens(camera_model: str) -> LensForm:
    """Return the node type of all parameters of a camera model, as priors on them need it."""
    return LensForm((camera_model,), has_principal=True)


@lru_cache
def lens_type(lens: LensForm) -> Any:
    """Return the node type: some of the fields focal, principal and extra, in this order.

    None: there is nothing to refine.
    """
    fields = [(name, vector_type(size)) for name, size in lens.sizes.items()]
    return make_dataclass(f"Lens_{lens.name}", fields) if fields else None


@lru_cache
def view_type(lens: LensForm) -> Any:
    """Return the node type of a pose and a lens; in storage the pose comes first."""
    pose = [("rotation", sf.Rot3), ("translation", sf.V3)]
    fields = [*pose, *((name, vector_type(size)) for name, size in lens.sizes.items())]
    return make_dataclass(f"View_{lens.name}", fields)


# -- arrays ----------------------------------------------------------------------------------------


def used_lenses(problem: Problem, lens: LensForm) -> Integers:
    """Return rows of the cameras of some models that see points: those of all their factors."""
    lenses = used_rows(problem.observations.cameras)
    numbers = [-1 if model.model_id is None else model.model_id for model in lens.models]
    found: Integers = lenses[np.isin(problem.model.cameras.model_ids[lenses], numbers)]
    return found


def lens_places(problem: Problem, lens: LensForm, lenses: Integers) -> tuple[Integers, Mask]:
    """Return where the columns of nodes come from, and what of them is held.

    Args:
        problem: What takes part, and what is constant.
        lens: The node type.
        lenses: (n,) rows of cameras.

    Returns:
        (n, k) places among the parameters of all cameras, behind the last one where a model has no
        parameter; and (n, k) whether the column is held.
    """
    cameras = problem.model.cameras
    size = sum(lens.sizes.values())
    places = np.full((len(lenses), size), len(cameras.parameters), np.int64)
    is_held = np.ones((len(lenses), size), np.bool_)
    for model in lens.models:
        rows = np.flatnonzero(cameras.model_ids[lenses] == model.model_id)
        refined = [place for name in problem.refined_intrinsics for place in getattr(model, name)]
        for column, place in enumerate(lens.columns(model)):
            if place != NO_PARAMETER:
                places[rows, column] = cameras.offsets[lenses[rows]] + place
                is_held[rows, column] = place not in refined
    is_held[problem.constant_cameras[lenses]] = True
    return places, is_held


def lens_bounds(
    problem: Problem, lens: LensForm, places: Integers
) -> dict[str, tuple[Floats, Floats]]:
    """Return lower and upper bounds of nodes by group, each (n, size); nothing without bounds.

    `places` are those of `lens_places`, (n, k).
    """
    if problem.intrinsics_bounds is None:
        return {}
    lower, upper = problem.intrinsics_bounds
    lows, highs = np.append(lower, -np.inf)[places], np.append(upper, np.inf)[places]
    ends = np.cumsum([0, *lens.sizes.values()]).tolist()
    return {
        name: (lows[:, first:end], highs[:, first:end])
        for name, (first, end) in zip(lens.sizes, pairwise(ends), strict=True)
    }


def from_principal_points(
    problem: Problem, lens: LensForm, cameras: Integers, pixels: Floats
) -> Floats:
    """Return (m, 2) pixels relative to principal points, if these are not parts of nodes.

    Args:
        problem: What takes part.
        lens: The node type.
        cameras: (m,) rows of cameras.
        pixels: (m, 2).
    """
    if lens.has_principal:
        return pixels
    known = problem.model.cameras
    principal = np.zeros((len(known.ids), 2))
    for model in lens.models:
        rows = np.flatnonzero(known.model_ids == model.model_id)
        for axis, place in enumerate(model.principal):
            principal[rows, axis] = known.parameters[known.offsets[rows] + place]
    moved = principal[cameras]
    return np.subtract(pixels, moved, out=moved)


def model_numbers(problem: Problem, lens: LensForm, cameras: Integers) -> NDArray[np.float64]:
    """Return (m, 1) the number of each camera's model among those of a node type."""
    numbers = np.zeros((len(cameras), 1))
    for number, model in enumerate(lens.models):
        numbers[problem.model.cameras.model_ids[cameras] == model.model_id] = number
    return numbers
