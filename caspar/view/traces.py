"""What plotly draws of a scene: points, frusta, poses and links of one state.

Input: a `Scene` and an `Outlook`. Output: traces for each state, always the same ones in the same
order. Cost: some passes over what is drawn.
"""

from typing import Any

import numpy as np
from plotly import graph_objects

from caspar.scene.colors import CAMERA, FAINT, PLAIN, logarithms
from caspar.scene.frusta import NUM_CORNERS, frustum_length, frustum_strokes
from caspar.scene.scene import Floats, Group, GroupKind, Links, Scene, State
from caspar.view.alignment import Outlook


def traces(scene: Scene, state: State, outlook: Outlook) -> list[Any]:
    """All traces of one state."""
    longest = float((outlook.high - outlook.low).max())
    drawn = [_lines(links, state, outlook, scene) for links in scene.links]
    for group in scene.groups:
        drawn.append(_markers(group, state, outlook, scene))
        if group.kind is GroupKind.CAMERAS:
            drawn.append(_frusta(group, state, outlook, frustum_length(scene, longest)))
    return drawn


def _markers(group: Group, state: State, outlook: Outlook, scene: Scene) -> Any:
    places = outlook.turned(state.places[group.name])
    errors = state.errors.get(group.name)
    unit = f" {scene.unit}" if scene.unit else ""
    names = group.labels or tuple(f"{group.noun} {row}" for row in group.rows.tolist())
    color: Any = PLAIN if group.kind is GroupKind.POINTS else CAMERA
    hover = "%{text}<extra></extra>"
    marker: dict[str, Any] = {"size": _size(group), "line": {"width": 0}}
    more: dict[str, Any] = {}
    if errors is not None:
        more["customdata"] = errors.astype(np.float32)
        hover = f"%{{text}}<br>residual %{{customdata:.3g}}{unit}<extra></extra>"
        if group.kind is GroupKind.POINTS:
            color = logarithms(errors).astype(np.float32)
            marker["coloraxis"] = "coloraxis"
    if group.kind is GroupKind.POSES and len(scene.links) > 0:
        color = FAINT
    return graph_objects.Scatter3d(
        **_coordinates(places),
        mode="markers",
        name=f"{group.noun}s",
        legendgroup=group.name,
        showlegend="coloraxis" not in marker,
        marker={**marker, "color": color},
        text=names,
        hovertemplate=hover,
        **more,
    )


def _size(group: Group) -> float:
    if group.kind is GroupKind.POINTS:
        return float(np.clip(140.0 / np.sqrt(max(len(group.rows), 1)), 1.0, 4.0))
    if group.kind is GroupKind.CAMERAS:
        return 2.0
    return float(np.clip(25.0 / np.sqrt(max(len(group.rows), 1)), 0.8, 3.0))


def _frusta(group: Group, state: State, outlook: Outlook, length: float) -> Any:
    centres = outlook.turned(state.places[group.name])
    strokes = np.full((len(centres), NUM_CORNERS + 1, 3), np.nan)  # a gap after each
    edges = outlook.turned_directions(frustum_strokes(group, state, length))
    strokes[:, :-1] = centres[:, None] + edges
    return graph_objects.Scatter3d(
        **_coordinates(strokes.reshape(-1, 3)),
        mode="lines",
        legendgroup=group.name,
        line={"color": CAMERA, "width": 1.5},
        opacity=0.75,
        hoverinfo="skip",
        showlegend=False,
    )


def _lines(links: Links, state: State, outlook: Outlook, scene: Scene) -> Any:
    segments = outlook.turned(state.segments[links.name])
    strokes = np.full((len(segments), 3, 3), np.nan)
    strokes[:, :2] = np.where(np.isnan(segments).any(axis=(1, 2), keepdims=True), np.nan, segments)
    line: dict[str, Any] = {"width": 2.0, "color": PLAIN}
    errors = state.errors.get(links.name)
    if errors is not None:
        color = np.repeat(logarithms(errors), 3).astype(np.float32)
        line |= {"color": color, "coloraxis": "coloraxis"}
    return graph_objects.Scatter3d(
        **_coordinates(strokes.reshape(-1, 3)),
        mode="lines",
        name=f"{links.noun}s",
        showlegend=errors is None,
        line=line,
        hoverinfo="skip",
    )


def _coordinates(places: Floats) -> dict[str, Any]:
    x, y, z = np.ascontiguousarray(places.T, dtype=np.float32)
    return {"x": x, "y": y, "z": z}
