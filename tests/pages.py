"""Pages for readers: their tables, and their blocks of code: find them, run them."""

import contextlib
import io
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: The word behind the fence; empty if there is none.
        text: What is between the fences.
        line: Number of its first line in the page, from 1.
    """

    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in order; with languages, only those."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if len(languages) == 0 or block.language in languages]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def table(pages: Iterable[Path], head: str) -> list[list[str]]:
    """Cells of the only table whose first column has this name, without backticks."""
    (lines,) = (
        lines[number + 2 :]
        for page in pages
        for lines in [page.read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(lines)
        if line.startswith(f"| {head} |")
    )
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def run(page: Path, block: Block, names: dict[str, Any]) -> str:
    """Run a block of Python in a namespace; what it prints.

    Its lines have the numbers they have in the page, in errors and where caspar looks for the
    user's lines.
    """
    code = compile("\n" * (block.line - 1) + block.text, page, "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def replace_texts(page: Path, texts: dict[Block, str]) -> None:
    """Write other texts into blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for block in sorted(texts, key=lambda block: block.line, reverse=True):
        first = block.line - 1
        lines[first : first + block.text.count("\n")] = [texts[block]]
    page.write_text("".join(lines), encoding="utf-8", newline="\n")
