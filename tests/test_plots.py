"""The plots of the page on performance show what was measured, with few lines each.

`--update-golden` draws them anew.
"""

import re

import pytest

plots = pytest.importorskip("docs.plots", exc_type=ImportError)
pictures = pytest.importorskip("docs.pictures", exc_type=ImportError)

MAX_LINES = 6


@pytest.mark.parametrize("name", plots.PLOTS)
def test_plot_is_current(name: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        plots.main()
    kept = (plots.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert re.findall(r"data ([0-9a-f]{16})", kept) == [plots.digest(plots.PLOTS[name]())]


@pytest.mark.parametrize("name", plots.PLOTS)
def test_plot_can_be_read_at_a_glance(name: str) -> None:
    for axis in plots.PLOTS[name]().axes:
        assert len(axis.lines) <= MAX_LINES
        assert len(axis.patches) <= 2 * MAX_LINES
        assert axis.get_xlabel() != ""
        for line in axis.lines:
            assert len(line.get_xdata()) > 1


def test_the_page_has_every_plot() -> None:
    page = plots.FOLDER.parent / "performance.md"
    shown = re.findall(r"\]\(figures/(\w+)\.svg\)", page.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(plots.PLOTS)
    drawn = [*plots.PLOTS, *pictures.PICTURES]
    assert sorted(path.stem for path in plots.FOLDER.iterdir()) == sorted(drawn)


def test_another_number_is_noticed() -> None:
    drawn = plots.batches()
    before = plots.digest(drawn)
    drawn.axes[0].patches[0].set_width(1.0)
    assert plots.digest(drawn) != before
