"""`Logger`: an `on_iteration` that logs each iteration to Rerun.

Input: records of iterations. Output: points, lines and plots of Rerun. Cost: for each accepted step
a copy of the values and an evaluation of the residuals.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import MissingPackageError
from caspar.scene.colors import ErrorScale, error_scale, rgb
from caspar.scene.reader import SceneReader
from caspar.scene.scene import GroupKind, Scene, State, frustum_length, frustum_strokes
from caspar.solver.result.result import IterationRecord
from caspar.solver.solver import Solver

TIMELINE = "iteration"

DECADES = 2.5
"""Length of the scale of colours, downwards from the start: the end is not known yet."""

_CAMERA_COLOR = (88, 166, 255)
_SCALARS = ("cost", "damping", "gain_ratio", "linear_iterations")


class Logger:
    """Logs each iteration of a solve: `solver.solve(arrays, on_iteration=Logger(solver, arrays))`.

    Start Rerun before, by `rerun.init("name", spawn=True)`, or `rerun.init` and `rerun.save`. The
    start values are logged at once, as iteration 0. Nodes that have a place are drawn as in
    `caspar.SolveResult.to_html`, coloured by residual; `cost`, `damping`, `gain_ratio` and
    `linear_iterations` are plots. Each accepted step costs a copy of the values and an evaluation
    of the residuals.

    Args:
        solver: The solver.
        arrays: As for `Solver.solve`.
        path: Where in Rerun's tree of entities it goes.
        nouns: What an instance of a node type or factor is called, by its name.

    Raises:
        InputError: No node type has a place, or arrays do not fit the factors.
        MissingPackageError: rerun-sdk is not installed.
    """

    def __init__(
        self,
        solver: Solver,
        arrays: Mapping[str, Any],
        *,
        path: str = "solve",
        nouns: Mapping[str, str] | None = None,
    ) -> None:
        self._rerun = _rerun()
        self._solver = solver
        self._arrays = arrays
        self._path = path
        self._reader = SceneReader(solver.traced_factors, arrays, nouns)
        found = solver.evaluate(arrays)
        state = self._reader.state("start", found.cost, arrays, found.residuals)
        reader = self._reader
        first = Scene("", (), "", reader.is_planar, reader.groups, reader.links, (state,))
        places = np.concatenate(list(state.places.values()))
        low, high = np.nanpercentile(places, [2.0, 98.0], axis=0)
        self._size = float((high - low).max())
        scale = error_scale(first)
        self._scale = None if scale is None else replace(scale, low=scale.high - DECADES)
        self._length = frustum_length(first, self._size)
        self._rerun.set_time(TIMELINE, sequence=0)
        self._log_scalar("cost", found.cost)
        self._log(state)

    def __call__(self, record: IterationRecord) -> None:
        """Log one iteration."""
        self._rerun.set_time(TIMELINE, sequence=record.iteration)
        for name in _SCALARS:
            self._log_scalar(name, float(getattr(record, name)))
        if record.step_accepted:
            arrays = {**self._arrays, **record.values()}
            found = self._solver.evaluate(arrays)
            self._log(self._reader.state("", record.cost, arrays, found.residuals))

    def _log_scalar(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self._rerun.log(f"{self._path}/course/{name}", self._rerun.Scalars(value))

    def _log(self, state: State) -> None:
        """Log all that is drawn at some values."""
        dim = 2 if self._reader.is_planar else 3
        points = self._rerun.Points2D if dim == 2 else self._rerun.Points3D
        lines = self._rerun.LineStrips2D if dim == 2 else self._rerun.LineStrips3D
        for link in self._reader.links:
            colors = _colors(state, link.name, self._scale)
            self._send(link.name, lines(state.segments[link.name][..., :dim], colors=colors))
        for group in self._reader.groups:
            places = state.places[group.name]
            if group.kind is GroupKind.CAMERAS:
                strokes = places[:, None] + frustum_strokes(group, state, self._length)
                labels = list(group.labels) or [f"{group.noun} {row}" for row in group.rows]
                drawn = lines(strokes, colors=_CAMERA_COLOR, labels=labels, show_labels=False)
                self._send(group.name, drawn)
                continue
            colors = _colors(state, group.name, self._scale)
            radius = 2e-3 * self._size
            self._send(group.name, points(places[:, :dim], colors=colors, radii=radius))

    def _send(self, name: str, drawn: Any) -> None:
        self._rerun.log(f"{self._path}/scene/{name}", drawn)


def _rerun() -> Any:
    """Rerun's own module, if it is installed."""
    try:
        import rerun
    except ModuleNotFoundError as error:
        raise MissingPackageError("caspar.rerun", "rerun-sdk", "rerun") from error
    return rerun


def _colors(state: State, name: str, scale: ErrorScale | None) -> NDArray[np.uint8] | None:
    """Return colours by residual; None: there is no residual."""
    errors = state.errors.get(name)
    if errors is None or scale is None:
        return None
    return rgb(errors, scale)
