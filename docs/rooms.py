"""`python docs/rooms.py`: the rooms of the package, from its files and imports.

Writes the tree into docs/ARCHITECTURE.md, between the lines that say where, and a picture of who
imports whom, docs/rooms.svg. A test compares both with what is there.
"""

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import igraph

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PACKAGE = ROOT / "caspar"
PAGE, PICTURE = DOCS / "ARCHITECTURE.md", DOCS / "rooms.svg"
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"
COLORS = ("#e8f0fe", "#e6f4ea", "#fef7e0", "#fce8e6", "#f3e8fd", "#e4f7fb", "#fff0e0", "#eeeeee")
PADDING = 7.0


def main() -> None:
    """Write both."""
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page_with_tree(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")


def page_with_tree(page: str) -> str:
    """The page with the tree as it is."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}```text\n{tree()}```\n{END}{after}"


def tree() -> str:
    """Every room with its modules."""
    lines = []
    for folder in _folders():
        depth = len(folder.relative_to(PACKAGE).parts)
        head = f"{'  ' * depth}{folder.name}/"
        files = " ".join(sorted(path.stem for path in folder.glob("*.py") if path.stem[0] != "_"))
        lines += textwrap.wrap(files, 100, initial_indent=f"{head:20}", subsequent_indent=" " * 20)
    return "\n".join(lines) + "\n"


def picture() -> str:
    """An arrow goes from a room to what it imports, but for arrows that others imply."""
    from caspar.inspect.pictures.draw_graph import place
    from caspar.inspect.pictures.svg import Drawing, text_width

    edges = _reduced(_room_imports())
    rooms = sorted({room for edge in edges for room in edge})
    tops = sorted({room.split("/")[0] for room in rooms})
    widths = [text_width(room) + 2 * PADDING for room in rooms]
    number = {room: index for index, room in enumerate(rooms)}
    placed = place(widths, [(number[start], number[end]) for start, end in edges])
    drawing = Drawing()
    for (start, end), route in zip(edges, placed.routes, strict=True):
        (x0, y0), (x1, y1) = placed.centers[number[start]], placed.centers[number[end]]
        drawing.arrow([(x0, y0 + 10.0), *route, (x1, y1 - 10.0)])
    for room, (x, y), width in zip(rooms, placed.centers, widths, strict=True):
        color = COLORS[tops.index(room.split("/")[0]) % len(COLORS)]
        corner = (x - width / 2.0, y - 10.0)
        drawing.rectangle(corner, (width, 20.0), color, stroke="#999999", radius=4.0)
        drawing.text((x, y), room)
    return drawing.finish(placed.size, "Rooms of caspar, and which of them import which")


def _folders() -> list[Path]:
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


def _room(parts: tuple[str, ...]) -> str:
    """The folder that holds a module, or the module itself where that is the package's own."""
    path = ROOT.joinpath(*parts)
    while path != PACKAGE and not path.is_dir() and not path.with_suffix(".py").exists():
        path = path.parent
    folder = path if path.is_dir() else path.parent
    return (path if folder == PACKAGE else folder).relative_to(PACKAGE).as_posix()


def _imported(path: Path) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (tuple([*node.module.split("."), alias.name]) for alias in node.names)


def _room_imports() -> set[tuple[str, str]]:
    """Between rooms; a room that imports the one that it stands in is left out."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "__init__.py":
            continue  # it has the names of all others
        start = _room(path.relative_to(ROOT).with_suffix("").parts)
        for parts in _imported(path):
            end = _room(parts) if parts[0] == PACKAGE.name else "."
            if end not in (".", start) and not start.startswith(f"{end}/"):
                found.add((start, end))
    return found


def _reduced(edges: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that no longer way stands for."""
    graph = igraph.Graph.TupleList(sorted(edges), directed=True)
    kept = []
    for edge in graph.es:
        others = [other for other in graph.successors(edge.source) if other != edge.target]
        reached = {end for other in others for end in graph.subcomponent(other, mode="out")}
        if edge.target not in reached:
            kept.append((graph.vs[edge.source]["name"], graph.vs[edge.target]["name"]))
    return sorted(kept)


if __name__ == "__main__":
    main()
