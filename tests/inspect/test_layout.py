"""Layouts: arrows lead down, nothing overlaps, the same graph lies the same."""

import random
import re
import sys
from itertools import combinations

import pytest

from caspar.errors import BackendError
from caspar.inspect.pictures.draw_graph import GAP, LAYER_HEIGHT, Placement, place
from caspar.version import install_command

Edges = list[tuple[int, int]]


def random_edges(seed: int, count: int) -> Edges:
    rng = random.Random(seed)
    return sorted({(rng.randrange(end), end) for end in range(1, count) for _ in range(2)})


def laid_out(seed: int, count: int = 40) -> tuple[list[float], Edges, Placement]:
    rng = random.Random(seed)
    widths = [rng.choice([20.0, 60.0, 170.0]) for _ in range(count)]
    edges = random_edges(seed, count)
    return widths, edges, place(widths, edges)


@pytest.mark.parametrize("seed", range(5))
def test_every_arrow_leads_down(seed: int) -> None:
    _, edges, placement = laid_out(seed)
    for (start, end), route in zip(edges, placement.routes, strict=True):
        heights = [
            placement.centers[start][1],
            *(y for _, y in route),
            placement.centers[end][1],
        ]
        assert heights == sorted(set(heights))
        assert heights[-1] - heights[0] == pytest.approx(LAYER_HEIGHT * (len(heights) - 1))


@pytest.mark.parametrize("seed", range(5))
def test_nodes_of_a_layer_keep_a_gap(seed: int) -> None:
    widths, _, placement = laid_out(seed)
    for first, second in combinations(range(len(widths)), 2):
        (x0, y0), (x1, y1) = placement.centers[first], placement.centers[second]
        if y0 == y1:
            room = (widths[first] + widths[second]) / 2.0 + GAP
            assert abs(x1 - x0) >= room - 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_arrows_pass_beside_the_nodes(seed: int) -> None:
    widths, _, placement = laid_out(seed)
    passed = [point for route in placement.routes for point in route]
    assert len(passed) > 0
    for x, y in passed:
        for center, width in zip(placement.centers, widths, strict=True):
            assert center[1] != y or abs(center[0] - x) >= width / 2.0 + GAP - 1e-6


def test_all_lies_within_the_size() -> None:
    widths, _, placement = laid_out(0)
    width, height = placement.size
    for (x, y), own in zip(placement.centers, widths, strict=True):
        assert own / 2.0 - 1e-6 <= x <= width - own / 2.0 + 1e-6
        assert 0.0 < y < height


def test_the_same_graph_lies_the_same() -> None:
    assert laid_out(3) == laid_out(3)


def test_what_is_read_late_lies_just_above_its_reader() -> None:
    placement = place([10.0] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert placement.centers[4][1] == placement.centers[2][1]


def test_a_single_node() -> None:
    placement = place([30.0], [])
    assert placement.centers == ((15.0, LAYER_HEIGHT / 2.0),)
    assert placement.size == (30.0, LAYER_HEIGHT)


def test_without_igraph_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "igraph", None)
    with pytest.raises(BackendError, match="igraph.*" + re.escape(install_command("inspect"))):
        place([10.0], [])
