"""Kernel functions of many signatures, traced and evaluated: what tests of tracing share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.frontend.kernels.trace import KernelFunction, TracedKernel, trace_kernel
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import WriteAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddPair,
    AddSharedSum,
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteIndexed,
    WritePair,
    WriteSequential,
    WriteSum,
)

Array = NDArray[Any]
DTYPES = (DType.FLOAT32, DType.FLOAT64)
Scalar = Annotated[sf.Symbol, ReadSequential]


class Point(sf.V3): ...


class Pose(sf.Pose3): ...


@dataclass
class Camera:
    pose: sf.Pose3
    lens: sf.V2


class Split(NamedTuple):
    """Outputs with names."""

    length: Annotated[sf.Symbol, WriteSequential]
    direction: Annotated[sf.Unit3, WriteIndexed]


def traced(function: Callable[..., Any], **local_names: Any) -> TracedKernel:
    return trace_kernel(KernelFunction(function, function.__name__, local_names))


def own_writes(kernel: TracedKernel) -> dict[str, WriteAccessor]:
    """What the kernel itself writes."""
    return {one.name: one.access.in_kernel({}, False) for one in kernel.outputs}


def plain_writes(kernel: TracedKernel) -> dict[str, WriteAccessor]:
    """All scalars of an output in a row: what the evaluator shows without a loss."""
    return {one.name: WriteSequential() for one in kernel.outputs}


def polar(
    angle: Scalar, radius: Annotated[sf.Scalar, ReadUnique]
) -> Annotated[sf.V2, WriteSequential]:
    return sf.V2(radius * sf.cos(angle), radius * sf.sin(angle))


def product(a: Annotated[float, ReadSequential], b: Scalar) -> Annotated[sf.Symbol, WriteSum]:
    return a * b + 2


def constant(
    a: Scalar,
) -> tuple[
    Annotated[float, WriteSequential], Annotated[sf.V2, WriteSequential], Annotated[int, WriteSum]
]:
    return 3, [a, 0.5], np.float32(1.5)  # type: ignore[return-value]


def moved(
    pose: Annotated[Pose, ReadShared()], point: Annotated[Point, ReadSequential]
) -> Annotated[Point, WriteSequential]:
    return pose * point  # type: ignore[no-any-return]


def composed(
    a: Annotated[sf.Pose3, ReadSequential], b: Annotated[Pose, ReadIndexed]
) -> Annotated[Pose, WriteSequential]:
    return a * b  # type: ignore[no-any-return]


def relative(pair: Annotated[caspar.Pair[Pose], ReadPair]) -> Annotated[sf.Pose3, WriteSequential]:
    return pair[0].inverse() * pair[1]


def pulled(
    pair: Annotated[caspar.Pair[Point], ReadPair], scale: Annotated[sf.V1, ReadUnique]
) -> Annotated[caspar.Pair[Point], WritePair]:
    force = scale[0] * (pair[1] - pair[0])
    return caspar.Pair((force, -force))


def pushed(scale: Scalar) -> Annotated[caspar.Pair[sf.Symbol], AddPair]:
    return scale, -scale  # type: ignore[return-value]


def projected(
    camera: Annotated[Camera, ReadShared], point: Annotated[sf.V3, ReadShared]
) -> tuple[Annotated[sf.V2, WriteSequential], Annotated[Camera, AddSharedSum]]:
    local = camera.pose * point
    pixel = camera.lens[0] * sf.V2(local[0] / local[2], local[1] / local[2])
    return pixel, Camera(camera.pose.inverse(), camera.lens * 2)


def split(point: Annotated[sf.V3, ReadSequential]) -> Split:
    length = point.norm()
    return Split(length, sf.Unit3.from_vector(point))


def transposed(
    a: Annotated[sf.M23, ReadSequential], b: Annotated[sf.M33, ReadUnique]
) -> tuple[Annotated[sf.M32, WriteSequential], Annotated[sf.M13, WriteSequential]]:
    return (a * b).T, [b[0, 0], b[1, 0], b[0, 1]]


def turned(
    angle: Scalar, frame: Annotated[sf.Pose2, ReadSequential]
) -> tuple[Annotated[sf.Rot2, WriteSequential], Annotated[sf.Rot3, WriteSequential]]:
    turn = sf.Rot2.from_tangent([angle])
    return frame.R * turn, sf.Rot3.from_yaw_pitch_roll(angle, 0, 0)


KERNELS = (
    polar, product, constant, moved, composed, relative, pulled, pushed, projected, split,
    transposed, turned,
)  # fmt: skip


def graph_outputs(spec: KernelSpec, rows: Mapping[str, Array]) -> dict[str, Array]:
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, rows, lengths)
