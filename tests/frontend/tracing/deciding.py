"""A function that decides by what it is given, in a file of its own."""

from typing import Any


def is_one(value: Any) -> bool:
    """Whether a number is 1."""
    return bool(value == 1)
