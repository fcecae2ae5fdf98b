"""The text of a statement of the user's code, for errors and for comments in kernels."""

import re
from collections.abc import Sequence

_STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#.*""")
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def statement(lines: Sequence[str], number: int) -> str:
    """The statement that starts at a line, or its head, joined to one line without comments.

    Args:
        lines: Lines of the file; none where there is no source.
        number: The line, from 1; in the middle of a statement, the rest of it is taken.
    """
    text = ""
    depth = 0
    for line in lines[number - 1 :]:
        code = _STRING_OR_COMMENT.sub(_without_comment, line).strip()
        depth += sum(_DEPTH.get(character, 0) for character in _STRING_OR_COMMENT.sub("", code))
        is_tight = text.endswith(("(", "[", "{")) or code.startswith((")", "]", "}"))
        text += ("" if is_tight else " ") + code.removesuffix("\\").rstrip()
        if depth <= 0 and not code.endswith("\\"):
            break
    return text.strip()


def _without_comment(match: re.Match[str]) -> str:
    return "" if match[0].startswith("#") else match[0]
