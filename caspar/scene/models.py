"""The scene of a COLMAP model, before and after an adjustment.

Input: two `caspar.colmap.Model`s. Output: a `Scene`. Cost: a pass over the observations each.
"""

import numpy as np

from caspar.colmap.adjust.observations import mean_errors, observations_of
from caspar.colmap.adjust.summary import Summary
from caspar.colmap.model import Model, rows_of
from caspar.io.rigid_motions import invert_se3
from caspar.scene.reader import MAX_CAMERAS, MAX_POINTS, thinned
from caspar.scene.scene import Group, GroupKind, Rows, Scene, State
from caspar.solver.result.quantities import cost_text, count_text

IMAGES = "image"
POINTS = "point"


def scene_of_models(before: Model, summary: Summary, *, title: str = "") -> Scene:
    """Return the scene of an adjustment: images as cameras, points by reprojection error.

    Args:
        before: The model that was given.
        summary: What `caspar.colmap.bundle_adjustment` returned for it.
        title: What it is.
    """
    after = summary.model
    images = thinned(len(after.images.ids), MAX_CAMERAS)
    points = thinned(len(after.points.ids), MAX_POINTS)
    groups = (
        Group(
            name=IMAGES,
            kind=GroupKind.CAMERAS,
            rows=images,
            total=len(after.images.ids),
            noun="image",
            labels=tuple(after.images.names[row] for row in images.tolist()),
        ),
        Group(POINTS, GroupKind.POINTS, points, len(after.points.ids), "point"),
    )
    # of points that the adjustment has removed nothing is drawn
    image_rows = rows_of(before.images.ids, after.images.ids[images])
    point_rows = rows_of(before.points.ids, after.points.ids[points])
    sizes = [count_text(group.total, group.noun) for group in groups]
    return Scene(
        title=title or ", ".join(sizes),
        facts=(
            ", ".join([*sizes, count_text(after.num_observations, "observation")]),
            f"cost {cost_text(summary.initial_cost)} to {cost_text(summary.final_cost)} in "
            f"{count_text(len(summary.result.iterations), 'iteration')} "
            f"({summary.result.status.name})",
            *(
                f"{len(group.rows):,} of {group.total:,} {group.noun}s are drawn"
                for group in groups
                if len(group.rows) < group.total
            ),
        ),
        unit="px",
        is_planar=False,
        groups=groups,
        links=(),
        states=(
            _state("start", summary.initial_cost, before, image_rows, point_rows),
            _state("solution", summary.final_cost, after, images, points),
        ),
    )


def _state(label: str, cost: float, model: Model, images: Rows, points: Rows) -> State:
    seen = observations_of(model)
    errors = mean_errors(model, seen)
    stored = model.images.cam_from_world[:, [1, 2, 3, 0, 4, 5, 6]]
    poses = invert_se3(stored[images])
    return State(
        label=label,
        cost=cost,
        places={IMAGES: poses[:, 4:], POINTS: model.points.xyz[points]},
        turns={IMAGES: poses[:, :4]},
        segments={},
        errors={POINTS: np.where(errors < 0.0, np.nan, errors)[points]},
    )
