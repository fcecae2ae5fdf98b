"""The page of an interactive view."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import caspar
from caspar.errors import MissingPackageError
from caspar.scene import Group, GroupKind, Links, Scene, State
from caspar.scene.colors import BACKGROUND, SCALE, error_scale, rgb
from caspar.scene.scene import NUM_CORNERS, frustum_strokes
from caspar.version import install_command

pytest.importorskip("plotly")

from caspar.view.page import figure, outlook_of, page_of_scene, write_html


def make_scene(*, is_planar: bool = False, size: int = 40) -> Scene:
    random = np.random.default_rng(0)
    rows = np.arange(size)
    cameras = Group("Cam", GroupKind.CAMERAS, np.arange(3), 3, "camera", ("a<b>", "b", "c"))
    points = Group("Point", GroupKind.POINTS, rows, size, "point")
    places = {
        "Cam": np.array([[-1.0, 0, -4], [0, 0, -4], [1, 0, -4]]),
        "Point": random.normal(size=(size, 3)),
    }
    state = State(
        label="start",
        cost=2.0,
        places=places,
        turns={"Cam": np.tile([0.0, 0.0, 0.0, 1.0], (3, 1))},
        segments={"edge": np.stack([places["Point"][:-1], places["Point"][1:]], axis=1)},
        errors={"Point": random.uniform(1.0, 9.0, size), "edge": np.linspace(0.1, 1.0, size - 1)},
    )
    last = replace(state, label="solution", cost=1.0)
    links = Links("edge", rows[:-1], size - 1, "edge")
    return Scene(
        "one & two", ("a fact",), "px", is_planar, (cameras, points), (links,), (state, last)
    )


def test_page_is_one_file(tmp_path: Path) -> None:
    write_html(make_scene(), tmp_path / "scene.html")
    text = (tmp_path / "scene.html").read_text(encoding="utf-8")
    assert "<title>one &amp; two</title>" in text
    assert "<p>a fact</p>" in text
    assert "a<b>" not in text.replace("\\u003c", "<").split("<main>")[0]
    assert re.findall(r'(?:src|href)="(?!data:)', text.partition("<main>")[0]) == []
    assert re.findall(r"<script[^>]*src=", text) == []
    assert 4e6 < len(text) < 6e6  # plotly.js, and next to nothing


def test_texts_that_are_no_unicode(tmp_path: Path) -> None:
    """Titles are often names of files, of which the system allows any bytes."""
    scene, odd = make_scene(), "caf\udce9.txt"
    odd_groups = (replace(scene.groups[0], noun=odd, labels=(odd,) * 3), scene.groups[1])
    odd_states = tuple(replace(state, label=odd) for state in scene.states)
    odd_links = (replace(scene.links[0], noun=odd),)
    made = replace(
        scene,
        title=odd,
        facts=(odd,),
        unit=odd,
        groups=odd_groups,
        links=odd_links,
        states=odd_states,
    )
    write_html(made, tmp_path / "scene.html")
    text = (tmp_path / "scene.html").read_text(encoding="utf-8")
    assert "<title>caf?.txt</title>" in text
    assert "<p>caf?.txt</p>" in text
    assert "udce9" not in text


def test_states_are_frames() -> None:
    drawn = figure(make_scene())
    assert [frame.name for frame in drawn.frames] == ["0", "1"]
    assert [len(frame.data) for frame in drawn.frames] == [len(drawn.data)] * 2 == [4, 4]
    assert drawn.layout.sliders[0].active == 1
    assert [button.label for button in drawn.layout.updatemenus[0].buttons] == [
        *("before", "after", "play"),
    ]
    captions = [frame.layout.annotations[0].text for frame in drawn.frames]
    assert captions == ["start: cost 2.00000", "solution: cost 1.00000"]


def test_a_single_state_has_no_slider() -> None:
    scene = make_scene()
    drawn = figure(replace(scene, states=scene.states[:1]))
    assert len(drawn.layout.sliders) == len(drawn.layout.updatemenus) == 0


def test_far_points_do_not_rule_the_box() -> None:
    scene = make_scene(size=200)
    scene.states[-1].places["Point"][5] = 1e6
    outlook = outlook_of(scene)
    assert (outlook.high - outlook.low).max() < 20.0
    assert np.isnan(outlook.turned(scene.states[-1].places["Point"])[5]).all()


def test_up_is_what_cameras_have_above() -> None:
    """They look along z with y downwards: up is -y."""
    outlook = outlook_of(make_scene())
    np.testing.assert_allclose(outlook.axes[2], [0.0, -1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(outlook.axes @ outlook.axes.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(outlook.axes) == pytest.approx(1.0)
    # behind the cameras, which look along z
    assert outlook.eye @ (outlook.axes @ np.array([0.0, 0.0, 1.0])) < 0.0


def test_planar_scenes_are_seen_from_above() -> None:
    camera = figure(make_scene(is_planar=True)).layout.scene.camera
    assert (camera.projection.type, camera.eye.x, camera.eye.y) == ("orthographic", 0, 0)


def test_frustum_has_all_edges() -> None:
    scene = make_scene()
    strokes = frustum_strokes(scene.groups[0], scene.states[0], 1.0)
    assert strokes.shape == (3, NUM_CORNERS, 3)
    corners, index = np.unique(strokes[0], axis=0, return_inverse=True)
    edges = {frozenset(pair) for pair in zip(index.ravel()[:-1], index.ravel()[1:], strict=True)}
    assert (len(corners), len(edges)) == (5, 8)


def test_colors() -> None:
    scale = error_scale(make_scene())
    assert scale is not None
    assert [f"{float(text):g}" for text in scale.texts] == list(scale.texts)
    ends = rgb(np.array([1e-9, 1e9, np.nan]), scale)
    hexes = ["#" + "".join(f"{int(one):02x}" for one in row) for row in ends]
    assert hexes == [SCALE[0][1], SCALE[-1][1], "#808080"]
    assert BACKGROUND not in hexes


def test_no_residuals() -> None:
    scene = make_scene()
    states = tuple(replace(state, errors={}) for state in scene.states)
    assert error_scale(replace(scene, states=states)) is None
    assert "<main>" in page_of_scene(replace(scene, states=states))


def test_without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("plotly", "caspar.view")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delattr(caspar, "view", raising=False)
    with pytest.raises(MissingPackageError, match=re.escape(install_command("view"))):
        caspar.view  # noqa: B018  (loads it)
