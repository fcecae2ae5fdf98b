"""Rotation averaging: rotations of all frames from relative rotations of pairs of images.

Input: a `pycolmap.PoseGraph` and a `pycolmap.Reconstruction`. Output: frames of the reconstruction
with rotations and without positions. Pairs whose relative rotation is wrong are expected: a sum of
lengths (Huber's loss with a small scale) brings all rotations near the truth from those along a
tree of the pairs with the most matches, and the loss of Geman and McClure then forgets the wrong
ones, as in Chatterjee and Govindu, 2018. Only `caspar.colmap.mapping` and the global mapper import
this module: it needs pycolmap.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from caspar.colmap.arguments import options_given
from caspar.errors import MissingPackageError, OptionError
from caspar.factors import between
from caspar.io.rotations import conjugate, multiply
from caspar.loss import GemanMcClure, Huber, Loss
from caspar.options import BackendChoice, BackendName
from caspar.progress import phase
from caspar.solver.solver import Solver

try:
    import pycolmap
except ImportError as error:
    raise MissingPackageError("caspar.colmap's mapper", "pycolmap", "colmap") from error

LENGTH_SCALE = math.radians(0.1)
"""Residuals above it cost their length, below it their square: a noise that rotations have."""

ITERATIONS = 30
"""Iteration limit of the first solve, of the sum of lengths: it need not converge."""

Floats = NDArray[np.float64]


def average(
    options: Any,
    pose_graph: Any,
    reconstruction: Any,
    pose_priors: Sequence[Any],
    backend: BackendName | BackendChoice,
) -> bool:
    """See `caspar.colmap.rotation_averaging`."""
    chosen = options_given(options, pycolmap.RotationEstimatorOptions)
    if chosen.weight_type != pycolmap.RotationWeightType.GEMAN_MCCLURE:
        raise OptionError(f"weight_type={chosen.weight_type.name}: only GEMAN_MCCLURE is supported")
    if chosen.use_gravity or any(pose is None for pose in sensor_poses(reconstruction)):
        return bool(
            pycolmap.run_rotation_averaging(chosen, pose_graph, reconstruction, list(pose_priors))
        )
    frames = pose_graph.largest_connected_frame_component(
        reconstruction, chosen.filter_unregistered
    )
    if len(frames) == 0:
        return False
    _keep_pairs_of(pose_graph, reconstruction, frames)
    pairs = _Pairs(pose_graph, reconstruction, sorted(frames))
    rotations = _averaged(pairs, chosen, backend)
    nowhere = np.full(3, np.nan)
    for frame_id, rotation in zip(pairs.frames, rotations, strict=True):
        frame = reconstruction.frame(frame_id)
        frame.rig_from_world = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), nowhere)
        reconstruction.register_frame(frame_id)
    if chosen.max_rotation_error_deg > 0:
        return _drop_wrong(pairs, rotations, chosen, pose_graph, reconstruction)
    return True


def sensor_poses(reconstruction: Any) -> list[Any]:
    """Poses of cameras in their rigs but for the first of each; None where one is unknown."""
    return [
        pose
        for rig in reconstruction.rigs.values()
        for sensor, pose in rig.non_ref_sensors.items()
        if sensor.type == pycolmap.SensorType.CAMERA
    ]


def _keep_pairs_of(pose_graph: Any, reconstruction: Any, frames: set[int]) -> None:
    images = {one for one, image in reconstruction.images.items() if image.frame_id in frames}
    pose_graph.invalidate_pairs_outside_active_image_ids(images)


class _Pairs:
    """The valid pairs of images of different frames, (m,).

    `first` and `second` are rows of their frames, `second_from_first` relative rotations of the
    frames, x y z w, and `counts` matches.
    """

    def __init__(self, pose_graph: Any, reconstruction: Any, frames: Sequence[int]) -> None:
        rows = {frame_id: row for row, frame_id in enumerate(frames)}
        ids, ends, measured, sensors, counts = [], [], [], [], []
        images = {
            one: (rows[image.frame_id], _sensor_rotation(image))
            for one, image in reconstruction.images.items()
            if image.frame_id in rows
        }
        for pair_id, edge in pose_graph.edges.items():
            one, other = pycolmap.pair_id_to_image_pair(pair_id)
            if not edge.valid or one not in images or other not in images:
                continue
            if images[one][0] == images[other][0]:
                continue
            ids.append(pair_id)
            ends.append((images[one][0], images[other][0]))
            sensors.append((images[one][1], images[other][1]))
            measured.append(edge.cam2_from_cam1.rotation.quat)
            counts.append(edge.num_matches)
        self.frames = list(frames)
        self.ids = ids
        self.first, self.second = np.array(ends, np.int64).reshape(-1, 2).T
        turns = np.array(sensors, np.float64).reshape(-1, 2, 4)
        self.second_from_first = multiply(
            conjugate(turns[:, 1]),
            multiply(np.array(measured, np.float64).reshape(-1, 4), turns[:, 0]),
        )
        self.counts = np.array(counts, np.float64)

    def errors(self, rotations: Floats) -> Floats:
        """Angles between measured and averaged relative rotations, in radians: (m,)."""
        averaged = multiply(rotations[self.second], conjugate(rotations[self.first]))
        gap = multiply(averaged, conjugate(self.second_from_first))
        sine: Floats = np.linalg.norm(gap[:, :3], axis=1)
        return 2.0 * np.arctan2(sine, np.abs(gap[:, 3]))

    def along_a_tree(self) -> Floats:
        """Rotations that agree with the pairs of a tree, those with the most matches: (n, 4)."""
        num = len(self.frames)
        # of several pairs of the same frames the one with the most matches
        order = np.argsort(self.counts, kind="stable")
        best = {
            (int(one), int(other)): pair
            for pair, one, other in zip(order, self.first[order], self.second[order], strict=True)
        }
        ends = np.array(list(best)).reshape(-1, 2)
        costs = 1.0 / (1.0 + self.counts[list(best.values())])
        # SciPy 1.13 takes indices of 32 bits only
        first, second = ends.T.astype(np.int32)
        tree = minimum_spanning_tree(coo_array((costs, (first, second)), (num, num)))
        visited, parents = breadth_first_order(tree, 0, directed=False)
        rotations = np.tile([0.0, 0.0, 0.0, 1.0], (num, 1))
        for row in visited[1:].tolist():
            parent = int(parents[row])
            pair = best.get((parent, row))
            if pair is not None:
                step = self.second_from_first[pair]
            else:
                step = conjugate(self.second_from_first[best[row, parent]])
            rotations[row] = multiply(step[None], rotations[parent][None])[0]
        return rotations


def _sensor_rotation(image: Any) -> Floats:
    if image.is_ref_in_frame():
        return np.array([0.0, 0.0, 0.0, 1.0])
    found = image.frame.rig.sensor_from_rig(image.camera.sensor_id)
    return np.asarray(found.rotation.quat, np.float64)


def _averaged(pairs: _Pairs, options: Any, backend: BackendName | BackendChoice) -> Floats:
    is_by_matches = options.reweighting != pycolmap.RotationAveragingReweighting.UNIFORM
    weights = pairs.counts / pairs.counts.max() if is_by_matches else np.ones(len(pairs.ids))
    found = conjugate(pairs.along_a_tree())
    is_held = np.arange(len(found)) == 0
    steps: tuple[tuple[type[Loss], float, int], ...] = (
        (Huber, LENGTH_SCALE, ITERATIONS),
        (
            GemanMcClure,
            math.radians(options.irls_loss_parameter_sigma),
            options.max_num_irls_iterations,
        ),
    )
    for loss, scale, iterations in steps:
        with phase(f"averaging rotations of {len(found)} frames"):
            result = _solver(loss, backend).solve(
                {
                    "Rot3": found,
                    "relative": {
                        "a": pairs.second,
                        "b": pairs.first,
                        "a_from_b": pairs.second_from_first,
                        "weight": weights,
                        "loss_scale": scale,
                    },
                },
                fixed={"Rot3": is_held},
                max_iterations=iterations,
                verbose=False,
            )
        found = np.asarray(result.values["Rot3"])
    return conjugate(found)


@lru_cache(maxsize=4)
def _solver(loss: type[Loss], backend: BackendName | BackendChoice) -> Solver:
    factor = between(sf.Rot3, noise="unit", name="relative")
    return Solver(factor.with_loss(loss), backend=backend, precision="float64")


def _drop_wrong(
    pairs: _Pairs, rotations: Floats, options: Any, pose_graph: Any, reconstruction: Any
) -> bool:
    """Drop pairs with large errors and frames that are not connected without; whether any stay."""
    wrong = pairs.errors(rotations) > math.radians(options.max_rotation_error_deg)
    for place in np.flatnonzero(wrong).tolist():
        pose_graph.set_invalid_edge(pairs.ids[place])
    frames = pose_graph.largest_connected_frame_component(reconstruction, True)
    if len(frames) == 0:
        return False
    _keep_pairs_of(pose_graph, reconstruction, frames)
    for frame_id in list(reconstruction.reg_frame_ids()):
        if frame_id not in frames:
            reconstruction.deregister_frame(frame_id)
    return True
