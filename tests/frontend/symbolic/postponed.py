"""Factors whose annotations are text until somebody asks for them."""

from __future__ import annotations

from typing import Annotated

import symforce.symbolic as sf

import caspar
from caspar.frontend.factors.factor import Factor


class Spot(sf.V2):
    """A node type of the module."""


@caspar.factor
def at_module_level(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V2:
    """Names of the module."""
    return 2 * spot


def plain(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V2:
    """To be wrapped elsewhere."""
    return spot


@caspar.factor
def unknown_return_type(spot: Annotated[Spot, caspar.TunableShared]) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    """Nobody needs the type of the result."""
    return spot


@caspar.factor
def unknown_type(spot: Annotated[Spott, caspar.TunableShared]) -> sf.V2:  # type: ignore[name-defined]  # noqa: F821
    """A misspelt type."""
    return spot


@caspar.factor
def unknown_marker(spot: Annotated[Spot, caspar.TunableShred]) -> sf.V2:
    """A misspelt marker."""
    return spot


def with_local_classes() -> Factor:
    """Names of a function, gone when the factor is traced."""

    class Local(sf.V2):
        """A node type of the function."""

    @caspar.factor
    def difference(
        local: Annotated[Local, caspar.TunableShared], spot: Annotated[Spot, caspar.TunableShared]
    ) -> sf.V2:
        return local - spot

    return difference
