"""SVG text, element by element.

Every attribute is written where it is used and none in a style sheet, so that several drawings in
one notebook do not restyle each other. Numbers are rounded to a tenth of a pixel: the same drawing
is the same bytes.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

Point = tuple[float, float]

FONT_SIZE = 12.0
CHARACTER_WIDTH = 0.602
"""Width of a character of the monospaced font, in units of its size."""

INK = "#333333"
FAINT = "#999999"


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """Width of a text in pixels."""
    return len(text) * CHARACTER_WIDTH * size


class Drawing:
    """Grows element by element; what is added later lies on top."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def rectangle(
        self,
        corner: Point,
        size: tuple[float, float],
        fill: str,
        *,
        stroke: str = "none",
        radius: float = 0.0,
        title: str = "",
    ) -> None:
        """A rectangle by its upper left corner; `title` is shown under the pointer."""
        rounded = f' rx="{_number(radius)}"' if radius > 0.0 else ""
        shape = (
            f'<rect x="{_number(corner[0])}" y="{_number(corner[1])}" width="{_number(size[0])}" '
            f'height="{_number(size[1])}"{rounded} fill="{fill}" stroke="{stroke}"'
        )
        inner = _title(title)
        self._elements.append(f"{shape}/>" if inner == "" else f"{shape}>{inner}</rect>")

    def circle(self, center: Point, radius: float, fill: str, stroke: str = "none") -> None:
        """A circle."""
        self._elements.append(
            f'<circle cx="{_number(center[0])}" cy="{_number(center[1])}" '
            f'r="{_number(radius)}" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = FONT_SIZE,
        anchor: str = "middle",
        fill: str = INK,
        bold: bool = False,
        title: str = "",
    ) -> None:
        """A line of text; `at` is on its middle line, `title` is shown under the pointer."""
        weight = ' font-weight="bold"' if bold else ""
        self._elements.append(
            f'<text x="{_number(at[0])}" y="{_number(at[1] + 0.35 * size)}" '
            f'font-size="{_number(size)}" text-anchor="{anchor}" fill="{fill}"{weight} '
            f'xml:space="preserve">{escape(text)}{_title(title)}</text>'
        )

    def line(self, start: Point, end: Point, stroke: str = FAINT, width: float = 1.0) -> None:
        """A straight line."""
        self._elements.append(
            f'<line x1="{_number(start[0])}" y1="{_number(start[1])}" x2="{_number(end[0])}" '
            f'y2="{_number(end[1])}" stroke="{stroke}" stroke-width="{_number(width)}"/>'
        )

    def arrow(self, points: Sequence[Point], stroke: str = FAINT) -> None:
        """A curve downwards through points, with a head at the last one."""
        first = points[0]
        path = [f"M{_number(first[0])} {_number(first[1])}"]
        for start, end in pairwise(points):
            middle = _number((start[1] + end[1]) / 2.0)
            path.append(
                f"C{_number(start[0])} {middle} {_number(end[0])} {middle} "
                f"{_number(end[0])} {_number(end[1])}"
            )
        self._elements.append(f'<path d="{"".join(path)}" fill="none" stroke="{stroke}"/>')
        self._head(points[-2], points[-1], stroke)

    def hop(self, start: Point, end: Point, stroke: str) -> None:
        """A dotted arrow between two places of one row, bending upwards."""
        (x0, y0), (x1, y1) = start, end
        rise = y0 - min(20.0, 10.0 + 0.08 * abs(x1 - x0))
        self._elements.append(
            f'<path d="M{_number(x0)} {_number(y0)}C{_number(x0)} {_number(rise)} '
            f'{_number(x1)} {_number(rise)} {_number(x1)} {_number(y1)}" fill="none" '
            f'stroke="{stroke}" stroke-dasharray="1.5 2"/>'
        )
        self._head((x1, y1 - 1.0), (x1, y1), stroke)

    def _head(self, start: Point, tip: Point, fill: str) -> None:
        """An arrow's head: vertical, as the curves end."""
        x, y = tip
        back = -5.0 if tip[1] >= start[1] else 5.0
        corners = ((x, y), (x - 2.5, y + back), (x + 2.5, y + back))
        points = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
        self._elements.append(f'<polygon points="{points}" fill="{fill}"/>')

    def finish(self, size: tuple[float, float], description: str) -> str:
        """The complete text; `description` is what a screen reader says."""
        width, height = _number(size[0]), _number(size[1])
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" role="img" font-family="monospace">',
                f"<title>{escape(description)}</title>",
                f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def _title(text: str) -> str:
    return "" if text == "" else f"<title>{escape(text)}</title>"


def _number(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
