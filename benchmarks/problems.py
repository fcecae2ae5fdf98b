"""The bundle adjustment problems that are measured: real files, stand-ins, and one that grows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic import bal_size, make_bal, make_like
from caspar.io import read_bal

DATA = Path(__file__).parents[1] / "data"
COST_CHUNK = 1 << 22
"""Observations evaluated at once."""

REAL = {
    "problem-21-11315": 30378.636,
    "problem-49-7776": 13344.241,
}
"""Files of `data/` and their best known costs."""

STAND_INS = (
    "trafalgar-257",
    "ladybug-1723",
    "dubrovnik-356",
    "venice-1778",
    "final-4585",
    "final-13682",
)
"""The paper's six, by size; made as `synthetic NAME`."""

GROWTH_MILLIONS = (0.7, 3.0, 10.0, 29.0, 100.0)
"""Million observations of the problem that grows: `growth MILLIONS`."""

_LARGEST_MADE = 29.0
"""Million observations that are made at once; more are several problems side by side."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle adjustment problem.

    Attributes:
        name: As in the tables.
        cameras: (num_cameras, 10) start values: qx qy qz qw tx ty tz f k1 k2.
        points: (num_points, 3) start values.
        camera_index: (num_observations,) int32.
        point_index: (num_observations,) int32.
        pixels: (num_observations, 2).
        optimum: Best known cost; None where no one knows.
    """

    name: str
    cameras: NDArray[np.float64]
    points: NDArray[np.float64]
    camera_index: NDArray[np.int32]
    point_index: NDArray[np.int32]
    pixels: NDArray[np.float64]
    optimum: float | None

    @property
    def num_observations(self) -> int:
        """Reprojection factors."""
        return int(self.pixels.shape[0])

    @property
    def num_reduced(self) -> int:
        """Cameras: what remains when the points are eliminated."""
        return len(self.cameras)

    @property
    def factors(self) -> list[Any]:
        """For `Solver`."""
        # SymForce takes a second to import, which making a problem should not
        from caspar.bundle_adjustment import snavely

        return [snavely]

    @property
    def arrays(self) -> dict[str, Any]:
        """As `Solver.solve` takes them."""
        return {
            "Cam": self.cameras,
            "Point": self.points,
            "snavely": {
                "cam": self.camera_index,
                "point": self.point_index,
                "pixel": self.pixels,
            },
        }

    def cost(
        self,
        cameras: NDArray[np.float64],
        points: NDArray[np.float64],
        library: ModuleType = np,
    ) -> float:
        """1/2 * sum of squared residuals in float64, independent of any solver.

        Args:
            cameras: (num_cameras, 10).
            points: (num_points, 3).
            library: NumPy, or CuPy to evaluate on the device.
        """
        xp: Any = library
        camera = xp.asarray(cameras, dtype=np.float64)
        point = xp.asarray(points, dtype=np.float64)
        total = 0.0
        for first in range(0, self.num_observations, COST_CHUNK):
            part = slice(first, first + COST_CHUNK)
            seeing = camera[xp.asarray(self.camera_index[part])]
            seen = point[xp.asarray(self.point_index[part])]
            residual = _projected(seeing, seen, xp) - xp.asarray(self.pixels[part])
            total += 0.5 * float((residual**2).sum())
        return total

    def cost_of(self, values: Mapping[str, Any], library: ModuleType) -> float:
        """`cost` of what `Solver.solve` returns."""
        return self.cost(values["Cam"], values["Point"], library)

    def num_behind(self) -> int:
        """Observations that start behind their camera."""
        total = 0
        for first in range(0, self.num_observations, COST_CHUNK):
            part = slice(first, first + COST_CHUNK)
            camera = self.cameras[self.camera_index[part]]
            seen = _in_camera(camera, self.points[self.point_index[part]], np)
            total += int((seen[:, 2] >= 0.0).sum())
        return total


def _in_camera(camera: Any, point: Any, xp: Any) -> Any:
    """Points (n, 3) in the coordinates of cameras (n, 10)."""
    # a quaternion may have drifted from unit length: the model rotates by q p q*
    vector, real = camera[:, :3], camera[:, 3:4]
    across = 2.0 * xp.cross(vector, point)
    return point + real * across + xp.cross(vector, across) + camera[:, 4:7]


def _projected(camera: Any, point: Any, xp: Any) -> Any:
    """Pixels (n, 2)."""
    seen = _in_camera(camera, point, xp)
    image = -seen[:, :2] / seen[:, 2:3]
    square = (image**2).sum(axis=1, keepdims=True)
    radial = 1.0 + camera[:, 8:9] * square + camera[:, 9:10] * square**2
    return camera[:, 7:8] * radial * image


def names() -> list[str]:
    """All real problems and stand-ins, by size."""
    return [*REAL, *(f"synthetic {name}" for name in STAND_INS)]


def num_observations(name: str) -> int:
    """Of a problem that is not made yet; 0 for a file."""
    kind, _, which = name.partition(" ")
    if kind == "synthetic":
        return bal_size(which).num_observations
    return round(1e6 * float(which)) if kind == "growth" else 0


def make(name: str) -> Bundle:
    """Read or make a problem.

    Raises:
        KeyError: No problem has this name.
    """
    kind, _, which = name.partition(" ")
    if kind == "growth":
        return _growing(name, float(which))
    if kind == "synthetic":
        return _from_arrays(name, make_like(which), None)
    return _from_arrays(name, read_bal(DATA / f"{name}-pre.txt.bz2"), REAL[name])


def _from_arrays(name: str, made: Any, optimum: float | None) -> Bundle:
    return Bundle(
        name,
        made.cameras,
        made.points,
        np.asarray(made.camera_index, dtype=np.int32),
        np.asarray(made.point_index, dtype=np.int32),
        made.pixels,
        optimum,
    )


def _growing(name: str, millions: float) -> Bundle:
    """A photo collection in the proportions of Final-13682, or several side by side."""
    if millions <= _LARGEST_MADE:
        size = bal_size("final-13682")
        share = 1e6 * millions / size.num_observations
        made = make_bal(
            max(round(share * size.num_cameras), 40),
            round(share * size.num_points),
            round(1e6 * millions),
            "photos",
        )
        return _from_arrays(name, made, None)
    whole = int(millions // _LARGEST_MADE)
    parts = [_growing(name, _LARGEST_MADE)] * whole
    rest = round(millions - whole * _LARGEST_MADE, 6)
    return side_by_side(name, parts if rest <= 0.0 else [*parts, _growing(name, rest)])


def side_by_side(name: str, parts: Sequence[Bundle]) -> Bundle:
    """One problem of several that share nothing."""
    cameras = np.cumsum([0, *(len(one.cameras) for one in parts)])
    points = np.cumsum([0, *(len(one.points) for one in parts)])
    return Bundle(
        name,
        np.concatenate([one.cameras for one in parts]),
        np.concatenate([one.points for one in parts]),
        np.concatenate(
            [one.camera_index + np.int32(at) for one, at in zip(parts, cameras, strict=False)]
        ),
        np.concatenate(
            [one.point_index + np.int32(at) for one, at in zip(parts, points, strict=False)]
        ),
        np.concatenate([one.pixels for one in parts]),
        None,
    )
