"""The course of global mapping: all rotations, then all positions, then adjustments.

Input: a database and pycolmap's options. Output: models in a `pycolmap.ReconstructionManager`. The
order of steps and their thresholds are those of COLMAP's global pipeline, which was GLOMAP (Pan et
al., 2024), of version 4. Only `caspar.colmap.mapping` imports this module: it needs pycolmap.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from caspar.colmap.adjustment import adjust_in_place
from caspar.colmap.arguments import options_given, options_of
from caspar.colmap.averaging import average
from caspar.colmap.incremental import check_paths, naming, refine_everything
from caspar.colmap.mapping import Path
from caspar.colmap.model import Model
from caspar.colmap.positioning import position
from caspar.errors import MissingPackageError, warn_user
from caspar.options import BackendChoice, BackendName
from caspar.progress import phase
from caspar.solver.result.result import SolveStatus

try:
    import pycolmap
except ImportError as error:
    raise MissingPackageError("caspar.colmap's mapper", "pycolmap", "colmap") from error

ENOUGH_FOCAL_LENGTHS = 0.5
"""Share of cameras whose focal length is known, below which a warning is issued."""

WEAK = 10.0
"""Factor of `max_normalized_reproj_error` right after positioning."""

FEW_CHANGES = 1e-3
"""Share of points that filters take, below which they take the next threshold."""

MAX_REFINEMENTS, REFINEMENT_CHANGE = 5, 5e-4
"""Limits of the adjustments after tracks are triangulated anew: their number, and the share of
changed observations below which they end."""

REFINEMENT_ITERATIONS = 50

_NO_MOTION = (
    pycolmap.TwoViewGeometryConfiguration.UNDEFINED,
    pycolmap.TwoViewGeometryConfiguration.DEGENERATE,
    pycolmap.TwoViewGeometryConfiguration.WATERMARK,
    pycolmap.TwoViewGeometryConfiguration.MULTIPLE,
)
"""Pairs of images from which no relative pose can be derived."""

ErrorType = pycolmap.ReprojectionErrorType


def models_of(
    database_path: Path,
    image_path: Path,
    output_path: Path,
    options: Any,
    backend: BackendName | BackendChoice,
) -> dict[int, Any]:
    """See `caspar.colmap.global_mapping`."""
    chosen = options_given(options, pycolmap.GlobalPipelineOptions)
    reads_images = os.fspath(image_path) != ""
    check_paths(database_path, image_path, reads_images, None)
    limits = pycolmap.DatabaseCacheOptions()
    limits.min_num_matches = chosen.min_num_matches
    limits.ignore_watermarks = chosen.ignore_watermarks
    limits.image_names = set(chosen.image_names)
    with naming("database_path", database_path), pycolmap.Database.open(database_path) as database:
        cache = pycolmap.DatabaseCache.create(database, limits)
    _warn_of_focal_lengths(cache)
    os.makedirs(output_path, exist_ok=True)
    models = pycolmap.ReconstructionManager()
    try:
        _make_models(cache, chosen, models, backend)
        for number in range(models.size()):
            if reads_images:
                models.get(number).extract_colors_for_all_images(image_path)
    finally:
        models.write(output_path)
    return {number: models.get(number) for number in range(models.size())}


def _warn_of_focal_lengths(cache: Any) -> None:
    known = [one.has_prior_focal_length for one in cache.cameras.values()]
    if len(known) > 0 and sum(known) < ENOUGH_FOCAL_LENGTHS * len(known):
        warn_user(
            f"{len(known) - sum(known)} of {len(known)} cameras have a guessed focal length, and "
            "global mapping needs good ones: run pycolmap.calibrate_view_graph first, or calibrate"
        )


def _make_models(
    cache: Any, options: Any, models: Any, backend: BackendName | BackendChoice
) -> None:
    mapping = GlobalMapping(cache, options, backend)
    pairs = pose_graph_of(cache, options.decompose_relative_pose)
    while not pairs.empty:
        place = models.add()
        model = models.get(place)
        is_kept = False
        try:
            is_kept = mapping.run(model, _copy(pairs))
        except KeyboardInterrupt:
            is_kept = model.num_points3D() > 0
            raise
        finally:
            if not is_kept:
                models.delete(place)
        if not is_kept or not options.multiple_models:
            return
        pycolmap.align_reconstruction_to_orig_rig_scales(cache.rigs, model)
        model.update_point_3d_errors()
        left = {one for one in _images_of(pairs) if not _has_pose(model, one)}
        pairs.invalidate_pairs_outside_active_image_ids(left)
        pairs = _copy(pairs)
        if len(_images_of(pairs)) < options.min_model_size:
            return


def _has_pose(model: Any, image_id: int) -> bool:
    return bool(model.exists_image(image_id) and model.image(image_id).has_pose)


def _images_of(pose_graph: Any) -> set[int]:
    return {image for one in _valid_pairs(pose_graph) for image in one}


def _valid_pairs(pose_graph: Any) -> Iterator[tuple[int, int]]:
    for pair_id, edge in pose_graph.edges.items():
        if edge.valid:
            yield pycolmap.pair_id_to_image_pair(pair_id)


def _copy(pose_graph: Any) -> Any:
    copy = pycolmap.PoseGraph()
    for one, other in _valid_pairs(pose_graph):
        copy.add_edge(one, other, pose_graph.get_edge(one, other))
    return copy


def pose_graph_of(cache: Any, decomposes: bool) -> Any:
    """Relative poses of pairs; those that the database has not are derived from the geometry."""
    pose_graph = pycolmap.PoseGraph()
    graph = cache.correspondence_graph
    pose_graph.load(graph)
    if not decomposes:
        return pose_graph
    keypoints: dict[int, NDArray[np.float64]] = {}

    def pixels(image_id: int) -> NDArray[np.float64]:
        if image_id not in keypoints:
            points = cache.image(image_id).points2D
            keypoints[image_id] = np.array([one.xy for one in points]).reshape(-1, 2)
        return keypoints[image_id]

    for pair_id in graph.image_pairs():
        one, other = pycolmap.pair_id_to_image_pair(pair_id)
        geometry = graph.extract_two_view_geometry(one, other, True)
        if geometry.cam2_from_cam1 is not None or geometry.config in _NO_MOTION:
            continue
        if len(geometry.inlier_matches) == 0:
            continue
        cameras = [cache.camera(cache.image(image).camera_id) for image in (one, other)]
        cameras = [
            own if estimated is None else estimated
            for own, estimated in zip(cameras, (geometry.camera1, geometry.camera2), strict=True)
        ]
        is_found = pycolmap.estimate_two_view_geometry_pose(
            cameras[0], pixels(one), cameras[1], pixels(other), geometry
        )
        if is_found and not pose_graph.has_edge(one, other):
            edge = pycolmap.PoseGraphEdge(geometry.cam2_from_cam1)
            edge.num_matches = len(geometry.inlier_matches)
            pose_graph.add_edge(one, other, edge)
    return pose_graph


class GlobalMapping:
    """The making of models, one after the other, from a `pycolmap.DatabaseCache`."""

    def __init__(self, cache: Any, options: Any, backend: BackendName | BackendChoice) -> None:
        self._cache, self._backend = cache, backend
        self._model: Any = None
        self._options = pycolmap.GlobalMapperOptions(options.mapper.todict())
        self._options.num_threads = options.num_threads
        self._options.random_seed = options.random_seed
        usual = pycolmap.GlobalMapperOptions()
        usual.num_threads = options.num_threads
        adjustment, warnings = options_of(
            self._options.get_bundle_adjustment(), usual.get_bundle_adjustment()
        )
        for warning in warnings:
            warn_user(warning)
        # COLMAP triangulates nothing with a lens out of these ranges
        limits = self._options.get_retriangulation()
        self._adjustment = replace(
            adjustment,
            min_focal_length_ratio=limits.min_focal_length_ratio,
            max_focal_length_ratio=limits.max_focal_length_ratio,
            max_extra_param=limits.max_extra_param,
            backend=backend,
        )

    def run(self, model: Any, pose_graph: Any) -> bool:
        """Make a model of an empty `pycolmap.Reconstruction`; whether that was possible.

        Pairs of the `pycolmap.PoseGraph` that prove wrong become invalid.
        """
        options, self._model = self._options, model
        model.load(self._cache)
        if not options.skip_rotation_averaging and not self._rotate(pose_graph):
            return False
        if not options.skip_track_establishment:
            with phase("mapping: tracks"):
                self._establish_tracks(pose_graph)
        if not options.skip_global_positioning and not self._position(pose_graph):
            return False
        if not options.skip_bundle_adjustment and not self._adjust_in_turns():
            return False
        return bool(options.skip_retriangulation or self._triangulate_anew())

    def adjust(self, model: Any) -> bool:
        """Adjust a `pycolmap.Reconstruction` in turns with filters; whether anything is left."""
        self._model = model
        return self._adjust_in_turns()

    # -- rotations, tracks and positions ---------------------------------------------------------

    def _rotate(self, pose_graph: Any) -> bool:
        """Twice: the second time without the pairs that proved wrong."""
        chosen = self._options.get_rotation_averaging()
        for is_second in (False, True):
            chosen.filter_unregistered = is_second
            priors = list(self._cache.pose_priors)
            if not average(chosen, pose_graph, self._model, priors, self._backend):
                return False
        return True

    def _establish_tracks(self, pose_graph: Any) -> None:
        options, model = self._options, self._model
        images = sorted(model.reg_image_ids())
        counts = [model.image(one).num_points2D() for one in images]
        starts = dict(zip(images, np.concatenate([[0], np.cumsum(counts)]).tolist(), strict=False))
        graph = self._cache.correspondence_graph
        matches = []
        for one, other in _valid_pairs(pose_graph):
            ends = graph.extract_matches_between_images(one, other).astype(np.int64)
            matches.append(ends + np.array([starts[one], starts[other]]))
        if len(matches) == 0:
            return
        tracks = _tracks(np.concatenate(matches), sum(counts))
        image_of = np.repeat(np.arange(len(images)), counts)
        pixels = np.concatenate(
            [
                np.array([one.xy for one in model.image(image).points2D]).reshape(-1, 2)
                for image in images
            ]
        )
        chosen = _consistent(
            tracks, image_of, pixels, options.track_intra_image_consistency_threshold
        )
        fewest, most = options.track_min_num_views_per_track, options.track_max_num_views_per_track
        lengths = {}
        for number, track in chosen.items():
            num_images = len(np.unique(image_of[track]))
            if fewest <= num_images <= most:
                lengths[number] = len(track)
        first = np.array(list(starts.values()))
        seen = np.zeros(len(images), np.int64)
        left = len(images)
        for number in sorted(lengths, key=lambda one: -lengths[one])[: options.keep_max_num_tracks]:
            track = chosen[number]
            rows = image_of[track]
            if not np.any(seen[rows] <= options.track_required_tracks_per_view):
                continue
            before = seen[rows] == options.track_required_tracks_per_view
            left -= int(np.count_nonzero(before))
            np.add.at(seen, rows, 1)
            made = pycolmap.Track()
            for row, keypoint in zip(rows.tolist(), (track - first[rows]).tolist(), strict=True):
                made.add_element(images[row], keypoint)
            model.add_point3D(np.zeros(3), made)
            if left == 0:
                break

    def _position(self, pose_graph: Any) -> bool:
        options, model = self._options, self._model
        chosen = options.get_global_positioning()
        if not position(chosen, pose_graph, model, self._backend):
            return False
        observations = pycolmap.ObservationManager(model)
        most = options.max_angular_reproj_error_deg
        observations.filter_points3D_with_large_reprojection_error(
            2.0 * most, model.point3D_ids(), ErrorType.ANGULAR
        )
        self._drop_calibrated(observations, np.radians(most))
        observations.filter_points3D_with_small_triangulation_angle(
            options.min_tri_angle_deg, model.point3D_ids()
        )
        self._filter(observations, WEAK)
        model.normalize()
        return bool(model.num_points3D() > 0)

    def _drop_calibrated(self, observations: Any, most: float) -> None:
        """Drop observations of a large angle by cameras whose focal length is known."""
        model = self._model
        for image_id in model.reg_image_ids():
            image = model.image(image_id)
            if not image.camera.has_prior_focal_length:
                continue
            places = list(image.get_observation_point2D_idxs())
            if len(places) == 0:
                continue
            seen = [image.point2D(one) for one in places]
            rays = image.camera.cam_ray_from_img(np.array([one.xy for one in seen]))
            points = np.array([model.point3D(one.point3D_id).xyz for one in seen])
            pose = image.cam_from_world()
            ways = points @ pose.rotation.matrix().T + pose.translation
            along = np.sum(rays * ways, axis=1)
            across = np.linalg.norm(np.cross(rays, ways), axis=1)
            for place in np.flatnonzero(np.arctan2(across, along) > most).tolist():
                if image.point2D(places[place]).has_point3D():
                    observations.delete_observation(image_id, places[place])

    def _filter(self, observations: Any, times: float) -> int:
        return int(
            observations.filter_points3D_with_large_reprojection_error(
                times * self._options.max_normalized_reproj_error,
                self._model.point3D_ids(),
                ErrorType.NORMALIZED,
            )
        )

    # -- adjustments -----------------------------------------------------------------------------

    def _adjust_in_turns(self) -> bool:
        """Adjust with rotations held, then all, and filter, until filters take little."""
        options, model = self._options, self._model
        number = 0
        while number < options.ba_num_iterations:
            with phase(f"mapping: adjusting {model.num_reg_images()} images, {number + 1}"):
                adjusted = None
                if not options.ba_skip_fixed_rotation_stage:
                    adjusted = self._adjust(constant_rig_from_world_rotation=True)
                    if adjusted is None:
                        return False
                if not options.ba_skip_joint_optimization_stage and self._adjust(adjusted) is None:
                    return False
            model.normalize()
            observations, filtered, is_done = pycolmap.ObservationManager(model), 0, True
            while is_done and number < options.ba_num_iterations:
                # few points that do not fit: take the next threshold without adjusting
                filtered += self._filter(observations, max(3.0 - number, 1.0))
                is_done = filtered <= FEW_CHANGES * model.num_points3D()
                number += 1
        self._drop_at_the_end(pycolmap.ObservationManager(model))
        return bool(model.num_points3D() > 0)

    def _drop_at_the_end(self, observations: Any) -> None:
        self._filter(observations, 1.0)
        observations.filter_points3D_with_small_triangulation_angle(
            self._options.min_tri_angle_deg, self._model.point3D_ids()
        )

    def _adjust(self, known: Model | None = None, **changes: Any) -> Model | None:
        """Adjust everything; the model then, or None if there was nothing or it ended badly.

        `known` is what this returned, if nothing has changed since; `changes` are fields of the
        options.
        """
        config = pycolmap.BundleAdjustmentConfig()
        for image_id in self._model.reg_image_ids():
            config.add_image(image_id)
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        summary = adjust_in_place(
            self._model, replace(self._adjustment, **changes), config, known=known
        )
        if summary is None:
            return None
        if summary.result.status is SolveStatus.INTERRUPTED:
            raise KeyboardInterrupt  # the solve has kept the values reached so far
        return summary.model if summary.is_solution_usable() else None

    def _triangulate_anew(self) -> bool:
        """Make all points anew from matches, and adjust until little changes."""
        model, chosen = self._model, self._options.get_retriangulation()
        model.delete_all_points2D_and_points3D()
        mapper = pycolmap.IncrementalMapper(self._cache)
        mapper.begin_reconstruction(model)
        for image_id in list(model.reg_image_ids()):
            mapper.triangulate_image(chosen, image_id)
        limits = pycolmap.IncrementalMapperOptions()
        limits.random_seed = chosen.random_seed
        refine_everything(
            mapper,
            model,
            chosen,
            limits,
            lambda: self._adjust(max_num_iterations=REFINEMENT_ITERATIONS) is not None,
            max_refinements=MAX_REFINEMENTS,
            max_change=REFINEMENT_CHANGE,
        )
        mapper.end_reconstruction(False)
        observations = pycolmap.ObservationManager(model)
        self._filter(observations, 1.0)
        if self._adjust() is None:
            return False
        model.normalize()
        self._drop_at_the_end(observations)
        return bool(model.num_points3D() > 0)


def _tracks(ends: NDArray[np.int64], num_keypoints: int) -> list[NDArray[np.int64]]:
    joined = coo_array(
        (np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), (num_keypoints, num_keypoints)
    )
    _, labels = connected_components(joined, directed=False)
    is_used = np.zeros(num_keypoints, bool)
    is_used[ends] = True
    used = np.flatnonzero(is_used)
    order = used[np.argsort(labels[used], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _consistent(
    tracks: list[NDArray[np.int64]],
    image_of: NDArray[np.int64],
    pixels: NDArray[np.float64],
    most: float,
) -> dict[int, NDArray[np.int64]]:
    """Tracks whose keypoints in one image are near each other, by number."""
    kept = {}
    for number, track in enumerate(tracks):
        images = image_of[track]
        repeated = images[:-1] == images[1:]
        if np.any(repeated):
            spreads = [
                np.ptp(pixels[track[images == one]], axis=0) for one in set(images[:-1][repeated])
            ]
            if max(float(np.hypot(*one)) for one in spreads) > most:
                continue
        kept[number] = track
    return kept
