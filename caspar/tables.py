"""Small tables: as text for a terminal, as HTML for a notebook."""

import io
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Columns of the text."""

# Characters that every encoding has, so that printing can never fail.
LINE_UNDER_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def plain_text(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return the text that rich would show, without colours and without spaces at line ends."""
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, force_terminal=False)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


class Shown:
    """A base class of objects that an interpreter shows as they are printed."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class DataTable(Shown):
    """A head and rows.

    Attributes:
        columns: Names of the columns.
        rows: As many cells as columns each.
        numbers: Names of the columns whose cells are aligned to the right.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = Table(box=LINE_UNDER_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for name in self.columns:
            table.add_column(name, justify="right" if name in self.numbers else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return plain_text(table)

    def _repr_html_(self) -> str:
        lines = [self._html_row("th", self.columns)]
        lines += [self._html_row("td", row) for row in self.rows]
        return f"<table>{''.join(lines)}</table>"

    def _html_row(self, tag: str, cells: tuple[str, ...]) -> str:
        aligned = ("right" if name in self.numbers else "left" for name in self.columns)
        inner = "".join(
            f'<{tag} style="text-align:{align}">{escape(cell)}</{tag}>'
            for align, cell in zip(aligned, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"


@dataclass(frozen=True, repr=False)
class FactTable(Shown):
    """Names and what is to be said of each.

    Attributes:
        facts: Name and text.
    """

    facts: tuple[tuple[str, str], ...]

    def renderable(self) -> Table:
        """The table for rich."""
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for name, text in self.facts:
            table.add_row(Text(name), Text(text))
        return table

    def __str__(self) -> str:
        return plain_text(self.renderable())

    def _repr_html_(self) -> str:
        cells = (
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self.facts
        )
        return f"<table>{''.join(cells)}</table>"
