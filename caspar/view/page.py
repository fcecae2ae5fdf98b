"""The page around a drawing: its layout, a slider over states, and the file.

Input: a `Scene`. Output: HTML. The library, plotly.js, is in the file: it needs no network.

Also here: what plotly draws of a scene: points, frusta, poses and links of one state.
"""

import html
from typing import Any

import numpy as np
from plotly import graph_objects

from caspar.io.compressed import FilePath
from caspar.io.replace import write_file
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
from caspar.scene.frusta import NUM_CORNERS, frustum_length, frustum_strokes
from caspar.scene.scene import Floats, Group, GroupKind, Links, Scene, State
from caspar.solver.result.quantities import cost_text
from caspar.view.alignment import Outlook, outlook_of


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
    """What is shown, above the slider."""
    place = {"x": 0.97, "y": 0.12, "xref": "paper", "yref": "paper", "xanchor": "right"}
    text = f"{state.label}: cost {cost_text(state.cost)}"
    return {"annotations": [{**place, "yanchor": "bottom", "showarrow": False, "text": text}]}
