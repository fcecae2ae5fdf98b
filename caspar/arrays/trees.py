"""Nested mappings of arrays, such as `Solver.solve` takes, as leaves with paths.

Input: mappings from names to arrays or further mappings; anything else is a leaf. Nothing is read
or copied.
"""

from collections.abc import Mapping
from typing import Any

ArrayTree = Mapping[str, Any]

Path = tuple[str, ...]
"""The names on the way to a leaf."""


def leaves(tree: ArrayTree, above: Path = ()) -> dict[Path, Any]:
    """All leaves, by path, in order."""
    found: dict[Path, Any] = {}
    for name, part in tree.items():
        path = (*above, name)
        found.update(leaves(part, path) if isinstance(part, Mapping) else {path: part})
    return found


def with_leaves(tree: ArrayTree, replaced: Mapping[Path, Any], above: Path = ()) -> dict[str, Any]:
    """The same tree with some leaves replaced."""
    return {
        name: with_leaves(part, replaced, (*above, name))
        if isinstance(part, Mapping)
        else replaced.get((*above, name), part)
        for name, part in tree.items()
    }


def leaf_at(tree: ArrayTree, path: Path) -> Any:
    """Follow a path of the arrays of a solve in a gradient.

    The values of an indexed or a ragged argument stand there under its own name.
    """
    part: Any = tree
    for name in path:
        if isinstance(part, Mapping):
            part = part[name]
    return part
