"""Comments of generated code: the user's own text, made harmless."""

MAX_COMMENT = 110
"""Characters of a comment that are kept."""


def comment_text(text: str) -> str:
    """Text that may stand behind `//` in C and behind `#` in Python.

    In C a backslash at the end, even before blanks, and the trigraph that stands for it would take
    the next line into the comment. Other than ASCII is escaped: compilers disagree on encodings.
    """
    plain = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    printable = "".join(c if c.isprintable() else "?" for c in plain).replace("??/", "?? /")
    if len(printable) > MAX_COMMENT:
        printable = printable[: MAX_COMMENT - 3] + "..."
    return printable.rstrip("\\ ")
