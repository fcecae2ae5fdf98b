"""Values of kernel functions: defaults as scalars, and what is symbolic."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy

import caspar
from caspar.frontend.kernels.values import is_symbolic
from caspar.memory.patterns import (
    ReadPair,
    ReadPairStridedWithDefault,
    ReadSequential,
    ReadStridedWithDefault,
    ReadUnique,
    WriteSequential,
    WriteSum,
)
from tests.frontend.kernels.kernel_functions import Camera, Point, Pose, traced


class Result(NamedTuple):
    a: Any
    b: Any


class TestDefaults:
    """What is read where there is nothing: scalars of an object."""

    @pytest.mark.parametrize(
        ("declared", "given", "scalars"),
        [
            (sf.Symbol, 2, (2.0,)),
            (float, [2], (2.0,)),
            (sf.Symbol, sf.sqrt(4), (2.0,)),
            (sf.V3, sf.V3(1, 2, 3), (1.0, 2.0, 3.0)),
            (Point, sf.V3(1, 2, sf.pi), (1.0, 2.0, np.pi)),
            (sf.V3, (1, 2.5, sf.S(3)), (1.0, 2.5, 3.0)),
            (sf.V3, np.arange(3), (0.0, 1.0, 2.0)),
            (sf.Rot3, sf.Rot3.identity(), (0.0, 0.0, 0.0, 1.0)),
            (sf.Rot3, (0, 0, 0, 1), (0.0, 0.0, 0.0, 1.0)),
            (Pose, sf.Pose3.identity(), (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)),
            (sf.M23, sf.M23([[1, 2, 3], [4, 5, 6]]), (1.0, 4.0, 2.0, 5.0, 3.0, 6.0)),
            (
                Camera,
                Camera(sf.Pose3.identity(), sf.V2(8, 9)),
                (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 8.0, 9.0),
            ),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_values_become_scalars(
        self, declared: Any, given: Any, scalars: tuple[float, ...]
    ) -> None:
        def copied(x: Any) -> Any:
            return x

        copied.__annotations__ = {
            "x": Annotated[declared, ReadStridedWithDefault(given)],
            "return": Annotated[declared, WriteSequential],
        }
        (argument,) = traced(copied).inputs
        assert argument.access == ReadStridedWithDefault(scalars)
        assert argument.parts[0].access == argument.access

        def first(x: Any) -> Any:
            return x[0]

        first.__annotations__ = {
            "x": Annotated[caspar.Pair[declared], ReadPairStridedWithDefault(given)],
            "return": Annotated[declared, WriteSequential],
        }
        (argument,) = traced(first).inputs
        assert [part.access for part in argument.parts] == [
            ReadPairStridedWithDefault(scalars, successor=False),
            ReadPairStridedWithDefault(scalars, successor=True),
        ]

    def test_the_key_knows_them(self) -> None:
        def key(default: Any) -> str:
            def copied(x: Any) -> Annotated[sf.Symbol, WriteSequential]:
                return x

            copied.__annotations__["x"] = Annotated[sf.Symbol, ReadStridedWithDefault(default)]
            return traced(copied).key

        assert key(1) == key(1.0)
        assert key(1) != key(1 + 1e-12)


class Strict:
    """An array of which only the type may be looked at."""

    def __dlpack__(self) -> None:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError

    def __getitem__(self, key: object) -> None:
        raise AssertionError


@dataclass
class Holder:
    """Not a storage type, but a dataclass."""

    values: Any


class TestIsSymbolic:
    @pytest.mark.parametrize(
        "value",
        [
            sf.Symbol("x"),
            sf.Symbol("x") + 1,
            sf.S(1),
            sf.Symbol("x") < 1,
            sympy.Symbol("x"),
            sf.V3(1, 2, 3),
            sf.Matrix(10, 1),
            Point.symbolic("p"),
            sf.Rot3.identity(),
            Pose.identity(),
            sf.LinearCameraCal.symbolic("c"),
            Camera(sf.Pose3.identity(), sf.V2()),
            caspar.Pair((sf.V3(), sf.V3())),
            Result(sf.Symbol("x"), 1.0),
            [sf.V3(), sf.V3()],
            [0.0, [1.0, sf.Symbol("x")]],
            (1.0, Camera(sf.Pose3.identity(), sf.V2())),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_a_function_works_on(self, value: Any) -> None:
        assert is_symbolic(value)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            1,
            2.5,
            True,
            np.float32(1),
            "text",
            np.zeros(3),
            np.array([sf.Symbol("x")]),
            Strict(),
            Holder(np.zeros(3)),
            {"values": sf.V3()},
            [],
            [1.0, 2.0],
            [np.zeros(3)],
            caspar.Pair((np.zeros(3), np.zeros(3))),
            object(),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_a_kernel_runs_over(self, value: Any) -> None:
        assert not is_symbolic(value)

    def test_every_argument_while_a_function_is_traced(self) -> None:
        seen: list[bool] = []

        def look(
            a: Annotated[sf.Symbol, ReadSequential],
            b: Annotated[caspar.Pair[Pose], ReadPair],
            c: Annotated[Camera, ReadUnique],
            d: Annotated[sf.M23, ReadUnique],
        ) -> Annotated[sf.Symbol, WriteSum]:
            seen.extend(map(is_symbolic, (a, b, c, d)))
            return a

        traced(look)
        assert seen == [True] * 4
