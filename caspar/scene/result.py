"""The scene of a `SolveResult` or of an adjusted COLMAP model: start, iterations, solution.

Input: a result, and a `Recording` if there is one; or two `caspar.colmap.Model`s. Output: a
`Scene`. Cost: an evaluation of the residuals for each state, of a model a pass over its
observations.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from caspar.colmap.adjust.observations import mean_errors, observations_of
from caspar.colmap.adjust.summary import Summary
from caspar.colmap.model import Model, rows_of
from caspar.errors import InputError
from caspar.io.rotations import invert_se3
from caspar.scene.reader import MAX_CAMERAS, MAX_POINTS, SceneReader, thinned
from caspar.scene.scene import Group, GroupKind, Links, Rows, Scene, State
from caspar.solver.result.quantities import cost_text, count_text
from caspar.solver.result.recording import Recording
from caspar.solver.result.result import SolveResult

MAX_STATES = 12
"""Start, iterations and solution that are drawn, at most."""

MAX_NUMBERS = 3_000_000
"""Coordinates of all states, at most: more iterations are left out, but never start and end."""


def scene_of_result(
    result: SolveResult,
    recording: Recording | None = None,
    *,
    title: str = "",
    unit: str = "",
    nouns: Mapping[str, str] | None = None,
    before: Mapping[str, Mapping[str, Any]] | None = None,
) -> Scene:
    """Return the scene of a solve.

    Poses are taken to lead from their axes to the world unless names say otherwise: a field or an
    argument called `cam_T_world` or `cam_from_world`. The pose of a camera, whose factor has two
    residuals, a pose and a point, is taken in the direction that has the points before it.

    Args:
        result: The solve.
        recording: The `on_iteration` of the solve; its steps come between start and solution.
        title: What it is; empty: the counts of what is drawn.
        unit: Of the lengths of residuals, such as `px`.
        nouns: What an instance of a node type or factor is called, by its name: `camera`.
        before: States before the start, by label: values by node type.

    Raises:
        InputError: No node type has a place; the result is a copy, which does not hold the arrays;
            or the recording is of another problem.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Spot(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Spot, noise="unit", name="seen"))
        >>> seen = {"value": [0, 1], "expected": [[1.0, 2.0], [3.0, 4.0]]}
        >>> result = solver.solve({"Spot": [[0.0, 0.0], [5.0, 5.0]], "seen": seen})
        >>> scene = caspar.scene.scene_of_result(result, title="Two spots", unit="m")
        >>> scene.states[-1].places["Spot"].round(3)
        array([[1., 2., 0.],
               [3., 4., 0.]])
    """
    given = result.given
    if given is None:
        raise InputError(
            "this result is a copy or comes from a pickle, which does not hold the arrays: call "
            "to_html where the solve was"
        )
    if len(given.arrays.in_parts) > 0:
        raise InputError(
            f"{', '.join(given.arrays.in_parts)}: given in parts, which are not drawn: put these "
            "arrays together and solve again"
        )
    arrays = given.arrays.at_start()
    reader = SceneReader(given.factors, arrays, nouns)

    def evaluated(label: str, values: Mapping[str, Any]) -> State:
        moved = {**arrays, **{name: _like(arrays[name], rows) for name, rows in values.items()}}
        found = given.evaluate(moved)
        return reader.state(label, found.cost, moved, found.residuals)

    states = [
        *(evaluated(label, values) for label, values in (before or {}).items()),
        evaluated("start", {}),
    ]
    room = min(MAX_STATES, max(MAX_NUMBERS // max(_num_numbers(states[0]), 1), 2)) - len(states) - 1
    for label, values in _recorded(recording, result, max(room, 0)):
        states.append(evaluated(label, values))
    final = reader.state("solution", result.final_cost, result.values, result.residuals)
    return Scene(
        title=title or ", ".join(count_text(one.total, one.noun) for one in reader.groups),
        facts=_facts(result, reader, recording, len(states) - 1 - len(before or {})),
        unit=unit,
        is_planar=reader.is_planar,
        groups=reader.groups,
        links=reader.links,
        states=(*states, final),
    )


def _like(given: Any, rows: Any) -> Any:
    """Rows of the host where the given array is."""
    given = given.to_rows() if hasattr(given, "to_rows") else given
    if hasattr(given, "new_tensor"):
        return given.new_tensor(rows)
    if not (hasattr(given, "get") and hasattr(given, "set")):
        return rows
    placed = given.astype(rows.dtype, copy=True)
    placed.set(np.ascontiguousarray(rows))
    return placed


def _recorded(
    recording: Recording | None, result: SolveResult, room: int
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Steps between start and solution, evenly chosen."""
    if recording is None or room == 0:
        return
    for values in recording.values[:1]:
        wanted = {name: tuple(map(int, rows.shape)) for name, rows in result.values.items()}
        found = {name: rows.shape for name, rows in values.items()}
        if found != wanted:
            raise InputError(
                f"the recording has values of shapes {found}, the result of {wanted}: pass the "
                "recording that was on_iteration of this solve"
            )
    between = len(recording) - 1  # the last one is the solution
    if between <= 0:  # no step was accepted, or the recording was not used
        return
    chosen = np.unique(np.linspace(0, between - 1, min(room, between)).round().astype(int))
    for place in chosen.tolist():
        yield f"iteration {recording.records[place].iteration}", recording.values[place]


def _num_numbers(state: State) -> int:
    arrays = (*state.places.values(), *state.turns.values(), *state.segments.values())
    return sum(array.size for array in arrays)


def _facts(
    result: SolveResult, reader: SceneReader, recording: Recording | None, num_between: int
) -> tuple[str, ...]:
    sizes = [count_text(one.total, one.noun) for one in _drawn(reader)]
    facts = [
        ", ".join(sizes),
        f"cost {cost_text(result.initial_cost)} to {cost_text(result.final_cost)} in "
        f"{count_text(len(result.iterations), 'iteration')} ({result.status.name})",
        *(
            f"{len(one.rows):,} of {one.total:,} {one.noun}s are drawn"
            for one in _drawn(reader)
            if len(one.rows) < one.total
        ),
    ]
    if recording is not None and num_between < len(recording) - 1:
        facts.append(f"{num_between} of {len(recording)} recorded steps are shown")
    return tuple(facts)


def _drawn(reader: SceneReader) -> list[Group | Links]:
    return [*reader.groups, *reader.links]


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
