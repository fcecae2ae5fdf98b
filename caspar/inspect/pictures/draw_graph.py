"""The graph as a picture: calls are boxes, values are rounded.

Literals have no nodes: a call that reads some shows its operands in a second line, with a dot for
each that an arrow brings. With the progress of a schedule, colours are those of the paper's figure:
what is done, what is live, in which register; dotted arrows show in which order a sum or product
takes its operands.

Also here: where the nodes of a drawing go: layers from top to bottom, few crossings, short edges.
"""

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from caspar.errors import BackendError, OptionError
from caspar.inspect.pictures.svg import Drawing, Point, text_width
from caspar.inspect.progress import CallState, Progress, ValueState
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.ir.text import print_call
from caspar.version import install_command

UNIT = 46.0
"""Pixels between neighbours of a layer that igraph places one unit apart."""

LAYER_HEIGHT = 52.0
GAP = 12.0
"""Pixels between neighbours of a layer, at least."""


@dataclass(frozen=True)
class Placement:
    """A layout: the centre of each node, the points where edges pass other layers, and the size."""

    centers: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    size: tuple[float, float]


def place(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Placement:
    """Lay a graph without cycles out, of nodes with some pixels of width; starts lie above ends.

    Raises a `BackendError` if igraph is not installed.
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
    """Return layers: the longest way to a node, but no higher than the node's readers need."""
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
            f"{install_command('inspect')}"
        ) from error


MAX_CALLS = 2000
"""Calls of a graph that is drawn. A kernel of 820 calls takes 0.2 s and is 35,000 pixels wide: for
zooming and searching, not to be seen at once; naming some outputs shows less."""

_CALL_COLOR = {
    CallState.COMPLETED: "#FFF2CC",
    CallState.LATEST: "#D5E8D4",
    CallState.REMAINING: "#E6E6E6",
}
_VALUE_COLOR = {
    ValueState.LIVE: "#F8CECC",
    ValueState.FINISHED: "#E1D5E7",
    ValueState.VIRTUAL: "#DAE8FC",
    ValueState.REMAINING: "#E6E6E6",
}
_CALL_PLAIN, _MEMORY_COLOR, _VALUE_PLAIN = "#FFF2CC", "#DAE8FC", "#F5F5F5"
_ORDER_COLOR = "#B85450"
_OUTLINE, _DIM = "#888888", "#666666"
_MARGIN = 20.0
_HEAD_WIDTH = 520.0
"""Pixels of the legend with seven entries."""

_PADDING = 6.0
_CALL_HEIGHT, _VALUE_HEIGHT = 28.0, 20.0
_SMALL = 10.0
_ARROW = "·"
"""Stands for an operand that an arrow brings."""

_NUMBER_HEIGHT = 9.0
_PORT_GAP = 16.0
"""Pixels between arrows that end at the same box."""


@dataclass(frozen=True)
class _Node:
    """One shape: a box or rounded, of one or two lines, with arrows to `num_ports`.

    The title is shown under the pointer; `top` are pixels left free above the text, for numbers.
    """

    lines: tuple[str, ...]
    is_call: bool
    fill: str
    title: str = ""
    num_ports: int = 1
    top: float = 0.0

    @property
    def width(self) -> float:
        sizes = (text_width(self.lines[0]), *(text_width(t, _SMALL) for t in self.lines[1:]))
        return max(24.0, max(sizes) + 2.0 * _PADDING, self.num_ports * _PORT_GAP)

    @property
    def height(self) -> float:
        return (_CALL_HEIGHT if self.is_call else _VALUE_HEIGHT) + self.top


def draw_graph(graph: Graph, title: str, outputs: Sequence[str] = ()) -> str:
    """A graph as SVG.

    Only what the arguments in `outputs` need is drawn; of none, everything. Raises an `OptionError`
    if the graph has more than `MAX_CALLS` calls, or no store to one of `outputs`.
    """
    return _draw(graph, title, _needed(graph, outputs), None)


def draw_progress(progress: Progress, title: str, outputs: Sequence[str] = ()) -> str:
    """A graph as SVG, in the state after some steps of its schedule; else as `draw_graph`."""
    return _draw(progress.graph, title, _needed(progress.graph, outputs), progress)


def _needed(graph: Graph, outputs: Sequence[str]) -> list[int]:
    """Indices of the calls to draw: what the stores of some arguments need, without literals."""
    stores = {
        number: call.data[0]
        for number, call in enumerate(graph.calls)
        if call.op is Op.STORE and isinstance(call.data, tuple)
    }
    for name in outputs:
        if name not in stores.values():
            known = ", ".join(dict.fromkeys(stores.values()))
            raise OptionError(f"outputs: {name!r} is not written by this kernel; it writes {known}")
    open_calls = [n for n, name in stores.items() if len(outputs) == 0 or name in outputs]
    needed = set(open_calls)
    while len(open_calls) > 0:
        for value in graph.calls[open_calls.pop()].operands:
            producer = graph.producer[value]
            if producer not in needed:
                needed.add(producer)
                open_calls.append(producer)
    shown = [number for number in sorted(needed) if graph.calls[number].op is not Op.CONST]
    if len(shown) > MAX_CALLS:
        raise OptionError(
            f"the graph has {len(shown):,} calls, more than the {MAX_CALLS:,} that are drawn; "
            f"name some of its outputs: {', '.join(dict.fromkeys(stores.values()))}"
        )
    return shown


@dataclass(frozen=True)
class _Picture:
    """The shapes of a graph, the arrows between them, and the shape of each call and value."""

    nodes: list[_Node]
    edges: list[tuple[int, int]]
    node_of_call: dict[int, int]
    node_of_value: dict[int, int]


def _picture(graph: Graph, shown: Sequence[int], progress: Progress | None) -> _Picture:
    nodes: list[_Node] = []
    edges: list[tuple[int, int]] = []
    node_of_call: dict[int, int] = {}
    node_of_value: dict[int, int] = {}
    for number in shown:
        call = graph.calls[number]
        read = (value for value in dict.fromkeys(call.operands) if value in node_of_value)
        sources = [node_of_value[value] for value in read]
        own = node_of_call[number] = len(nodes)
        nodes.append(_call_node(graph, number, len(sources), progress))
        edges += [(source, own) for source in sources]
        for value in call.outputs:
            node_of_value[value] = len(nodes)
            edges.append((own, len(nodes)))
            nodes.append(_value_node(graph, value, progress))
    return _Picture(nodes, edges, node_of_call, node_of_value)


def _draw(graph: Graph, title: str, shown: Sequence[int], progress: Progress | None) -> str:
    picture = _picture(graph, shown, progress)
    placement = place([node.width for node in picture.nodes], picture.edges)
    drawing = Drawing()
    corner = (_MARGIN, _write_head(drawing, title, progress))
    centers = [_plus(center, corner) for center in placement.centers]
    routes = [[_plus(point, corner) for point in route] for route in placement.routes]
    ports = _ports(picture, centers, routes)
    for number, (start, _) in enumerate(picture.edges):
        first = _plus(centers[start], (0.0, picture.nodes[start].height / 2.0))
        drawing.arrow([first, *routes[number], ports[number]])
    for node, center in zip(picture.nodes, centers, strict=True):
        _write_node(drawing, node, center)
    if progress is not None:
        _write_orders(drawing, progress, picture, ports)
    width = max(placement.size[0], _HEAD_WIDTH, text_width(title)) + 2.0 * _MARGIN
    return drawing.finish((width, placement.size[1] + corner[1] + _MARGIN), title)


def _ports(
    picture: _Picture, centers: Sequence[Point], routes: Sequence[Sequence[Point]]
) -> list[Point]:
    """Return where each arrow ends: side by side on top of a box, in their order."""
    arriving: dict[int, list[tuple[float, int]]] = {}
    for number, (start, end) in enumerate(picture.edges):
        last = routes[number][-1] if len(routes[number]) > 0 else centers[start]
        arriving.setdefault(end, []).append((last[0], number))
    ports: list[Point] = [(0.0, 0.0)] * len(picture.edges)
    for end, entries in arriving.items():
        x, y = centers[end]
        for place_number, (_, number) in enumerate(sorted(entries)):
            shift = (place_number - (len(entries) - 1) / 2.0) * _PORT_GAP
            ports[number] = (x + shift, y - picture.nodes[end].height / 2.0)
    return ports


def _write_orders(
    drawing: Drawing, progress: Progress, picture: _Picture, ports: Sequence[Point]
) -> None:
    port_of = {edge: ports[number] for number, edge in enumerate(picture.edges)}
    for call, own in picture.node_of_call.items():
        taken = progress.contributions(call)
        edges = [(picture.node_of_value.get(value, -1), own) for value in taken]
        known = [(n, port_of[edge]) for n, edge in enumerate(edges, 1) if edge in port_of]
        if len(known) < 2:
            continue
        for number, (x, y) in known:
            drawing.text((x, y + 6.0), str(number), size=9.0, fill=_ORDER_COLOR)
        for (_, before), (_, after) in pairwise(known):
            drawing.hop(before, after, _ORDER_COLOR)


def _plus(point: Point, offset: Point) -> Point:
    return (point[0] + offset[0], point[1] + offset[1])


def _call_node(graph: Graph, number: int, num_ports: int, progress: Progress | None) -> _Node:
    call = graph.calls[number]
    name = call.op.name.lower()
    is_memory = isinstance(call.data, tuple)
    lines = [f"{name} {access_text(call)}" if is_memory else name]
    operands = _operand_texts(graph, call)
    if any(text != _ARROW for text in operands):
        lines.append(", ".join(operands))
    fill = _MEMORY_COLOR if is_memory else _CALL_PLAIN
    top = 0.0
    if progress is not None:
        fill = _CALL_COLOR[progress.call_state(number)]
        top = _NUMBER_HEIGHT if call.op in (Op.SUM, Op.PROD) else 0.0
    return _Node(tuple(lines), True, fill, print_call(call), num_ports, top)


def access_text(call: Call) -> str:
    """The part of memory that a read or store names, `cam[0]` for example."""
    assert isinstance(call.data, tuple)
    return f"{call.data[0]}[{call.data[1]}]"


def _operand_texts(graph: Graph, call: Call) -> list[str]:
    texts = []
    for value, count in Counter(call.operands).items():
        data = graph.call_of(value).data
        text = f"{data:.6g}" if isinstance(data, float) else _ARROW
        if call.op is Op.PROD and count > 1:
            texts.append(f"{text}^{count}")
        else:
            texts += [text] * count
    return texts


def _value_node(graph: Graph, value: int, progress: Progress | None) -> _Node:
    title = print_call(graph.call_of(value))
    if progress is None:
        return _Node((f"v{value}",), False, _VALUE_PLAIN, title)
    register = progress.register(value)
    text = f"v{value}" if register is None else f"v{value} {register}"
    return _Node((text,), False, _VALUE_COLOR[progress.value_state(value)], title)


def _write_node(drawing: Drawing, node: _Node, center: Point) -> None:
    corner = (center[0] - node.width / 2.0, center[1] - node.height / 2.0)
    radius = 0.0 if node.is_call else node.height / 2.0
    drawing.rectangle(
        corner,
        (node.width, node.height),
        node.fill,
        stroke=_OUTLINE,
        radius=radius,
        title=node.title,
    )
    x, y = center[0], center[1] + node.top / 2.0
    drawing.text((x, y if len(node.lines) == 1 else y - 6.0), node.lines[0])
    for line in node.lines[1:]:
        drawing.text((x, y + 7.0), line, size=_SMALL, fill=_DIM)


def _write_head(drawing: Drawing, title: str, progress: Progress | None) -> float:
    drawing.text((_MARGIN, _MARGIN), title, anchor="start", bold=True)
    if progress is None:
        entries = [("call", _CALL_PLAIN, True), ("read, store", _MEMORY_COLOR, True)]
        entries.append(("value", _VALUE_PLAIN, False))
    else:
        entries = [(state.value, color, True) for state, color in _CALL_COLOR.items()]
        entries += [(state.value, color, False) for state, color in _VALUE_COLOR.items()]
    x = _MARGIN
    for text, color, is_call in entries:
        node = _Node((text,), is_call, color)
        _write_node(drawing, node, (x + node.width / 2.0, _MARGIN + 28.0))
        x += node.width + 8.0
    return _MARGIN + 52.0
