"""The result of `Solver.covariance`.

Blocks are NumPy arrays in float64, or arrays of the kind that the values were given as. Everything
is in tangent coordinates: see the table of steps in `docs/NUMERICS.md`.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import storage_fields, tangent_fields
from caspar.memory.array import Array
from caspar.runtime.arrays import HOST, as_library, location, to_numpy
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import GivenParts
from caspar.solver.input.problem import Problem
from caspar.solver.result.quantities import MOST_FITTED, StandardErrors, fields_text, preformatted
from caspar.solver.result.result import SolveResult, num_numbers

WIDTH = 100
"""Columns of the text form."""

MOST_SHOWN = 24
"""Standard errors of a node type up to which they are printed."""


@dataclass(frozen=True)
class NodeTypeInfo:
    """A node type as printing needs it.

    Attributes:
        values: (k, storage_dim) values of the requested instances, on the host.
    """

    count: int
    values: NDArray[np.float64]
    storage: Mapping[str, range]
    tangent: Mapping[str, range]


def _cross_of_a_pickle(name: str, number: int, other: str, other_number: int) -> Any:
    raise InputError(
        "this covariance comes from a pickle, which does not hold what covariances between "
        "instances are found from: ask for them before it is pickled"
    )


@dataclass(frozen=True, eq=False)
class Covariance:
    """The covariance of the values of a problem; made by `Solver.covariance`.

    `cov["Cam"]` is (k, d, d): the marginal covariance of each requested instance, in the order of
    the request, over all other unknowns of the problem. Rows and columns are in the order of the
    tangent, angles in radians.

    Attributes:
        instances: For each requested node type the instance numbers, (k,).
        num_unknowns: Unknowns of the problem.
        rank: Directions of these that the residuals determine.
        free_directions: The others in words; empty if all are determined.
        num_residuals: Rows of all residuals.
        degrees_of_freedom: num_residuals - rank.
        residual_variance: Sum of squared residuals / degrees_of_freedom; NaN if there are none.
        is_scaled: Whether covariances have been multiplied by `residual_variance`.
        method: How the inverse was found, in words.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> start = caspar.factors.prior(Place, noise="unit", name="start")
        >>> step = caspar.factors.between(Place, noise="unit", name="step")
        >>> arrays = {"Place": [[0.0], [2.0]], "start": {"value": [0], "expected": [[0.0]]},
        ...           "step": {"a": [0], "b": [1], "a_from_b": [[2.0]]}}
        >>> covariance = caspar.Solver([start, step]).covariance(arrays, {"Place": "all"})
        >>> covariance["Place"].ravel().round(3), covariance.cross("Place", 0, "Place", 1).round(3)
        (array([1., 2.]), array([[1.]]))
        >>> covariance.correlation("Place", 0, "Place", 1).round(3)
        array([[0.707]])
    """

    instances: Mapping[str, NDArray[np.int64]]
    num_unknowns: int
    rank: int
    free_directions: tuple[str, ...]
    num_residuals: int
    residual_variance: float
    is_scaled: bool
    method: str
    _blocks: Mapping[str, Any] = field(repr=False)
    _cross: Callable[[str, int, str, int], Any] = field(repr=False)
    _info: Mapping[str, NodeTypeInfo] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the system, from which covariances between instances are computed."""
        return {**self.__dict__, "_cross": _cross_of_a_pickle}

    def __copy__(self) -> "Covariance":
        """The same arrays and the same system."""
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Covariance":
        """Arrays of its own, and the same system."""
        return replace(self, _blocks=deepcopy(self._blocks, memo))

    @property
    def degrees_of_freedom(self) -> int:
        """Rows of residuals that are left when the unknowns are determined."""
        return self.num_residuals - self.rank

    def __getitem__(self, name: str) -> Any:
        """(k, d, d) covariances of the requested instances of a node type.

        Raises:
            InputError: The node type was not requested.
        """
        return self._blocks[self._known(name)]

    def cross(self, name: str, number: int, other: str, other_number: int) -> Any:
        """The covariance between two requested instances; found when it is asked for.

        Args:
            name: Node type of the rows.
            number: Its instance.
            other: Node type of the columns.
            other_number: Its instance.

        Returns:
            (d, other d) of the kind of `cov[name]`.

        Raises:
            InputError: One of them was not requested, or this covariance comes from a pickle.
        """
        self._place(name, number)
        self._place(other, other_number)
        return self._cross(name, int(number), other, int(other_number))

    def standard_errors(self, name: str) -> Any:
        """(k, d) standard deviations of the requested instances of a node type.

        Raises:
            InputError: The node type was not requested.
        """
        blocks = self[name]
        diagonal = list(range(int(blocks.shape[1])))
        # rounding may leave an unknown that does not vary a hair below zero
        return blocks[:, diagonal, diagonal].clip(0.0) ** 0.5

    def correlation(
        self,
        name: str,
        number: int | None = None,
        other: str | None = None,
        other_number: int | None = None,
    ) -> Any:
        """Correlations: covariances divided by both standard deviations.

        Args:
            name: Node type.
            number: Instance; None: all that were requested.
            other: Node type of the columns; None: the instance itself.
            other_number: Its instance.

        Returns:
            (k, d, d) of a node type, (d, d) of an instance, (d, other d) of two. An unknown that
            does not vary has correlations of 0, and 1 with itself.

        Raises:
            InputError: One of them was not requested, or `other` has no instance.
        """
        errors = self.standard_errors(name)
        if number is None:
            if other is not None or other_number is not None:
                raise InputError("correlation: give the instances of both node types, or neither")
            return _with_ones(_divided(self[name], errors, errors))
        place = self._place(name, number)
        if other is None and other_number is None:
            one = slice(place, place + 1)
            return _with_ones(_divided(self[name][one], errors[one], errors[one]))[0]
        if other is None or other_number is None:
            raise InputError("correlation: give a node type and an instance for the columns")
        columns = self.standard_errors(other)[self._place(other, other_number)]
        block = self.cross(name, number, other, other_number)
        return _divided(block[None], errors[place][None], columns[None])[0]

    def _known(self, name: str) -> str:
        if name not in self._blocks:
            raise InputError(
                f"{name!r} was not requested; this covariance has {', '.join(self._blocks)}. Ask "
                f"for it: solver.covariance(arrays, {{{name!r}: 'all'}})"
            )
        return name

    def _place(self, name: str, number: int) -> int:
        places = np.flatnonzero(self.instances[self._known(name)] == number)
        if len(places) == 0:
            raise InputError(
                f"instance {number} of {name} was not requested; add it to the instances of "
                f"{name!r} that solver.covariance is asked for"
            )
        return int(places[0])

    def __str__(self) -> str:
        """A summary in plain English, and all standard errors if there are few."""
        lines = [self._summary(), self._scale_text()]
        if len(self.free_directions) > 0:
            lines.append(
                f"{_count(self.num_unknowns - self.rank, 'direction is', 'directions are')} free; "
                "covariances are those of the pseudo-inverse, which holds them:"
            )
            lines += [f"  {text}" for text in self.free_directions]
        lines += [f"  {text}" for name in self._info for text in self._error_texts(name)]
        return "\n".join(
            textwrap.fill(line, WIDTH, subsequent_indent="    " if line[0] == " " else "  ")
            for line in lines
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _summary(self) -> str:
        asked = ", ".join(
            (name if info.count == 1 else f"all {info.count:,} {name}")
            if len(self.instances[name]) == info.count
            else f"{len(self.instances[name]):,} of {info.count:,} {name}"
            for name, info in self._info.items()
        )
        return (
            f"Covariance of {asked}, by {self.method}: {self.num_residuals:,} residuals, "
            f"{self.num_unknowns:,} unknowns, rank {self.rank:,}."
        )

    def _scale_text(self) -> str:
        if math.isnan(self.residual_variance):
            variance = "There are no degrees of freedom left to estimate a residual variance from."
        else:
            variance = (
                f"Residual variance {self.residual_variance:.6g} with "
                f"{self.degrees_of_freedom:,} degrees of freedom."
            )
        meaning = (
            "Covariances have been multiplied by it."
            if self.is_scaled
            else "Covariances hold if residuals have a variance of 1."
        )
        return f"{variance} {meaning}"

    def _error_texts(self, name: str) -> list[str]:
        """Values and standard errors of a node type; nothing if there are too many."""
        info, errors = self._info[name], self.standard_errors(name)
        if errors.shape[0] * errors.shape[1] > MOST_SHOWN:
            return []
        texts = []
        rows = to_numpy(errors)
        for number, row, own in zip(self.instances[name], info.values, rows, strict=True):
            owner = name if info.count == 1 else f"{name}[{number}]"
            shown = fields_text(row.tolist(), own.tolist(), info.storage, info.tangent)
            texts.append(f"{owner}: {shown}")
        return texts


def note_standard_errors(result: SolveResult, found: Covariance) -> None:
    """Let the report of a small result show the standard errors of a covariance."""
    if sum(map(num_numbers, result.values.values())) > MOST_FITTED:
        return
    errors = {}
    for name, numbers in found.instances.items():
        known = to_numpy(found.standard_errors(name))
        rows = np.full((found._info[name].count, known.shape[1]), np.nan)
        rows[numbers] = known
        errors[name] = rows
    tangent = {name: info.tangent for name, info in found._info.items()}
    num_free = found.num_unknowns - found.rank
    free = f" {_count(num_free, 'direction is', 'directions are')} free." if num_free > 0 else ""
    result.note_standard_errors(StandardErrors(errors, tangent, f"{found._scale_text()}{free}"))


def giver(backend: Backend, given: Any) -> Callable[[Array], Any]:
    """Turns arrays of the device into what the values of a node type were given as."""
    given = given.parts[0] if isinstance(given, GivenParts) else given

    def give(array: Array) -> Any:
        backend.synchronize()
        return as_library(backend.to_host(array) if location(given) == HOST else array, given)

    return give


def node_infos(
    backend: Backend,
    nodes: Sequence[NodeType],
    problem: Problem,
    requested: Mapping[str, NDArray[np.int64]],
) -> dict[str, NodeTypeInfo]:
    """The requested node types, as printing needs them."""
    by_name = {node.name: node for node in nodes}
    infos = {}
    for name, numbers in requested.items():
        kind = by_name[name].python_type
        values = backend.to_host(backend.upload(problem.values[name]))[numbers]
        fields = storage_fields(kind), tangent_fields(kind)
        infos[name] = NodeTypeInfo(problem.counts[name], values, *fields)
    return infos


def _divided(blocks: Any, rows: Any, columns: Any) -> Any:
    """Blocks over standard deviations; zero where one of these is."""
    rows, columns = rows + (rows == 0.0), columns + (columns == 0.0)
    return blocks / rows[:, :, None] / columns[:, None, :]


def _with_ones(correlations: Any) -> Any:
    diagonal = list(range(int(correlations.shape[1])))
    correlations[:, diagonal, diagonal] = 1.0
    return correlations


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
