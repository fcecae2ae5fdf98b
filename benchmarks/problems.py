"""The problems that are measured."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic import make_like
from caspar.io import read_bal

DATA = Path(__file__).parents[1] / "data"


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

    def cost(self, cameras: NDArray[np.float64], points: NDArray[np.float64]) -> float:
        """1/2 * sum of squared residuals in float64, independent of any solver.

        Args:
            cameras: (num_cameras, 10).
            points: (num_points, 3).
        """
        camera = cameras[self.camera_index]
        # a quaternion may have drifted from unit length: the model rotates by q p q*
        vector, real = camera[:, :3], camera[:, 3:4]
        point = points[self.point_index]
        across = 2.0 * np.cross(vector, point)
        seen = point + real * across + np.cross(vector, across) + camera[:, 4:7]
        image = -seen[:, :2] / seen[:, 2:3]
        square = (image**2).sum(axis=1, keepdims=True)
        radial = 1.0 + camera[:, 8:9] * square + camera[:, 9:10] * square**2
        residual = camera[:, 7:8] * radial * image - self.pixels
        return 0.5 * float((residual**2).sum())


def _real(name: str, optimum: float) -> Bundle:
    problem = read_bal(DATA / f"{name}-pre.txt.bz2")
    return Bundle(
        name,
        problem.cameras,
        problem.points,
        problem.camera_index,
        problem.point_index,
        problem.pixels,
        optimum,
    )


def _synthetic(size: str) -> Bundle:
    made = make_like(size)
    return Bundle(
        f"synthetic {size}",
        made.cameras,
        made.points,
        np.asarray(made.camera_index, dtype=np.int32),
        np.asarray(made.point_index, dtype=np.int32),
        made.pixels,
        None,
    )


PROBLEMS: dict[str, Callable[[], Bundle]] = {
    "trafalgar-21": lambda: _real("problem-21-11315", 30378.636),
    "ladybug-49": lambda: _real("problem-49-7776", 13344.241),
    "synthetic ladybug-1723": lambda: _synthetic("ladybug-1723"),
}
"""Problems by name; made when called."""
