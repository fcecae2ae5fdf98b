"""Names: which a user may give, and what they become in kernels.

A user's name never contains the separator. In generated text each one is followed by it: an
argument `point` is read as `point__value`, its gradient is `point__gradient`, a factor's kernels
are `reprojection__score` and so on. The kernels' own names have no separator, so that no user's
name can meet one of them, whatever it is.
"""

import hashlib
import keyword
import re
import unicodedata
from collections.abc import Collection

SEPARATOR = "__"
"""Stands between a user's name and what is said of it."""

VALUE = "value"
"""The part of an argument that the user's function sees: its object's storage."""

ROUNDED_VALUE = "rounded"
"""The same rounded to the type of storage, where values have a wider one."""

MAX_LENGTH = 40
"""Characters of a name that are kept as they are: kernels of three types have three of them."""

_DIGEST_LENGTH = 16


def identifier_refusal(name: object) -> str:
    """Say why a field of a dataclass cannot have a name; empty: it can."""
    if name == "<lambda>":
        return "a lambda has no name of its own; write the function with def and a name"
    if not isinstance(name, str) or not name.isidentifier():
        return (
            f"{name!r} is not a name; letters of any script, digits and underscores are allowed, "
            "not beginning with a digit; rename it"
        )
    if keyword.iskeyword(name):
        return f"{name!r} is a keyword of Python; rename it, for example to {name + '_'!r}"
    return ""


def name_refusal(name: object) -> str:
    """Say why a factor, argument, node type, kernel or output cannot have a name; empty: it can."""
    refusal = identifier_refusal(name)
    if refusal == "" and SEPARATOR in str(name):
        name = str(name)
        refusal = (
            f"{name!r} contains {SEPARATOR!r}, which separates the names of kernels' arguments "
            f"from their parts; rename it, for example to {re.sub('__+', '_', name)!r}"
        )
    return refusal


def internal_name(name: str) -> str:
    """Return the beginning of an allowed name in generated text: about 40 characters of ASCII.

    Equal names become equal ones, different names different ones. A name that is long, or is not
    ASCII, loses what cannot stay and gets a digest behind a separator.
    """
    if name.isascii() and len(name) <= MAX_LENGTH:
        return name
    kept = re.sub(r"\W+", "_", name, flags=re.ASCII)[: MAX_LENGTH // 2]
    return part_name(kept, hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH])


def part_name(name: str, part: str) -> str:
    """The name of a part of something that `internal_name` or this named."""
    return f"{name}{SEPARATOR}{part}"


def kernel_name(owner: str, role: str) -> str:
    """The name of a kernel of a user's factor, type or kernel function."""
    return part_name(internal_name(owner), role)


def normalised_hint(name: str, expected: Collection[str]) -> str:
    """Return a hint on a key that only looks like an expected one.

    Python normalises names in source files (NFKC), but not the text of a key.
    """
    normalised = unicodedata.normalize("NFKC", name)
    if name in expected or normalised not in expected:
        return ""
    return f" (Python normalises names: write unicodedata.normalize('NFKC', {name!a}))"
