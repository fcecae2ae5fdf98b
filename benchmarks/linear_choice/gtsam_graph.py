"""Seconds an iteration of GTSAM's Levenberg-Marquardt on a pose graph in space.

`measure` starts `python -m benchmarks.linear_choice.gtsam_graph GRAPH.npz` in the Python that has
GTSAM; that prints the version and seconds of each iteration as JSON.
"""

import importlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

ROOT = Path(__file__).parents[2]
NUM_ITERATIONS = 6
ORDERINGS = ("COLAMD", "METIS")


@dataclass(frozen=True)
class GraphRun:
    """What GTSAM took.

    Attributes:
        problem: Name of the graph.
        version: Of GTSAM.
        iteration_s: Seconds of its quickest iteration, by any ordering.
    """

    problem: str
    version: str
    iteration_s: float


def measure(name: str, graph: Any, weights: Any, python: Path, folder: Path) -> GraphRun:
    """Measure in a process of its own.

    Args:
        name: Of the graph.
        graph: A `caspar.io.PoseGraph` of poses in space.
        weights: (num_edges, 6, 6) square roots of the information, translation first.
        python: Interpreter that has GTSAM.
        folder: For the graph's file.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    path = folder / "graph.npz"
    np.savez(
        path,
        poses=graph.poses,
        start=graph.index_a,
        end=graph.index_b,
        motion=graph.measurement,
        weights=weights,
    )
    command = [str(python), "-m", "benchmarks.linear_choice.gtsam_graph", str(path)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return GraphRun(name, found["version"], min(found["seconds"]))


def main(path: str) -> None:
    """Iterate, and print the seconds."""
    gtsam: Any = importlib.import_module("gtsam")
    metadata: Any = importlib.import_module("importlib.metadata")
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()

    def pose(row: Any) -> Any:
        return gtsam.Pose3(gtsam.Rot3(Rotation.from_quat(row[:4]).as_matrix()), row[4:])

    for number, row in enumerate(arrays["poses"]):
        values.insert(number, pose(row))
    # GTSAM has the rotation first
    turned = np.roll(np.roll(arrays["weights"], 3, axis=1), 3, axis=2)
    edges = zip(arrays["start"], arrays["end"], arrays["motion"], turned, strict=True)
    for start, end, motion, weight in edges:
        noise = gtsam.noiseModel.Gaussian.Information(weight.T @ weight)
        graph.add(gtsam.BetweenFactorPose3(int(start), int(end), pose(motion), noise))
    held = gtsam.noiseModel.Isotropic.Sigma(6, 1e-3)
    graph.add(gtsam.PriorFactorPose3(0, pose(arrays["poses"][0]), held))
    seconds = []
    for ordering in ORDERINGS:
        parameters = gtsam.LevenbergMarquardtParams.CeresDefaults()
        parameters.setOrderingType(ordering)
        optimizer = gtsam.LevenbergMarquardtOptimizer(graph, values, parameters)
        for _ in range(NUM_ITERATIONS):
            begin = time.perf_counter()
            optimizer.iterate()
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"version": metadata.version("gtsam"), "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
