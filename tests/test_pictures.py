"""The pictures of the guide show what their program draws, on any background and on a phone.

`--update-golden` draws them anew.
"""

import re

import pytest

import caspar

pictures = pytest.importorskip("docs.pictures", exc_type=ImportError)

MAX_BYTES = 40_000
MIN_FONT = 10.0
BACKGROUNDS = ("#ffffff", "#131416")
"""Of a light page and a dark one."""
MIN_CONTRAST = 4.2
"""No colour has more than 4.3 to both."""
MIN_ALT = 60


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_picture_is_current(name: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        pictures.main()
    assert re.findall(r"shows ([0-9a-f]{16})", _kept(name)) == [
        pictures.digest(pictures.PICTURES[name]())
    ]


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_picture_can_be_read_everywhere(name: str) -> None:
    kept = _kept(name)
    assert len(kept.encode()) < MAX_BYTES
    assert "<dc:date>" not in kept
    assert min(float(size) for size in re.findall(r"font-size: ([\d.]+)px", kept)) >= MIN_FONT
    for color in set(re.findall(r"#[0-9a-f]{6}", kept)) - {"#ffffff"}:
        assert min(_contrast(color, one) for one in BACKGROUNDS) > MIN_CONTRAST, color
    for element in re.findall(r"<\w+[^>]*#ffffff[^>]*>", kept):
        assert element.startswith("<text"), element  # on a node


def test_every_picture_is_on_one_page() -> None:
    pages = sorted(pictures.FOLDER.parent.glob("*.md"))
    shown = [
        (name, text)
        for page in pages
        for text, name in re.findall(
            r"!\[([^\]]*)\]\(figures/(\w+)\.svg\)", page.read_text(encoding="utf-8")
        )
        if name in pictures.PICTURES
    ]
    assert sorted(name for name, _ in shown) == sorted(pictures.PICTURES)
    assert [name for name, text in shown if len(text) < MIN_ALT] == []


def test_all_losses_are_shown() -> None:
    titles = {axis.get_title() for axis in pictures.losses().axes}
    assert titles == set(caspar.loss.__all__) - {"Loss", "L2"}


def test_another_place_is_noticed() -> None:
    drawn = pictures.frames()
    before = pictures.digest(drawn)
    drawn.axes[0].texts[0].set_position((0.0, 0.0))
    assert pictures.digest(drawn) != before


def _kept(name: str) -> str:
    return str((pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"))


def _contrast(color: str, other: str) -> float:
    """Of two colours, from 1 to 21 (WCAG 2.2)."""
    lights = []
    for one in (color, other):
        parts = [int(one[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)
