"""The page around a drawing: its layout, a slider over states, and the file.

Input: a `Scene`. Output: HTML. The library, plotly.js, is in the file: it needs no network.

Also here: what plotly draws of a scene: points, frusta, poses and links of one state.

Also here: from where a scene is looked at: what is up, what is in the middle, what lies too far
out.
"""

import html
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects

from caspar.io.compressed import FilePath
from caspar.io.replace import write_file
from caspar.io.rotations import rotate
from caspar.scene.colors import (
    BACKGROUND,
    CAMERA,
    FAINT,
    PLAIN,
    SCALE,
    TEXT,
    error_scale,
    logarithms,
)
from caspar.scene.scene import (
    NUM_CORNERS,
    Floats,
    Group,
    GroupKind,
    Links,
    Scene,
    State,
    frustum_length,
    frustum_strokes,
)
from caspar.solver.result.quantities import cost_text

CENTRAL_PERCENT = 96.0
"""Part of the points, along each axis, that the box is fitted to."""

ROOM = 0.1
"""Margin that is drawn around that box, relative to its longest side."""

ROOM_FOR_START = 0.3
"""The box grows by at most this share of its longest side, to show a start outside of it."""

_LEAST_AGREEMENT = 0.1
"""Length of the mean of unit vectors below which it says nothing."""

_USUAL_EYE = np.array([0.7, -1.0, 0.65])
_LEAST_SIDE = 0.12
"""Shortest side of the box relative to the longest."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A turn of the world so that z is up, and what is seen of it.

    Attributes:
        axes: (3, 3) rows: right, back and up of the view, in world coordinates.
        low: (3,) least coordinates that are drawn, turned.
        high: (3,) greatest ones.
        eye: (3,) from where one looks at first, in units of half the longest side of the box.
    """

    axes: Floats
    low: Floats
    high: Floats
    eye: Floats

    def turned(self, places: Floats) -> Floats:
        """(..., 3) places in the view's axes; NaN outside of what is drawn."""
        found = places @ self.axes.T
        is_out = ((found < self.low) | (found > self.high)).any(axis=-1, keepdims=True)
        return np.where(is_out, np.nan, found)

    def turned_directions(self, directions: Floats) -> Floats:
        """(..., 3) directions in the view's axes."""
        found: Floats = directions @ self.axes.T
        return found


def outlook_of(scene: Scene) -> Outlook:
    """Choose the outlook by the last state."""
    state = scene.states[-1]
    axes = np.eye(3) if scene.is_planar else _axes(scene, state)
    low, high = _box(scene, state, axes)
    longest = max(float((high - low).max()), 1e-12)
    first_low, first_high = _box(scene, scene.states[0], axes)
    low = np.clip(first_low, low - ROOM_FOR_START * longest, low)
    high = np.clip(first_high, high, high + ROOM_FOR_START * longest)
    margin = np.maximum(ROOM * longest, 0.5 * (_LEAST_SIDE * longest - (high - low)))
    return Outlook(axes, low - margin, high + margin, _eye(scene, state, axes))


def _box(scene: Scene, state: State, axes: Floats) -> tuple[Floats, Floats]:
    """(3,) lower and upper limits of most of what is drawn."""
    ends = [np.array([[np.inf] * 3, [-np.inf] * 3])]
    for group in scene.groups:
        places = state.places[group.name] @ axes.T
        places = places[np.isfinite(places).all(axis=1)]
        percent = CENTRAL_PERCENT if group.kind is GroupKind.POINTS else 99.0
        outside = (100.0 - percent) / 2.0
        if len(places) > 0:
            ends.append(np.percentile(places, [outside, 100.0 - outside], axis=0))
    if len(ends) == 1:
        return np.full(3, -1.0), np.full(3, 1.0)
    return np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]


def _axes(scene: Scene, state: State) -> Floats:
    """Rows of a rotation: z is what cameras have above them, x the longest extent beside it."""
    ups = [
        rotate(state.turns[group.name], np.array([0.0, -group.forward, 0.0]))
        for group in scene.groups
        if group.kind is GroupKind.CAMERAS
    ]
    if len(ups) == 0:
        return np.eye(3)  # worlds of robots have z up
    places = np.concatenate(list(state.places.values()))
    near = _central(places[np.isfinite(places).all(axis=1)])
    up = np.concatenate(ups).mean(axis=0)
    if np.linalg.norm(up) < _LEAST_AGREEMENT:
        up = _principal(near)[-1]
    up = up / np.linalg.norm(up)
    right = _principal(near - np.outer(near @ up, up))[0]
    right = right - (right @ up) * up
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(up, right), up])


def _central(places: Floats) -> Floats:
    """The half of the places next to their middle, from there: far ones would decide it all."""
    centred = places - np.median(places, axis=0)
    distances = np.linalg.norm(centred, axis=1)
    near: Floats = centred[distances <= np.median(distances)]
    return near


def _principal(places: Floats) -> Floats:
    """(3, 3) orthogonal unit vectors as rows, from the longest extent to the shortest."""
    vectors: NDArray[np.float64] = np.linalg.eigh(places.T @ places).eigenvectors
    return vectors.T[::-1]


def _eye(scene: Scene, state: State, axes: Floats) -> Floats:
    """Behind the cameras and above them, if they look the same way."""
    looks = [
        rotate(state.turns[group.name], np.array([0.0, 0.0, group.forward])) @ axes.T
        for group in scene.groups
        if group.kind is GroupKind.CAMERAS
    ]
    if len(looks) == 0:
        return _USUAL_EYE
    mean = np.concatenate(looks).mean(axis=0)
    mean[2] = 0.0
    if np.linalg.norm(mean) < 3.0 * _LEAST_AGREEMENT:
        return _USUAL_EYE
    back = -mean / np.linalg.norm(mean)
    aside = np.array([-back[1], back[0], 0.0])
    eye: Floats = 1.0 * back + 0.45 * aside + np.array([0.0, 0.0, 0.6])
    return eye


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


_AT_ONCE = {
    "mode": "immediate",
    "frame": {"duration": 0, "redraw": True},
    "transition": {"duration": 0},
}

PLANAR_SCALE = 2.0
SPATIAL_SCALE = 1.5
"""Longest side of the box in plotly's units: it fills the window."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
html, body {{ height: 100%; margin: 0; background: {background}; color: {text}; }}
body {{ display: flex; flex-direction: column; font: 14px/1.45 system-ui, sans-serif; }}
header {{ padding: 12px 18px 4px; }}
h1 {{ font-size: 17px; font-weight: 600; margin: 0; }}
p {{ margin: 2px 0 0; color: {faint}; }}
main {{ flex: 1; min-height: 0; }}
main > div {{ height: 100%; }}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
{facts}
<noscript><p>The drawing needs JavaScript.</p></noscript>
</header>
<main>{drawing}</main>
</body>
</html>
"""


def write_html(scene: Scene, path: FilePath) -> None:
    """Write an interactive view of a scene as one file for a browser.

    Args:
        scene: What is drawn.
        path: The file.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
        ValueError: `path` is no path.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Spot(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Spot, noise="unit", name="seen"))
        >>> seen = {"value": [0, 1], "expected": [[1.0, 2.0], [3.0, 4.0]]}
        >>> result = solver.solve({"Spot": [[0.0, 0.0], [5.0, 5.0]], "seen": seen})
        >>> caspar.view.write_html(caspar.scene.scene_of_result(result), "spots.html")
    """
    write_file(path, page_of_scene(scene).encode())


def page_of_scene(scene: Scene) -> str:
    """The text of that file.

    Args:
        scene: What is drawn.
    """
    drawing = figure(scene).to_html(
        full_html=False,
        include_plotlyjs=True,
        auto_play=False,
        default_width="100%",
        default_height="100%",
        config={"responsive": True, "displaylogo": False, "scrollZoom": True},
    )
    return _PAGE.format(
        title=html.escape(scene.title),
        facts="\n".join(f"<p>{html.escape(fact)}</p>" for fact in scene.facts),
        drawing=drawing,
        background=BACKGROUND,
        text=TEXT,
        faint=FAINT,
    )


def figure(scene: Scene) -> Any:
    """The drawing, a `plotly.graph_objects.Figure`: the last state, and all as frames."""
    outlook = outlook_of(scene)
    drawn = [traces(scene, state, outlook) for state in scene.states]
    numbers = list(range(len(drawn[0])))
    frames = [
        graph_objects.Frame(
            name=str(place), data=_moving(one), traces=numbers, layout=_caption(state)
        )
        for place, (state, one) in enumerate(zip(scene.states, drawn, strict=True))
    ]
    return graph_objects.Figure(
        data=drawn[-1], layout=_layout(scene, outlook), frames=frames, skip_invalid=False
    )


def _moving(drawn: list[Any]) -> list[Any]:
    """The same traces without what is equal in all states."""
    kept = []
    for trace in drawn:
        changing = {name: trace[name] for name in ("x", "y", "z", "customdata")}
        for name in ("marker", "line"):
            color = trace[name].color if name in trace else None
            if color is not None and not isinstance(color, str):
                changing[name] = {"color": color}
        known = {name: value for name, value in changing.items() if value is not None}
        kept.append(graph_objects.Scatter3d(**known))
    return kept


def _layout(scene: Scene, outlook: Outlook) -> dict[str, Any]:
    hidden = {
        "visible": False,
        "showbackground": False,
    }
    axes = {
        f"{name}axis": {**hidden, "range": [float(low), float(high)]}
        for name, low, high in zip("xyz", outlook.low, outlook.high, strict=True)
    }
    sides = (outlook.high - outlook.low) / (outlook.high - outlook.low).max()
    scale = PLANAR_SCALE if scene.is_planar else SPATIAL_SCALE
    return {
        "paper_bgcolor": BACKGROUND,
        "font": {"color": TEXT, "family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "uirevision": "one",
        "legend": {"x": 0.01, "y": 0.98, "itemsizing": "constant", "bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"bgcolor": "#21262d", "bordercolor": "#30363d", "font": {"color": TEXT}},
        "scene": {
            **axes,
            "domain": {"x": [0.0, 1.0], "y": [0.17, 1.0]},
            # "data" would scale by the volume of the box: a flat one would not fit the window
            "aspectmode": "manual",
            "aspectratio": dict(zip("xyz", (scale * sides).tolist(), strict=True)),
            "dragmode": "pan" if scene.is_planar else "turntable",
            "camera": _camera(scene, outlook),
            "bgcolor": BACKGROUND,
        },
        **_color_axis(scene),
        **(_controls(scene) if len(scene.states) > 1 else {}),
    }


def _camera(scene: Scene, outlook: Outlook) -> dict[str, Any]:
    if scene.is_planar:
        return {
            "eye": {"x": 0, "y": 0, "z": 1.5},
            "up": {"x": 0, "y": 1, "z": 0},
            "projection": {"type": "orthographic"},
        }
    eye = dict(zip("xyz", outlook.eye.tolist(), strict=True))
    return {"eye": eye, "up": {"x": 0, "y": 0, "z": 1}, "projection": {"type": "perspective"}}


def _color_axis(scene: Scene) -> dict[str, Any]:
    scale = error_scale(scene)
    if scale is None:
        return {}
    unit = f", {scene.unit}" if scene.unit else ""
    bar = {
        "title": {"text": f"residual{unit}", "side": "right"},
        "tickvals": scale.ticks,
        "ticktext": scale.texts,
        "len": 0.5,
        "thickness": 12,
        "outlinewidth": 0,
        "x": 0.98,
        "xanchor": "right",
        "y": 0.6,
    }
    limits = {"cmin": scale.low, "cmax": scale.high}
    return {"coloraxis": {**limits, "colorscale": SCALE, "colorbar": bar}}


def _controls(scene: Scene) -> dict[str, Any]:
    """A slider over the states, and buttons for the first and the last one."""
    last = len(scene.states) - 1
    steps = [
        {
            "label": state.label.removeprefix("iteration "),
            "method": "animate",
            "args": [[str(place)], _AT_ONCE],
        }
        for place, state in enumerate(scene.states)
    ]
    slider = {
        "active": last,
        "steps": steps,
        "x": 0.03,
        "len": 0.94,
        "y": 0.02,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 0},
        "currentvalue": {"visible": False},
        "bgcolor": "#30363d",
        "activebgcolor": "#58a6ff",
        "bordercolor": "#30363d",
        "tickcolor": FAINT,
        "font": {"color": FAINT, "size": 11},
    }
    play = {**_AT_ONCE, "frame": {"duration": 400, "redraw": True}, "fromcurrent": False}
    buttons = [
        {"label": "before", "method": "animate", "args": [["0"], _AT_ONCE]},
        {"label": "after", "method": "animate", "args": [[str(last)], _AT_ONCE]},
        {"label": "play", "method": "animate", "args": [None, play]},
    ]
    menu = {
        "type": "buttons",
        "direction": "right",
        "showactive": False,
        "buttons": buttons,
        "x": 0.03,
        "xanchor": "left",
        "y": 0.11,
        "yanchor": "bottom",
        "bgcolor": "#21262d",
        "bordercolor": "#30363d",
        "font": {"color": TEXT},
        "pad": {"t": 0, "b": 0},
    }
    return {"sliders": [slider], "updatemenus": [menu], **_caption(scene.states[-1])}


def _caption(state: State) -> dict[str, Any]:
    """Return the caption above the slider."""
    place = {"x": 0.97, "y": 0.12, "xref": "paper", "yref": "paper", "xanchor": "right"}
    text = f"{state.label}: cost {cost_text(state.cost)}"
    return {"annotations": [{**place, "yanchor": "bottom", "showarrow": False, "text": text}]}
