"""Mappings of results: they are dictionaries, and suggest a name where one is not found."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from caspar.errors import UnknownNameError, meant

Value = TypeVar("Value")


def unknown_name(name: object, what: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not there."""
    names = list(known)
    listed = f"these are {', '.join(names)}" if names else "there is none"
    return UnknownNameError(f"{name!r} is no {what}{meant(name, names)}; {listed}")


class ByName(dict[str, Value]):
    """A dictionary that says which names there are."""

    def __init__(self, items: Mapping[str, Value], what: str) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, name: str) -> Value:
        """Called for a name that is not there."""
        raise unknown_name(name, self._what, self)

    def __reduce__(self) -> tuple[type["ByName[Value]"], tuple[dict[str, Value], str]]:
        return type(self), (dict(self), self._what)
