"""Sphinx extension: the docstrings of caspar, which are plain text, as reStructuredText.

In: lines of a docstring. Out: the same, in place. Characters that are formulas here and markup
there (`*`, `|`, trailing `_`) are escaped, code in backticks that is no name becomes a literal, and
indented examples become literal blocks.
"""

import re
from typing import Any

_CODE = re.compile(r"(`[^`]+`)")
_NAME = re.compile(r"`[A-Za-z_][\w.]*`")
_SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def marked_up(lines: list[str]) -> list[str]:
    """The lines as reStructuredText."""
    result: list[str] = []
    example_indent = -1  # of the line that introduces an example
    in_doctest = False
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= example_indent:
            example_indent = -1
        in_doctest = line.strip() != "" and (in_doctest or line.lstrip().startswith(">>> "))
        if example_indent >= 0 or in_doctest:
            result.append(line)
        elif _introduces_example(lines, number, indent):
            result.append(f"{_escaped(line)}:")
            example_indent = indent
        else:
            result.append(_escaped(line))
    return result


def _introduces_example(lines: list[str], number: int, indent: int) -> bool:
    if not lines[number].endswith(":") or number + 2 >= len(lines) or lines[number + 1].strip():
        return False
    return lines[number + 2].startswith(" " * (indent + 4))


def _escaped(line: str) -> str:
    bullet = "* " if line.lstrip().startswith("* ") else ""
    before, _, rest = line.partition(bullet) if bullet else ("", "", line)
    parts = [
        (part if _NAME.fullmatch(part) else f"``{part.strip('` ')}``")
        if _CODE.fullmatch(part)
        else _SPECIAL.sub(r"\\\1", part)
        for part in _CODE.split(rest)
    ]
    return before + bullet + "".join(parts)


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = marked_up(lines)
    if what in ("attribute", "data", "property") and ":" in lines[0]:
        lines.insert(0, "\\ ")  # else napoleon takes the words before the colon for a type


def setup(app: Any) -> dict[str, Any]:
    """Before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"version": "1", "parallel_read_safe": True}
