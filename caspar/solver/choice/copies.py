"""Pickles and copies of what is made of factors and choices.

They hold factors, by module and name, and the choices as they were given: what is `auto` is chosen,
and everything compiled, where they arrive.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar

from caspar.frontend.factors.factor import Factor
from caspar.options import BackendChoice

Kind = TypeVar("Kind", bound="Remade")


class Remade:
    """Copied and pickled as its factors and choices."""

    _given: Sequence[Factor]
    _choices: Mapping[str, Any]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as its factors and choices; traced and compiled where it arrives.

        Raises:
            pickle.PicklingError: A factor is not found by its module and name, or the backend was
                given as an object, which belongs to this process.
        """
        if not isinstance(self._choices["backend"], str | BackendChoice):
            raise pickle.PicklingError(
                f"a Solver with the backend object {self._choices['backend']!r} cannot be pickled: "
                "a backend belongs to its process. Make the solver with backend='auto', 'cuda' or "
                "'cpu'"
            )
        return _remade, (type(self), self._given, self._choices)

    def __copy__(self: Kind) -> Kind:
        """A solver of the same factors and choices, with memory of its own."""
        return _remade(type(self), self._given, self._choices)

    def __deepcopy__(self: Kind, memo: object) -> Kind:
        """The same."""
        return self.__copy__()


def _remade(kind: type[Kind], factors: Sequence[Factor], choices: Mapping[str, Any]) -> Kind:
    """What a pickle, or a copy, is made of."""
    return kind(factors, **choices)  # type: ignore[call-arg]
