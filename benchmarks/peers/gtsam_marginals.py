"""GTSAM's marginal covariances of a pose graph: `python gtsam_marginals.py IN.npz OUT.npz`.

Input: `poses`, `index_a`, `index_b`, `measured`, `information` in the order of GTSAM's tangents,
and `prior_sigmas` of the first pose. Output: `covariances`, in the same order, and `seconds`. Poses
are (n, 3) x y angle, or (n, 7) qx qy qz qw x y z.
"""

import importlib
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray


def marginals(arrays: Any) -> tuple[NDArray[np.float64], float]:
    """The covariance of each pose, and seconds with what GTSAM needs for it."""
    gtsam: Any = importlib.import_module("gtsam")
    is_flat = arrays["poses"].shape[1] == 3
    between = gtsam.BetweenFactorPose2 if is_flat else gtsam.BetweenFactorPose3
    prior = gtsam.PriorFactorPose2 if is_flat else gtsam.PriorFactorPose3

    def pose(row: Any) -> Any:
        if is_flat:
            return gtsam.Pose2(*row)
        return gtsam.Pose3(gtsam.Rot3(row[3], *row[:3]), row[4:])

    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for number, row in enumerate(arrays["poses"]):
        values.insert(number, pose(row))
    edges = zip(arrays["index_a"], arrays["index_b"], arrays["measured"], strict=True)
    for (a, b, measured), information in zip(edges, arrays["information"], strict=True):
        noise = gtsam.noiseModel.Gaussian.Information(information)
        graph.add(between(int(a), int(b), pose(measured), noise))
    noise = gtsam.noiseModel.Diagonal.Sigmas(arrays["prior_sigmas"])
    graph.add(prior(0, pose(arrays["poses"][0]), noise))
    start = time.perf_counter()
    found = gtsam.Marginals(graph, values)
    blocks = [found.marginalCovariance(number) for number in range(len(arrays["poses"]))]
    return np.array(blocks), time.perf_counter() - start


def main() -> None:
    """Read, find, write."""
    blocks, seconds = marginals(np.load(sys.argv[1]))
    np.savez(sys.argv[2], covariances=blocks, seconds=seconds)


if __name__ == "__main__":
    main()
