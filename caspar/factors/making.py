"""Make a factor of the library from its error and the user's choices.

Input: a function that gives the rows of an error, its arguments, and choices: name, noise, markers,
and for each node a type or a `Part` of one. Output: a `LibraryFactor`. Nothing is traced here: some
microseconds for each factor.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Annotated, Any, ParamSpec, SupportsIndex, TypeAlias

import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

from caspar.errors import FactorError
from caspar.factors.whitening import Noise, NoiseChoice, noise_argument, vector_type, whitened
from caspar.frontend.factors.factor import Factor
from caspar.frontend.markers import (
    Const,
    ConstSequential,
    ConstUnique,
    Marker,
    Tunable,
    TunablePair,
    TunableShared,
)
from caspar.options import choice

_BASES: tuple[Any, ...] = (sf.Rot2, sf.Rot3, sf.Pose2, sf.Pose3, sf.Unit3)

Markers: TypeAlias = Mapping[str, type[Marker]]
"""Markers that replace the default ones, by the names of the arguments."""


@dataclass(frozen=True)
class Part:
    """A view of a node that holds more than a factor needs.

    Attributes:
        node: The node type.
        view: The name of a field of it, or a function of a (symbolic) node.
        argument: The name of the factor's argument; None: the usual one. Parts with the same name
            are parts of one node.
    """

    node: Any
    view: str | Callable[[Any], Any]
    argument: str | None = None

    def of(self, value: Any) -> Any:
        """The part of a node."""
        return getattr(value, self.view) if isinstance(self.view, str) else self.view(value)


NodeChoice: TypeAlias = Any
"""A node type: a SymForce type, a subclass of one, a dataclass of them; or a `Part` of one."""


def part(node: Any, view: str | Callable[[Any], Any], argument: str | None = None) -> Part:
    """Let a factor see a part of a node, or something computed from it.

    `part(State, "pose")` is a field of a dataclass; `part(State, lambda state:
    state.pose.inverse())` is the pose in the other direction. With `part(State, "pose", "state")`
    and `part(State, "velocity", "state")` a factor has one argument `state` instead of two.

    Args:
        node: The node type; its class name is that of its arrays.
        view: The name of a field, or a function of a symbolic node.
        argument: The name of the factor's argument, if several parts are those of one node.

    Example:
        >>> from dataclasses import dataclass
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> @dataclass
        ... class Robot:
        ...     pose: sf.Pose2
        ...     velocity: sf.V2
        >>> fix = caspar.factors.gps_position(caspar.factors.part(Robot, "pose"), noise="unit")
        >>> caspar.Solver(fix, backend="cpu")
        Solver(factors: gps_position; node types: Robot; cpu, ...)
    """
    return Part(node, view, argument)


@dataclass(frozen=True)
class Argument:
    """An argument of a factor of the library: its type, which the user chose for a node."""

    name: str
    type: Any
    marker: type[Marker]


@dataclass(frozen=True)
class Choices:
    """The choices that every function of the library offers: see `Noise` and `Markers`."""

    name: str
    noise: NoiseChoice
    markers: Markers | None


def node(name: str, choice: NodeChoice) -> Argument:
    """An argument that is a node, one of many."""
    return Argument(name, choice, TunableShared)


def each(name: str, kind: Any) -> Argument:
    """A constant argument of which each instance has its own."""
    return Argument(name, kind, ConstSequential)


def common(name: str, kind: Any) -> Argument:
    """A constant argument that all instances share."""
    return Argument(name, kind, ConstUnique)


def plain(value: Any) -> Any:
    """A value as an object of SymForce's own class, whose products are defined."""
    for base in _BASES:
        if isinstance(value, base):
            return base.from_storage(value.to_storage())
    if isinstance(value, sf.Matrix):
        return sf.matrix_type_from_shape(value.shape)(value.to_flat_list())
    return value


def kind_of(choice: NodeChoice) -> Any:
    """SymForce's own class of what a factor sees of a node; a dataclass stays what it is."""
    if not isinstance(choice, Part):
        for base in _BASES:
            if isinstance(choice, type) and issubclass(choice, base):
                return base
        if is_dataclass(choice):
            return choice
        return type(plain(StorageOps.symbolic(choice, "node")))
    seen = plain(choice.of(StorageOps.symbolic(choice.node, "node")))
    return type(seen)


def check_kind(factor: str, argument: str, choice: NodeChoice, allowed: Sequence[Any]) -> Any:
    """The class of what a factor sees of a node, if the factor can use it, or a `FactorError`."""
    kind = kind_of(choice)
    if kind not in allowed:
        # SymForce calls its vectors Matrix31, users sf.V3
        names = ", ".join(_type_name(one) for one in allowed)
        raise FactorError(
            f"caspar.factors.{factor}, argument {argument}: {_type_name(kind)} cannot be used; it "
            f"must be {names}, a subclass of one of them, or caspar.factors.part(...) that "
            "gives one"
        )
    return kind


def _type_name(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, sf.Matrix) and hasattr(kind, "SHAPE"):
        rows, columns = kind.SHAPE
        return f"sf.V{rows}" if columns == 1 else f"sf.M{rows}{columns}"
    name = getattr(kind, "__name__", repr(kind))
    return f"sf.{name}" if kind in _BASES else str(name)


def position(value: Any) -> Any:
    """The translation of a pose; of a point the point itself."""
    return value.t if isinstance(value, sf.Pose2 | sf.Pose3) else value


def rotation(value: Any) -> Any:
    """The rotation of a pose; of a rotation the rotation itself."""
    return value.R if isinstance(value, sf.Pose2 | sf.Pose3) else value


def space_dim(kind: Any) -> int:
    """Dimensions of the space that poses or points of a class are in."""
    if kind in (sf.Pose2, sf.Rot2):
        return 2
    if kind in (sf.Pose3, sf.Rot3):
        return 3
    return int(StorageOps.storage_dim(kind))


def tangent_dim(kind: Any) -> int:
    """Degrees of freedom of a class."""
    return int(LieGroupOps.tangent_dim(kind))


# -- the factor ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LibraryFactor(Factor):
    """A factor of the library; pickled as the call that made it.

    Attributes:
        recipe: Makes it once more; None while it is being made.
    """

    recipe: Callable[[], Factor] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """The name and the arguments; where the function is defined is of no use."""
        return f"{self.name}({', '.join(inspect.signature(self.function).parameters)})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as a call of its function in the library."""
        assert self.recipe is not None
        return self.recipe, ()


_Arguments = ParamSpec("_Arguments")


def library(maker: Callable[_Arguments, Factor]) -> Callable[_Arguments, Factor]:
    """Decorate a function of the library: its factors remember how they were made."""

    @functools.wraps(maker)
    def remembered(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Factor:
        made = maker(*args, **kwargs)
        recipe = partial(remembered, *args, **kwargs)
        return LibraryFactor(made.function, made.name, made.local_names, recipe=recipe)

    return remembered


def make_factor(
    error: Callable[..., Sequence[Any]], dim: int, arguments: Sequence[Argument], choices: Choices
) -> Factor:
    """Make a factor of an error, whose `dim` rows are not whitened and take arguments by name.

    Raises a `FactorError` if a marker is for no argument or is none, an `OptionError` if there is
    no such noise.
    """
    noise = choice(Noise, "noise", choices.noise)
    noise_is = noise_argument(noise, dim)
    measure = () if noise_is is None else (Argument(noise.value, *noise_is),)
    annotations = _annotations((*arguments, *measure), choices)

    def residual(values: Mapping[str, Any]) -> Any:
        seen = {one.name: plain(_seen(one, values)) for one in arguments}
        return whitened(noise, error(**seen), values.get(noise.value))

    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    signature = inspect.Signature(parameters, return_annotation=vector_type(dim))

    def function(*args: Any, **kwargs: Any) -> Any:
        return residual(signature.bind(*args, **kwargs).arguments)

    function.__name__ = function.__qualname__ = choices.name
    function.__doc__ = error.__doc__
    function.__annotations__ = {**annotations, "return": vector_type(dim)}
    vars(function)["__signature__"] = signature
    return Factor(function, choices.name, {})


def _seen(argument: Argument, values: Mapping[str, Any]) -> Any:
    value = values[_source(argument)]
    return argument.type.of(value) if isinstance(argument.type, Part) else value


def _source(argument: Argument) -> str:
    """The name of the factor's argument that an argument of the error comes from."""
    if isinstance(argument.type, Part) and argument.type.argument is not None:
        return argument.type.argument
    return argument.name


def _annotations(arguments: Sequence[Argument], choices: Choices) -> dict[str, Any]:
    annotations: dict[str, Any] = {}
    for one in arguments:
        declared = one.type.node if isinstance(one.type, Part) else one.type
        name, annotation = _source(one), Annotated[declared, _marker(one, choices)]
        if annotations.setdefault(name, annotation) != annotation:
            raise FactorError(
                f"factor {choices.name}, argument {name}: parts of one argument must be of one "
                f"node type; found {annotations[name]} and {annotation}"
            )
    for name in choices.markers or {}:
        if name not in annotations:
            raise FactorError(
                f"factor {choices.name}, markers: there is no argument {name!r}; the arguments are "
                f"{', '.join(annotations)}"
            )
    return annotations


def _marker(argument: Argument, choices: Choices) -> type[Marker]:
    marker: Any = (choices.markers or {}).get(_source(argument), argument.marker)
    where = f"factor {choices.name}, marker of argument {_source(argument)}"
    is_marker = isinstance(marker, type) and issubclass(marker, Tunable | Const)
    if not is_marker or marker in (Tunable, Const):
        raise FactorError(f"{where}: {marker!r} is no marker such as caspar.ConstUnique")
    if marker is TunablePair:
        raise FactorError(
            f"{where}: TunablePair is for factors of your own; give both arguments indices, for "
            "example i and i + 1"
        )
    chosen: type[Marker] = marker
    return chosen
