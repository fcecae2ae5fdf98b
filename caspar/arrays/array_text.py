"""What a blocked array looks like: as text and as an HTML table. Never more than a few rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

EDGE_ROWS = 3
"""Rows shown at each end."""

EDGE_COLUMNS = 6
"""Columns shown at each end of the table; text is shortened by NumPy."""

Rows = Callable[[int, int], NDArray[Any]]
"""The rows from one number to another."""


def _some_rows(length: int, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first rows and the last, or all and none."""
    if length <= 2 * EDGE_ROWS:
        return rows(0, length), rows(length, length)
    return rows(0, EDGE_ROWS), rows(length - EDGE_ROWS, length)


def array_text(summary: str, length: int, rows: Rows) -> str:
    """The summary, then rows as NumPy writes them.

    Args:
        summary: First line.
        length: Rows there are.
        rows: Takes some of them.
    """
    first, last = _some_rows(length, rows)
    # NumPy leaves out what is between the edges: one row stands for it
    shown = np.concatenate([first, first[-1:], last]) if len(last) > 0 else first
    return f"{summary}\n{np.array2string(shown, threshold=0, edgeitems=EDGE_ROWS)}"


def array_html(summary: str, length: int, rows: Rows) -> str:
    """The summary and a table of rows, numbered; see `array_text`."""
    first, last = _some_rows(length, rows)
    dim = first.shape[1]
    columns: list[int | None] = list(range(dim))
    if dim > 2 * EDGE_COLUMNS:
        columns[EDGE_COLUMNS : dim - EDGE_COLUMNS] = [None]
    lines = [_html_row("th", "", ["…" if column is None else column for column in columns])]
    lines += [_html_values(number, row, columns) for number, row in enumerate(first)]
    if len(last) > 0:
        lines.append(_html_row("td", "…", ["…"] * len(columns)))
        start = length - len(last)
        lines += [_html_values(start + number, row, columns) for number, row in enumerate(last)]
    return f"<div><code>{summary}</code><table>{''.join(lines)}</table></div>"


def _html_values(number: int, row: NDArray[Any], columns: list[int | None]) -> str:
    cells = ["…" if column is None else f"{row[column]:.6g}" for column in columns]
    return _html_row("td", number, cells)


def _html_row(tag: str, number: object, cells: list[Any]) -> str:
    inner = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th>{number}</th>{inner}</tr>"
