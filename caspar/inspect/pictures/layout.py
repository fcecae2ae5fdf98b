"""Where the nodes of a drawing go: layers from top to bottom, few crossings, short edges.

igraph's Sugiyama layout finds the order in each layer and where nodes go if all are points; here
nodes get layers before it, and room for their widths after it. Milliseconds for a hundred nodes,
0.3 s for a thousand; importing igraph takes 0.4 s, so it happens when something is drawn.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from caspar.errors import BackendError
from caspar.inspect.pictures.svg import Point

UNIT = 46.0
"""Pixels between neighbours of a layer that igraph places one unit apart."""

LAYER_HEIGHT = 52.0
GAP = 12.0
"""Pixels between neighbours of a layer, at least."""


@dataclass(frozen=True)
class Placement:
    """A layout.

    Attributes:
        centers: Of each node, in the order given.
        routes: For each edge the points where it passes other layers, from start to end.
        size: Width and height of the whole, without a margin.
    """

    centers: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    size: tuple[float, float]


def place(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Placement:
    """Lay a graph without cycles out.

    Args:
        widths: Pixels of each node; at least one.
        edges: Start and end of each edge; starts lie above ends.

    Raises:
        BackendError: igraph is not installed; the message says what to install.
    """
    igraph = _igraph()
    graph = igraph.Graph(n=len(widths), edges=list(edges), directed=True)
    layers = _layers(len(widths), edges, graph.topological_sorting())
    found = graph.layout_sugiyama(layers=layers, hgap=1.0, vgap=1.0)
    bends = [(edge, x, y) for edge, points in enumerate(found.edge_routing) for x, y in points]
    rough = np.array([x for x, _ in found.coords] + [x for _, x, _ in bends]) * UNIT
    rows = np.array(layers + [round(y) for _, _, y in bends])
    columns = _make_room(rough, rows, np.array([*widths, *([0.0] * len(bends))]))
    ys = (rows + 0.5) * LAYER_HEIGHT
    points = [(float(x), float(y)) for x, y in zip(columns, ys, strict=True)]
    routes: list[list[Point]] = [[] for _ in edges]
    for (edge, _, _), point in zip(bends, points[len(widths) :], strict=True):
        routes[edge].append(point)
    extent = np.array(points[: len(widths)])[:, 0] + np.array(widths) / 2.0
    size = (max(float(extent.max()), float(columns.max())), float(ys.max() + LAYER_HEIGHT / 2.0))
    centers = tuple(points[: len(widths)])
    return Placement(centers, tuple(tuple(route) for route in routes), size)


def _layers(count: int, edges: Sequence[tuple[int, int]], order: Sequence[int]) -> list[int]:
    """As deep as the longest way to a node, but reads no further up than needed."""
    after: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        after[start].append(end)
    layers = [0] * count
    for node in order:
        for end in after[node]:
            layers[end] = max(layers[end], layers[node] + 1)
    for node in reversed(order):
        if len(after[node]) > 0:
            layers[node] = min(layers[end] for end in after[node]) - 1
    return layers


def _make_room(rough: Any, rows: Any, widths: Any) -> Any:
    """Places nearest to the rough ones, in their order, with a gap between neighbours of a row.

    Least squares: after subtraction of the room that nodes before it need, a row has to be in
    ascending order, which is an isotonic regression.
    """
    placed = np.zeros_like(rough)
    for row in np.unique(rows):
        (members,) = np.nonzero(rows == row)
        members = members[np.argsort(rough[members], kind="stable")]
        room = (widths[members][1:] + widths[members][:-1]) / 2.0 + GAP
        offset = np.concatenate([[0.0], np.cumsum(room)])
        placed[members] = isotonic_regression(rough[members] - offset).x + offset
    return placed - np.min(placed - widths / 2.0)


def _igraph() -> Any:
    try:
        return importlib.import_module("igraph")
    except ImportError as error:
        raise BackendError(
            "igraph, which lays out drawings of graphs, is not installed; install it with: "
            "pip install 'caspar[inspect]'"
        ) from error
