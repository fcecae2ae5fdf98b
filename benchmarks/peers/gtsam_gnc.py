"""GTSAM's graduated non-convexity: `python gtsam_gnc.py IN.npz OUT.npz`.

Input of a registration: `here`, `there`, (m, 3), `sigma` and the `start`, qx qy qz qw x y z. Of a
pose graph in the plane: `poses`, (n, 3) x y angle, `index_a`, `index_b`, `measured`, (m, 3),
`information`, `prior_sigmas` and `known`, edges that are right. Of both `probability`. Output:
`values`, `weights` of the m matches or edges, `seconds`.
"""

import importlib
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def solve(
    gtsam: Any, graph: Any, values: Any, known: Any, probability: float
) -> tuple[Any, Floats, float]:
    """Values, weights and seconds of a truncated least-squares solve."""
    parameters = gtsam.GncLMParams(gtsam.LevenbergMarquardtParams())
    parameters.setLossType(gtsam.GncLossType.TLS)
    parameters.setKnownInliers(known)
    start = time.perf_counter()
    optimizer = gtsam.GncLMOptimizer(graph, values, parameters)
    optimizer.setInlierCostThresholdsAtProbability(probability)
    found = optimizer.optimize()
    return found, np.array(optimizer.getWeights()), time.perf_counter() - start


def registered(gtsam: Any, arrays: Any) -> tuple[Floats, Floats, float]:
    """The motion between two clouds."""
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    noise = gtsam.noiseModel.Isotropic.Sigma(3, float(arrays["sigma"]))

    for here, there in zip(arrays["here"], arrays["there"], strict=True):
        # a receiver on an arm: pose * here - there
        graph.add(gtsam.GPSFactorArm(0, there, here, noise))
    row = arrays["start"]
    values.insert(0, gtsam.Pose3(gtsam.Rot3(row[3], *row[:3]), row[4:]))
    found, weights, seconds = solve(gtsam, graph, values, [], float(arrays["probability"]))
    pose = found.atPose3(0)
    turn = pose.rotation().toQuaternion()
    numbers = [turn.x(), turn.y(), turn.z(), turn.w(), *pose.translation()]
    return np.array([numbers]), weights, seconds


def adjusted(gtsam: Any, arrays: Any) -> tuple[Floats, Floats, float]:
    """A pose graph in the plane; the prior stands last."""
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for number, row in enumerate(arrays["poses"]):
        values.insert(number, gtsam.Pose2(*row))
    edges = zip(arrays["index_a"], arrays["index_b"], arrays["measured"], strict=True)
    for (a, b, measured), information in zip(edges, arrays["information"], strict=True):
        noise = gtsam.noiseModel.Gaussian.Information(information)
        graph.add(gtsam.BetweenFactorPose2(int(a), int(b), gtsam.Pose2(*measured), noise))
    noise = gtsam.noiseModel.Diagonal.Sigmas(arrays["prior_sigmas"])
    graph.add(gtsam.PriorFactorPose2(0, gtsam.Pose2(*arrays["poses"][0]), noise))
    known = [*map(int, arrays["known"]), graph.size() - 1]
    found, weights, seconds = solve(gtsam, graph, values, known, float(arrays["probability"]))
    poses = [found.atPose2(number) for number in range(len(arrays["poses"]))]
    rows = [[pose.x(), pose.y(), pose.theta()] for pose in poses]
    return np.array(rows), weights[:-1], seconds


def main() -> None:
    """Read, solve, write."""
    gtsam: Any = importlib.import_module("gtsam")
    arrays = np.load(sys.argv[1])
    found = registered(gtsam, arrays) if "here" in arrays else adjusted(gtsam, arrays)
    values, weights, seconds = found
    np.savez(sys.argv[2], values=values, weights=weights, seconds=seconds)


if __name__ == "__main__":
    main()
