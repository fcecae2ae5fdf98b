"""Problems on which the time of a new process to its first result is measured."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar

ROOT = Path(__file__).parents[1]


class Curve(sf.V3):
    """Height, decay and offset."""


@caspar.factor
def curve(
    model: Annotated[Curve, caspar.TunableUnique],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """An exponential decay."""
    return sf.V1(model[0] * sf.exp(-model[1] * x[0]) + model[2] - y[0])


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        factors: Its factors.
        arrays: Its arrays.
        options: Of the solve.
    """

    factors: Any
    arrays: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def _bundle_adjustment() -> Case:
    problem = caspar.io.read_bal(ROOT / "data" / "problem-21-11315-pre.txt.bz2")
    observed = {
        "cam": problem.camera_index,
        "point": problem.point_index,
        "pixel": problem.pixels,
    }
    arrays = {"Cam": problem.cameras, "Point": problem.points, "snavely": observed}
    return Case([caspar.bundle_adjustment.snavely], arrays)


def _curve() -> Case:
    x = np.linspace(0.0, 4.0, 100)[:, None]
    y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.01 * np.random.default_rng(0).normal(size=x.shape)
    return Case([curve], {"Curve": np.ones((1, 3)), "curve": {"x": x, "y": y}})


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _calibration() -> Case:
    example = _example("camera_calibration")
    return Case(example.FACTORS, example.simulate(), {"max_iterations": 500})


def _inertial() -> Case:
    example = _example("inertial_navigation")
    return Case(example.FACTORS, example.simulate(), example.OPTIONS)


def _pose_graph() -> Case:
    example = _example("pose_graph")
    return Case(example.FACTORS, example.read())


CASES: Mapping[str, Callable[[], Case]] = {
    "bundle adjustment": _bundle_adjustment,
    "curve": _curve,
    "camera calibration": _calibration,
    "inertial navigation": _inertial,
    "pose graph": _pose_graph,
}
"""Trafalgar-21; a curve of three parameters; two cameras with OpenCV's rational model; a window of
inertial navigation; M3500."""
