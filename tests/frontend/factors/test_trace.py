"""Tracing: what a factor's arguments become, and where its symbols come from."""

from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import symforce.symbolic as sf
from symforce.ops import StorageOps

import caspar
from caspar.bundle_adjustment import snavely
from caspar.frontend.factors.trace import (
    Argument,
    ArgumentKind,
    TracedFactor,
    trace,
)
from tests.frontend.symbolic import postponed


class Point(sf.V3): ...


class Pose(sf.Pose3): ...


@caspar.factor
def everything(
    pair: Annotated[caspar.Pair[Pose], caspar.TunablePair],
    shared: Annotated[Point, caspar.TunableShared],
    unique: Annotated[sf.V1, caspar.TunableUnique()],
    sequential: Annotated[sf.V2, "metres", caspar.ConstSequential],
    indexed: Annotated[sf.Rot3, caspar.ConstIndexed],
    neighbours: Annotated[sf.V1, caspar.ConstShared],
    same: Annotated[sf.Scalar, caspar.ConstUnique],
) -> sf.V3:
    """Uses every kind."""
    moved = indexed * (pair[0].inverse() * (pair[1] * shared))
    return moved * unique[0] + sf.V3(*sequential, 0) + neighbours[0] * same * shared


def test_every_kind_of_argument() -> None:
    traced = trace(everything)
    described = [
        (a.name, a.source, a.kind, a.successor, a.storage_dim, a.node is not None)
        for a in traced.arguments
    ]
    kinds = ArgumentKind
    assert described == [
        ("pair__first", "pair", kinds.NODE_PAIR, False, 7, True),
        ("pair__second", "pair", kinds.NODE_PAIR, True, 7, True),
        ("shared", "shared", kinds.NODE_SHARED, False, 3, True),
        ("unique", "unique", kinds.NODE_UNIQUE, False, 1, True),
        ("sequential", "sequential", kinds.CONST_SEQUENTIAL, False, 2, False),
        ("indexed", "indexed", kinds.CONST_INDEXED, False, 4, False),
        ("neighbours", "neighbours", kinds.CONST_INDEXED, False, 1, False),
        ("same", "same", kinds.CONST_UNIQUE, False, 1, False),
    ]
    assert traced.name == "everything"
    assert traced.location.startswith(__file__)
    assert [argument.name for argument in traced.nodes] == [a[0] for a in described[:4]]


def test_node_types_carry_the_name_of_their_class() -> None:
    first, second, shared, unique = (argument.node for argument in trace(everything).nodes)
    assert first is not None
    assert first == second
    assert (first.name, first.python_type) == ("Pose", Pose)
    assert (first.storage_dim, first.tangent_dim) == (7, 6)
    assert shared is not None
    assert (shared.name, shared.storage_dim, shared.tangent_dim) == ("Point", 3, 3)
    assert unique is not None
    assert unique.name == "Matrix11"


def test_the_residual_holds_symbols_of_the_arguments() -> None:
    traced = trace(everything)
    known = {str(symbol) for argument in traced.arguments for symbol in argument.symbols}
    used = {str(symbol) for row in traced.residual for symbol in row.free_symbols}
    assert len(traced.residual) == 3
    assert used == known
    assert len(known) == sum(argument.storage_dim for argument in traced.arguments)


def test_a_dataclass_is_one_node() -> None:
    cam, point, pixel = trace(snavely).arguments
    assert cam.node is not None
    assert (cam.node.name, cam.node.storage_dim, cam.node.tangent_dim) == ("Cam", 10, 9)
    assert cam.storage_by_tangent.shape == (10, 9)
    assert point.storage_by_tangent.shape == (3, 3)
    assert pixel.node is None


def test_the_function_still_computes() -> None:
    camera = StorageOps.from_storage(
        trace(snavely).arguments[0].symbolic, [0, 0, 0, 1, 0, 0, -5, 100, 0, 0]
    )
    pixel = snavely(camera, sf.V3(1, 2, 0), sf.V2(0, 0))
    assert [float(entry) for entry in pixel] == [20.0, 40.0]


def node_names(traced: TracedFactor) -> list[str]:
    return [argument.node.name for argument in traced.nodes if argument.node is not None]


class TestAnnotations:
    def test_postponed_of_a_module(self) -> None:
        assert node_names(trace(postponed.at_module_level)) == ["Spot"]

    def test_postponed_with_classes_of_a_function(self) -> None:
        assert node_names(trace(postponed.with_local_classes())) == ["Local", "Spot"]

    def test_the_name_of_a_type(self) -> None:
        class Near(sf.V2): ...

        def height(near: Annotated["Near", caspar.TunableShared]) -> sf.V1:
            return sf.V1(near[0] + near[1])

        assert node_names(trace(caspar.factor(height))) == ["Near"]
        height.__annotations__["near"] = "Annotated['Near', caspar.TunableShared]"
        assert node_names(trace(caspar.factor(height))) == ["Near"]

    def test_postponed_and_wrapped(self) -> None:
        """Names are those of the module of the wrapped function."""

        @caspar.factor
        @wraps(postponed.plain)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return 2 * postponed.plain(*args, **kwargs)

        traced = trace(wrapped)
        assert node_names(traced) == ["Spot"]
        assert "2*" in str(traced.residual[0])

    def test_a_postponed_return_type_may_be_unknown(self) -> None:
        assert node_names(trace(postponed.unknown_return_type)) == ["Spot"]

    def test_positional_and_keyword_only(self) -> None:
        @caspar.factor
        def between(
            a: Annotated[Point, caspar.TunableShared],
            /,
            b: Annotated[Point, caspar.TunableShared],
            *,
            d: Annotated[Point, caspar.ConstSequential],
        ) -> sf.V3:
            return b - a - d

        assert str(trace(between).residual[0]) in ("b[0] - a[0] - d[0]", "-a[0] + b[0] - d[0]")

    def test_defaults_are_not_used(self) -> None:
        three = sf.V1(3)

        @caspar.factor
        def scaled(
            a: Annotated[Point, caspar.TunableShared],
            scale: Annotated[sf.V1, caspar.ConstUnique] = three,
        ) -> sf.V3:
            return a * scale[0]

        assert "scale[0]" in str(trace(scaled).residual[0])

    def test_a_marker_of_ones_own(self) -> None:
        class Measured(caspar.ConstSequential):
            """Says what the constant is."""

        @caspar.factor
        def own(a: Annotated[Point, caspar.TunableShared], b: Annotated[Point, Measured]) -> sf.V3:
            return a - b

        assert trace(own).arguments[1].kind is ArgumentKind.CONST_SEQUENTIAL


class TestKeys:
    """The key of a factor changes with all that its kernels depend on."""

    def key(self, function: Any) -> str:
        function.__name__ = "residual_of"
        return trace(caspar.factor(function)).key

    def test_the_same_factor_has_the_same_key(self) -> None:
        assert trace(everything).key == trace(everything).key

    def test_expression_kind_type_and_name_count(self) -> None:
        shared, unique = caspar.TunableShared, caspar.TunableUnique

        def base(a: Annotated[sf.V3, shared], b: Annotated[sf.V3, shared]) -> sf.V3:
            return a - b

        def expression(a: Annotated[sf.V3, shared], b: Annotated[sf.V3, shared]) -> sf.V3:
            return a + b

        def kind(a: Annotated[sf.V3, shared], b: Annotated[sf.V3, unique]) -> sf.V3:
            return a - b

        def constant(
            a: Annotated[sf.V3, shared], b: Annotated[sf.V3, caspar.ConstSequential]
        ) -> sf.V3:
            return a - b

        def type_(a: Annotated[sf.V3, shared], b: Annotated[sf.Unit3, shared]) -> sf.V3:
            return a - b.to_unit_vector()

        def name(a: Annotated[sf.V3, shared], c: Annotated[sf.V3, shared]) -> sf.V3:
            return a - c

        functions = (base, expression, kind, constant, type_, name)
        assert len({self.key(function) for function in functions}) == len(functions)

    def test_a_pair_is_not_two_shared_nodes(self) -> None:
        def pair(p: Annotated[caspar.Pair[Point], caspar.TunablePair]) -> sf.V3:
            return p[0] - p[1]

        def two(
            p_first: Annotated[Point, caspar.TunableShared],
            p_second: Annotated[Point, caspar.TunableShared],
        ) -> sf.V3:
            return p_first - p_second

        assert self.key(pair) != self.key(two)


def test_types_of_the_same_name_stay_apart() -> None:
    """Two classes may share a name as long as they do not meet in one solver."""

    def make(base: type) -> Argument:
        class Thing(base): ...

        @caspar.factor
        def prior(thing: Annotated[Thing, caspar.TunableShared]) -> sf.V1:
            return sf.V1(sum(StorageOps.to_storage(thing)))

        return trace(prior).nodes[0]

    small, large = make(sf.V2), make(sf.V3)
    assert small.node != large.node
    assert small.node is not None
    assert large.node is not None
    assert small.node.name == large.node.name == "Thing"
    assert (small.node.storage_dim, large.node.storage_dim) == (2, 3)


def test_retraction_of_a_struct() -> None:
    @dataclass
    class Body:
        turn: sf.Rot3
        place: sf.V3

    @caspar.factor
    def prior(body: Annotated[Body, caspar.TunableShared]) -> sf.V3:
        return body.turn * body.place

    node = trace(prior).nodes[0].node
    assert node is not None
    storage, step, moved = node.retracted_storage("node")
    assert (len(storage), len(step), len(moved)) == (7, 6, 7)
    for number in range(3):
        assert str(moved[4 + number] - storage[4 + number]) == str(step[3 + number])
