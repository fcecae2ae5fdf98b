"""`python -m benchmarks.startup_cases CASE BACKEND PRECISION`: one process to its first result.

Prints seconds as JSON: of imports, of the first iteration and the first solve counted from
`Solver(...)`, of all processor time meanwhile, of the iterations; then of a second solver of the
same factors with its solve.
"""

import argparse
import importlib
import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

_START = time.perf_counter()

import caspar

_IMPORT_CASPAR_S = time.perf_counter() - _START

import numpy as np
import symforce.symbolic as sf

ROOT = Path(__file__).parents[1]

BACKENDS = {"cpu": "caspar.runtime.cpu.backend", "cuda": "caspar.runtime.cuda.backend"}


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
    assert spec is not None and spec.loader is not None
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


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup_cases", description=__doc__)
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("backend", choices=tuple(BACKENDS))
    parser.add_argument("precision", choices=("auto", "mixed", "float32", "float64"))
    arguments = parser.parse_args()
    Solver = caspar.Solver
    importlib.import_module(BACKENDS[arguments.backend])
    imports_s = time.perf_counter() - _START
    case = CASES[arguments.case]()

    def first() -> tuple[float, float, float]:
        iterations: list[float] = []
        start = time.perf_counter()
        solver = Solver(case.factors, backend=arguments.backend, precision=arguments.precision)
        result = solver.solve(
            case.arrays,
            on_iteration=lambda _: iterations.append(time.perf_counter() - start),
            **case.options,
        )
        return iterations[0], time.perf_counter() - start, result.solve_time_s

    busy = time.process_time()
    first_iteration_s, first_solve_s, iterations_s = first()
    cpu_s = time.process_time() - busy
    _, second_s, second_iterations_s = first()
    measured = {
        "import caspar": _IMPORT_CASPAR_S,
        "imports": imports_s,
        "first iteration": first_iteration_s,
        "first solve": first_solve_s,
        "processor": cpu_s,
        "iterations": iterations_s,
        "second solver": second_s - second_iterations_s,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
