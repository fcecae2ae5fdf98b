"""One bundle adjustment in several processes, each with a GPU, or a share of the processor.

Each process makes its part of the observations, here of a synthetic scene, and gets all values:

    torchrun --nproc-per-node 2 examples/several_processes.py
    mpirun -n 2 python examples/several_processes.py
    sbatch examples/several_processes.sbatch
"""

import argparse

import numpy as np

import caspar
from caspar.bundle_adjustment import snavely
from caspar.solver.limits import Limits

CAMERAS = 12


def scene(points: int, rank: int, size: int) -> dict[str, object]:
    """Nodes, the same on all ranks, and the observations of every `size`th point."""
    random = np.random.default_rng(0)
    angle = np.arange(CAMERAS) * (2.0 * np.pi / CAMERAS)
    cams = np.zeros((CAMERAS, 10))
    cams[:, 1], cams[:, 3] = np.sin(angle / 2.0), np.cos(angle / 2.0)
    cams[:, 6], cams[:, 7] = -4.0, 500.0
    places = random.uniform(-1.0, 1.0, (points, 3))
    own = np.arange(rank, points, size)
    cam, point = np.tile(np.arange(CAMERAS), len(own)), np.repeat(own, CAMERAS)
    pixel = _pixels(cams[cam], places[point])
    cams[:, 4:7] += 0.01 * random.standard_normal((CAMERAS, 3))
    places += 0.02 * random.standard_normal(places.shape)
    return {
        "Cam": cams,
        "Point": places,
        "snavely": {"cam": cam, "point": point, "pixel": pixel},
    }


def _pixels(cams: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Where cameras without distortion see points."""
    vector, scalar = cams[:, :3], cams[:, 3:4]
    turned = 2.0 * np.cross(vector, points)
    seen = points + scalar * turned + np.cross(vector, turned) + cams[:, 4:7]
    pixels: np.ndarray = -cams[:, 7:8] * seen[:, :2] / seen[:, 2:]
    return pixels


def main() -> None:
    """Solve, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    ranks = caspar.distributed.init()
    # however small, for this example: the usual limits leave small problems to one rank
    limits = Limits(min_instances_of_device=0)
    solver = caspar.Solver([snavely], backend=arguments.backend, devices=ranks, limits=limits)
    arrays = scene(arguments.points, ranks.rank, ranks.size)
    for _ in range(2):
        result = solver.solve(arrays)
    if ranks.rank == 0:
        print(result)
    print(f"rank {ranks.rank} of {ranks.size}: cost {result.final_cost:.3g}, {result.device}")


if __name__ == "__main__":
    main()
