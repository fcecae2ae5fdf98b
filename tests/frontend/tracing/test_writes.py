"""Functions that write into their arguments: what they return is what Python gives on numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from symforce.ops import StorageOps

import caspar
from caspar.frontend.factors.trace import factor_comparison, trace
from caspar.frontend.kernels.trace import KernelFunction, kernel_comparison, trace_kernel
from caspar.frontend.tracing.code_digest import UserCode
from caspar.frontend.tracing.on_numbers import compare_with_numbers
from caspar.memory.patterns import ReadPair, ReadSequential, WriteSequential
from tests.frontend.evaluating import lowered


@dataclass
class Camera:
    """A dataclass with fields that a function may rebind or write into."""

    pose: sf.Pose3
    focal: sf.V2


X = Annotated[sf.V2, caspar.TunableShared]
M = Annotated[sf.V2, caspar.ConstSequential]
Indexed = Annotated[sf.V2, caspar.ConstIndexed]
Pose = Annotated[sf.Pose3, caspar.TunableShared]
Cam = Annotated[Camera, caspar.TunableShared]
Two = Annotated[caspar.Pair[sf.V2], caspar.TunablePair]


def swaps(x: X, m: M) -> sf.V2:
    m[0], m[1] = m[1], m[0]
    return x - m


def adds_through_another_name(x: X, m: M) -> sf.V2:
    p = x
    p[0] += m[0]
    return p + x


def copies_an_element(x: X, m: M) -> sf.V2:
    x[1] = x[0]
    return x - m


def scales_in_place(x: X, m: Indexed) -> sf.V2:
    m[0] *= 2
    x[0] = 3
    x *= 2
    return x - m


def writes_into_a_translation(x: X, pose: Pose) -> sf.V3:
    pose.t[0] = x[0]
    return pose.t + pose.R * sf.V3(1, 2, 3)


def replaces_a_rotation(x: X, pose: Pose) -> sf.V3:
    pose.R = pose.R.inverse()
    return pose * sf.V3(x[0], x[1], 1)


def rebinds_fields(cam: Cam, m: M) -> sf.V2:
    cam.focal = m
    cam.focal[0] = cam.pose.t[2]
    cam.pose.t = sf.V3(m[1], 0, 0)
    return cam.focal + sf.V2(cam.pose.t[0], m[0])


def mixes_a_pair(p: Two, m: M) -> sf.V2:
    p[0][0], p[1][0] = p[1][1], p[0][1]
    return p[1] - 2 * p[0] + m


FUNCTIONS = (
    swaps,
    adds_through_another_name,
    copies_an_element,
    scales_in_place,
    writes_into_a_translation,
    replaces_a_rotation,
    rebinds_fields,
    mixes_a_pair,
)


def on_numbers(function: Callable[..., Any], types: Mapping[str, Any], point: Any) -> list[float]:
    """What Python gives: the function on SymForce's types with numbers in them."""
    values: dict[str, Any] = {}
    start = 0
    for name, declared in types.items():
        halves = []
        for kind in declared:
            stop = start + StorageOps.storage_dim(kind)
            halves.append(StorageOps.from_storage(kind, list(map(sf.S, point[start:stop]))))
            start = stop
        values[name] = halves[0] if len(halves) == 1 else caspar.Pair(halves)
    return [float(row) for row in function(**values)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_factor_is_what_python_gives(function: Callable[..., Any]) -> None:
    factor = caspar.factor(function)
    traced = trace(factor)
    types: dict[str, list[Any]] = {}
    for argument in traced.arguments:
        types.setdefault(argument.source, []).append(type(argument.symbolic))
    names = [str(symbol) for argument in traced.arguments for symbol in argument.symbols]
    assert len(set(names)) == len(names) == sum(one.storage_dim for one in traced.arguments)
    point = np.random.default_rng(3).normal(size=len(names))
    (found,) = lowered(list(traced.residual), names, point[None])
    assert found == pytest.approx(on_numbers(function, types, point.tolist()))
    assert compare_with_numbers(factor_comparison(factor, traced), UserCode()) > 0


def test_a_solve_finds_the_swapped_measurement() -> None:
    class Spot(sf.V2): ...

    def swapped(
        x: Annotated[Spot, caspar.TunableShared], m: Annotated[sf.V2, caspar.ConstSequential]
    ) -> sf.V2:
        m[0], m[1] = m[1], m[0]
        return x - m

    arrays = {
        "Spot": np.zeros((1, 2)),
        "swapped": {"x": np.array([0]), "m": np.array([[1.0, 2.0]])},
    }
    solver = caspar.Solver([caspar.factor(swapped)], backend="cpu", precision="float64")
    assert solver.solve(arrays).values["Spot"][0] == pytest.approx([2.0, 1.0])


In = Annotated[sf.V2, ReadSequential]
Out = Annotated[sf.V2, WriteSequential]


def kernel_swaps(m: In) -> Out:
    m[0], m[1] = m[1], m[0]
    return m


def kernel_mixes_a_pair(p: Annotated[caspar.Pair[sf.V2], ReadPair], m: In) -> Out:
    p[0][1] = m[0]
    m[0] = p[1][0]
    return p[0] + m


@pytest.mark.parametrize("function", [kernel_swaps, kernel_mixes_a_pair])
def test_a_kernel_is_what_python_gives(function: Callable[..., Any]) -> None:
    kernel = KernelFunction(function, function.__name__, {})
    traced = trace_kernel(kernel)
    names = [str(symbol) for one in traced.inputs for part in one.parts for symbol in part.symbols]
    types = {one.name: [sf.V2] * len(one.parts) for one in traced.inputs}
    point = np.random.default_rng(3).normal(size=len(names))
    (found,) = lowered(list(traced.outputs[0].rows), names, point[None])
    assert found == pytest.approx(on_numbers(function, types, point.tolist()))
    assert compare_with_numbers(kernel_comparison(kernel, traced), UserCode()) > 0


def test_a_kernel_called_with_arrays() -> None:
    swapped = caspar.kernel(backend="cpu")(kernel_swaps)
    assert np.array_equal(swapped(m=np.array([[1.0, 2.0], [3.0, 4.0]])), [[2.0, 1.0], [4.0, 3.0]])
