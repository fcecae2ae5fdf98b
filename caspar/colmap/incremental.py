"""The course of incremental mapping: which image comes next, and what is adjusted when.

Input: a database and pycolmap's options. Output: models in a `pycolmap.ReconstructionManager`. The
order of steps is that of COLMAP's incremental pipeline (Schoenberger and Frahm, 2016), of version
4. Only `caspar.colmap.mapping` imports this module: it needs pycolmap.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from caspar.colmap.adjust.options import BundleAdjustmentOptions, LossFunction
from caspar.colmap.adjustment import adjust_in_place
from caspar.colmap.arguments import options_given
from caspar.colmap.mapping import Path
from caspar.colmap.priors.priors import PosePriorOptions
from caspar.errors import InputError, MissingPackageError, OptionError, warn_user
from caspar.options import BackendChoice
from caspar.progress import phase
from caspar.solver.result.result import SolveStatus

try:
    import pycolmap
except ImportError as error:
    raise MissingPackageError("caspar.colmap's mapper", "pycolmap", "colmap") from error

MIN_TRIALS = 30
"""Images that are tried while a model is small, before it is given up."""

MAX_TRACK_LENGTH = 15
"""Points of more observations are held in local adjustments: they are settled."""

FEW_FRAMES = 10
"""Below so many, adjustments of everything may take twice as many iterations."""

FEW_TOLERANCE = 1e-4
"""Tolerance of these: two images hardly determine distortion. More digits lead along flat valleys
to lenses that no further image fits (docs/design/0026-colmap.md)."""

LOCAL_ITERATIONS, GLOBAL_ITERATIONS = 25, 50

LOCAL_TOLERANCE, GLOBAL_TOLERANCE = 1e-6, 1e-7
"""Relative decrease of the cost at which an adjustment ends, unless the options have a larger one.
Images are registered and points filtered between them, so more digits are of no use."""

MIN_PRIORS = 3
"""Positions of registered images that are known, from which on they count."""

Status = pycolmap.IncrementalPipelineStatus
Moment = pycolmap.IncrementalPipelineCallback


def models_of(
    database_path: Path,
    image_path: Path,
    output_path: Path,
    options: Any,
    input_path: Path | None,
    callbacks: tuple[Callable[[], object] | None, Callable[[], object] | None],
    backend: str | BackendChoice,
) -> dict[int, Any]:
    """See `caspar.colmap.incremental_mapping`; `callbacks` are the two of it."""
    chosen = options_given(options, pycolmap.IncrementalPipelineOptions)
    check_paths(database_path, image_path, chosen.extract_colors, input_path)
    chosen = pycolmap.IncrementalPipelineOptions(chosen.todict())
    chosen.image_path = os.fspath(image_path)
    if not chosen.check():
        raise OptionError("options: a value is out of range; pycolmap's log says which")
    if chosen.mapper.ba_global_ignore_redundant_points3D:
        warn_user("options.mapper.ba_global_ignore_redundant_points3D has no effect")
    models = pycolmap.ReconstructionManager()
    if input_path is not None:
        with naming("input_path", input_path):
            models.read(input_path)
    os.makedirs(output_path, exist_ok=True)
    mapping = IncrementalMapping(database_path, chosen, models, backend)
    mapping.when(*callbacks)
    try:
        mapping.run()
    finally:
        models.write(output_path)
    return {number: models.get(number) for number in range(models.size())}


def mapping_options(kind: str, **changes: Any) -> Any:
    """Return options of a class of pycolmap with some fields changed."""
    options = getattr(pycolmap, kind)()
    for name, value in changes.items():
        setattr(options, name, value)
    return options


def log_warnings_only() -> None:
    """Keep pycolmap from logging every step to standard error."""
    pycolmap.logging.minloglevel = 1


def check_paths(
    database_path: Path, image_path: Path, reads_images: bool, input_path: Path | None
) -> None:
    """Raise InputError, which names the argument, if the database or a folder does not exist."""
    if not os.path.isfile(database_path):
        raise InputError(f"database_path: there is no file {os.fspath(database_path)!r}")
    folders = {"image_path": image_path if reads_images else None, "input_path": input_path}
    for name, folder in folders.items():
        if folder is not None and not os.path.isdir(folder):
            advice = (
                "; options.extract_colors = False maps without images"
                if name == "image_path"
                else ""
            )
            raise InputError(f"{name}: there is no folder {os.fspath(folder)!r}{advice}")


@contextmanager
def naming(name: str, path: Path) -> Iterator[None]:
    """Turn pycolmap's errors of a file or folder into ones that name the argument."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{name} {os.fspath(path)!r} cannot be read: {error}") from error


def refine_everything(
    mapper: Any,
    model: Any,
    triangulation: Any,
    limits: Any,
    adjust: Callable[[], bool],
    *,
    max_refinements: int,
    max_change: float,
    normalizes: bool = True,
) -> None:
    """Adjust everything, with new and merged tracks, until little changes.

    `adjust` returns whether there was anything to adjust. The end is when a share of observations
    below `max_change` changes. With `normalizes` the model is brought to its usual place and size
    after each adjustment.
    """
    mapper.complete_and_merge_tracks(triangulation)
    mapper.retriangulate(triangulation)
    for _ in range(max_refinements):
        num_observations = model.compute_num_observations()
        mapper.observation_manager.filter_observations_with_negative_depth()
        if not adjust():
            break
        if normalizes:
            model.normalize()
        num_changed = mapper.complete_and_merge_tracks(triangulation)
        num_changed += mapper.filter_points(limits)
        if num_changed < max_change * num_observations or num_observations == 0:
            break
    mapper.filter_frames(limits)
    mapper.clear_modified_points3D()


class IncrementalMapping:
    """One run over a database, with a checked `pycolmap.IncrementalPipelineOptions`.

    `models`, a `pycolmap.ReconstructionManager`, has one model at most, to go on from: else, or if
    the database cannot be read, an `InputError`.
    """

    def __init__(
        self, database_path: Path, options: Any, models: Any, backend: str | BackendChoice
    ) -> None:
        if models.size() > 1:
            raise InputError(f"input_path: it has {models.size()} models; one can be continued")
        with (
            naming("database_path", database_path),
            pycolmap.Database.open(database_path) as database,
        ):
            self._pipeline = pycolmap.IncrementalPipeline(options, database, models)
        self._options, self._models = options, models
        self._cache = self._pipeline.database_cache
        self._mapper = pycolmap.IncrementalMapper(self._cache)
        self._limits = options.get_mapper()
        self._triangulation = options.get_triangulation()
        self._adjustment = BundleAdjustmentOptions(
            refine_focal_length=options.ba_refine_focal_length,
            refine_principal_point=options.ba_refine_principal_point,
            refine_extra_params=options.ba_refine_extra_params,
            refine_sensor_from_rig=options.ba_refine_sensor_from_rig,
            min_focal_length_ratio=options.min_focal_length_ratio,
            max_focal_length_ratio=options.max_focal_length_ratio,
            max_extra_param=options.max_extra_param,
            backend=backend,
        )
        self._model: Any = None
        self._adjusted = 0, 0

    def when(
        self, has_pair: Callable[[], object] | None, has_next: Callable[[], object] | None
    ) -> None:
        """Set functions to call after the first pair and after each further image."""
        pairs = (Moment.INITIAL_IMAGE_PAIR_REG_CALLBACK, has_pair)
        for moment, told in (pairs, (Moment.NEXT_IMAGE_REG_CALLBACK, has_next)):
            if told is not None:
                self._pipeline.add_callback(moment, told)

    def run(self) -> None:
        """Make models, with easier conditions for a first pair where images are left."""
        if self._cache.num_images() == 0:
            return
        goes_on = self._make_models(continues=self._models.size() > 0)
        for eases in (self._ask_fewer_inliers, self._ask_smaller_angles) * 2:
            is_whole = self._mapper.num_total_reg_images() == self._cache.num_images()
            if not goes_on or is_whole or self._is_late():
                return
            eases()
            self._mapper.reset_initialization_stats()
            goes_on = self._make_models(continues=False)

    def _ask_fewer_inliers(self) -> None:
        self._limits.init_min_num_inliers //= 2

    def _ask_smaller_angles(self) -> None:
        self._limits.init_min_tri_angle /= 2

    def _is_late(self) -> bool:
        return bool(self._pipeline.check_reached_max_runtime())

    # -- models ----------------------------------------------------------------------------------

    def _make_models(self, *, continues: bool) -> bool:
        options = self._options
        for number in range(options.init_num_trials):
            if self._is_late():
                return False
            place = 0 if continues and number == 0 else self._models.add()
            self._model = self._models.get(place)
            self._mapper.begin_reconstruction(self._model)
            try:
                status = self._make_model()
            except BaseException:
                self._end(place, keeps=self._model.num_reg_frames() > 0)
                raise
            if status is Status.NO_INITIAL_PAIR:
                self._end(place, keeps=False)
                return True
            if status is Status.BAD_INITIAL_PAIR:
                self._end(place, keeps=False)
                continue
            if status is Status.INTERRUPTED:
                self._end(place, keeps=True)
                return False
            num_images = self._model.num_reg_images()
            num_all = self._mapper.num_total_reg_images()
            is_one_of_many = options.multiple_models and self._models.size() > 1
            is_small = is_one_of_many and num_images < options.min_model_size
            self._end(place, keeps=num_images > 0 and not is_small)
            self._pipeline.callback(Moment.LAST_IMAGE_REG_CALLBACK)
            has_most = self._models.size() >= options.max_num_models
            if not options.multiple_models or has_most or num_all >= self._cache.num_images() - 1:
                return False
        return True

    def _end(self, place: int, *, keeps: bool) -> None:
        """End the model; one that is kept gets errors of points, and the scale of its rigs."""
        if keeps:
            self._model.update_point_3d_errors()
        self._mapper.end_reconstruction(not keeps)
        if not keeps:
            self._models.delete(place)
        elif not self._has_priors():
            pycolmap.align_reconstruction_to_orig_rig_scales(self._cache.rigs, self._model)

    def _make_model(self) -> Any:
        model, options = self._model, self._options
        self._check_rigs()
        if model.num_reg_frames() == 0:
            status = self._begin_with_pair()
            if status is not Status.SUCCESS:
                return status
        self._pipeline.callback(Moment.INITIAL_IMAGE_PAIR_REG_CALLBACK)
        self._note_adjusted()
        last_snapshot = model.num_reg_frames()
        had_next, has_next = True, True
        while (has_next or had_next) and not self._is_late():
            had_next = has_next
            found = self._register_next()
            has_next = found is not None
            if found is not None:
                with phase(f"mapping: {self._mapper.num_total_reg_images()} images"):
                    self._take_in(found)
                num_frames, every = model.num_reg_frames(), options.snapshot_frames_freq
                if every > 0 and num_frames >= last_snapshot + every:
                    last_snapshot = num_frames
                    self._write_snapshot()
                self._pipeline.callback(Moment.NEXT_IMAGE_REG_CALLBACK)
            if self._mapper.num_shared_reg_images() >= options.max_model_overlap:
                break
            if had_next and not has_next:
                self._refine_all()
        if self._is_late():
            return Status.INTERRUPTED
        frames, points = self._adjusted
        if model.num_reg_frames() not in (0, frames) and model.num_points3D() != points:
            self._refine_all()
        return Status.SUCCESS

    def _write_snapshot(self) -> None:
        folder = os.path.join(self._options.snapshot_path, f"{self._model.num_reg_frames():06d}")
        os.makedirs(folder, exist_ok=True)
        self._model.write(folder)

    def _check_rigs(self) -> None:
        """Refuse rigs whose sensors are nowhere: an `InputError` with rig and sensor."""
        for rig_id in {frame.rig_id for frame in self._model.frames.values()}:
            for sensor, pose in self._model.rig(rig_id).non_ref_sensors.items():
                if sensor.type == pycolmap.SensorType.CAMERA and pose is None:
                    raise InputError(
                        f"rig {rig_id}: the pose of camera {sensor.id} in it is not known. Map "
                        "without rigs first, derive the pose from that model, and set it in the "
                        "database"
                    )

    def _begin_with_pair(self) -> Any:
        mapper, limits, options, model = self._mapper, self._limits, self._options, self._model
        pair = options.init_image_id1, options.init_image_id2
        if options.is_initial_pair_provided():
            if not all(model.exists_image(one) for one in pair):
                return Status.NO_INITIAL_PAIR
            motion = mapper.estimate_initial_two_view_geometry(limits, *pair)
            if motion is None:
                return Status.BAD_INITIAL_PAIR
        else:
            with phase("mapping: finding a first pair"):
                found = mapper.find_initial_image_pair(limits, *pair)
            if found is None:
                return Status.NO_INITIAL_PAIR
            pair, motion = found
        mapper.register_initial_image_pair(limits, *pair, motion)
        triangulation = options.get_triangulation()
        triangulation.min_angle = limits.init_min_tri_angle
        for image_id in pair:
            self._triangulate(image_id, triangulation)
        if model.num_points3D() == 0:
            return Status.BAD_INITIAL_PAIR
        mapper.observation_manager.filter_observations_with_negative_depth()
        self._adjust_all()
        model.normalize()
        mapper.filter_points(limits)
        mapper.filter_frames(limits)
        if model.num_reg_frames() == 0 or model.num_points3D() < limits.abs_pose_min_num_inliers:
            return Status.BAD_INITIAL_PAIR
        self._colour(pair)
        return Status.SUCCESS

    def _register_next(self) -> int | None:
        """Register the image that sees the most; without points only if nothing else helps."""
        mapper, options = self._mapper, self._options
        kinds = {False: mapper.register_next_image, True: mapper.register_next_structure_less_image}
        if options.structure_less_registration_only:
            del kinds[False]
        elif not options.structure_less_registration_fallback:
            del kinds[True]
        for is_without_points, register in kinds.items():
            candidates = mapper.find_next_images(self._limits, structure_less=is_without_points)
            for number, image_id in enumerate(candidates):
                if register(self._limits, image_id):
                    return int(image_id)
                is_small = self._model.num_reg_images() < options.min_model_size
                if number >= MIN_TRIALS and is_small:
                    break
        return None

    def _take_in(self, image_id: int) -> None:
        """Triangulate what a new image sees, and adjust what is near it, or everything."""
        self._triangulate(image_id, self._triangulation)
        self._refine_near(image_id)
        if self._pipeline.check_run_global_refinement(self._model, *self._adjusted):
            self._refine_all()
            self._note_adjusted()
        self._colour([image_id])

    def _images_beside(self, image_id: int) -> list[int]:
        return [one.id for one in self._model.image(image_id).frame.image_ids]

    def _triangulate(self, image_id: int, triangulation: Any) -> None:
        for one in self._images_beside(image_id):
            self._mapper.triangulate_image(triangulation, one)

    def _colour(self, images: Iterable[int]) -> None:
        if self._options.extract_colors:
            for image_id in images:
                for one in self._images_beside(image_id):
                    if not self._model.extract_colors_for_image(one, self._options.image_path):
                        name = self._model.image(one).name
                        warn_user(f"image {name!r} cannot be read: its points have no colours")

    def _note_adjusted(self) -> None:
        self._adjusted = self._model.num_reg_frames(), self._model.num_points3D()

    # -- adjustments -----------------------------------------------------------------------------

    def _refine_near(self, image_id: int) -> None:
        mapper, options = self._mapper, self._options
        loss = LossFunction.SOFT_L1
        for _ in range(options.ba_local_max_refinements):
            num_adjusted, num_changed = self._adjust_near(image_id, loss)
            if num_changed < options.ba_local_max_refinement_change * max(num_adjusted, 1):
                break
            loss = LossFunction.TRIVIAL
        mapper.clear_modified_points3D()

    def _adjust_near(self, image_id: int, loss: LossFunction) -> tuple[int, int]:
        """Return how many observations took part, and how many were merged, added or filtered."""
        mapper, limits = self._mapper, self._limits
        modified = mapper.get_modified_points3D()
        config, num_adjusted, num_changed = None, 0, 0
        near = mapper.find_local_bundle(limits, image_id)
        if len(near) > 0:
            images = (image_id, *near)
            config = self._config(one for every in images for one in self._images_beside(every))
            config.fix_gauge(pycolmap.BundleAdjustmentGauge.THREE_POINTS)
            self._hold_what_is_seen_elsewhere(config)
            moved = {one for one in modified if self._is_short(one)}
            for point_id in moved:
                config.add_variable_point(point_id)
            num_adjusted = self._adjust(config, loss, is_local=True) // 2
            triangulator = mapper.triangulator
            num_changed += triangulator.merge_tracks(self._triangulation, moved)
            num_changed += triangulator.complete_tracks(self._triangulation, moved)
            num_changed += triangulator.complete_image(self._triangulation, image_id)
        bounds = limits.filter_max_reproj_error, limits.filter_min_tri_angle
        observations = mapper.observation_manager
        images = set() if config is None else config.images
        num_changed += observations.filter_points3D_in_images(*bounds, images)
        num_changed += observations.filter_points3D(*bounds, modified)
        return num_adjusted, num_changed

    def _is_short(self, point_id: int) -> bool:
        point = self._model.point3D(point_id)
        return bool(point.error == -1.0 or point.track.length() <= MAX_TRACK_LENGTH)

    def _config(self, images: Iterable[int]) -> Any:
        config = pycolmap.BundleAdjustmentConfig()
        for image_id in images:
            config.add_image(image_id)
        if self._limits.fix_existing_frames:
            existing = self._mapper.existing_frame_ids
            for frame_id in {self._model.image(one).frame_id for one in config.images}:
                if frame_id in existing:
                    config.set_constant_rig_from_world_pose(frame_id)
        for rig_id in self._limits.constant_rigs:
            self._hold_rig(config, rig_id)
        for camera_id in self._limits.constant_cameras:
            config.set_constant_cam_intrinsics(camera_id)
        return config

    def _hold_rig(self, config: Any, rig_id: int) -> None:
        for sensor in self._model.rig(rig_id).non_ref_sensors:
            config.set_constant_sensor_from_rig_pose(sensor)

    def _hold_what_is_seen_elsewhere(self, config: Any) -> None:
        """Hold rigs and cameras of which some images take no part."""
        images = [self._model.image(one) for one in config.images]
        frames = {one.frame_id: one.frame.rig_id for one in images}
        for rig_id, count in Counter(frames.values()).items():
            if count < self._mapper.num_reg_frames_per_rig[rig_id]:
                self._hold_rig(config, rig_id)
        for camera_id, count in Counter(one.camera_id for one in images).items():
            if count < self._mapper.num_reg_images_per_camera[camera_id]:
                config.set_constant_cam_intrinsics(camera_id)

    def _refine_all(self) -> None:
        with phase(f"mapping: {self._mapper.num_total_reg_images()} images, adjusting all"):
            refine_everything(
                self._mapper,
                self._model,
                self._triangulation,
                self._limits,
                self._adjust_all,
                max_refinements=self._options.ba_global_max_refinements,
                max_change=self._options.ba_global_max_refinement_change,
                normalizes=not self._has_priors(),
            )

    def _adjust_all(self) -> bool:
        frames = [self._model.frame(one) for one in self._model.reg_frame_ids()]
        config = self._config(image.id for frame in frames for image in frame.image_ids)
        if len(config.images) < 2:
            return False
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        self._adjust(config, LossFunction.TRIVIAL, is_local=False)
        return True

    def _adjust(self, config: Any, loss: LossFunction, *, is_local: bool) -> int:
        chosen = self._options
        if is_local:
            most, usual = chosen.ba_local_max_num_iterations, LOCAL_ITERATIONS
            tolerance = max(chosen.ba_local_function_tolerance, LOCAL_TOLERANCE)
        else:
            most, usual = chosen.ba_global_max_num_iterations, GLOBAL_ITERATIONS
            tolerance = max(chosen.ba_global_function_tolerance, GLOBAL_TOLERANCE)
        iterations = usual if most < 0 else most
        if not is_local and self._model.num_reg_frames() < FEW_FRAMES:
            iterations, tolerance = 2 * iterations, max(tolerance, FEW_TOLERANCE)
        options = replace(
            self._adjustment,
            loss_function_type=loss,
            max_num_iterations=iterations,
            solve_options={"cost_tolerance": tolerance},
        )
        priors: dict[str, Any] = {}
        if not is_local and self._has_priors():
            scale = chosen.prior_position_loss_scale
            is_robust = chosen.use_robust_loss_on_prior_position
            priors = {
                "pose_priors": self._cache.pose_priors,
                "pose_prior_options": PosePriorOptions(
                    prior_position_loss_function_type="CAUCHY" if is_robust else "TRIVIAL",
                    prior_position_loss_scale=scale,
                ),
            }
        summary = adjust_in_place(self._model, options, config, **priors)
        if summary is None:
            return 0
        if summary.result.status is SolveStatus.INTERRUPTED:
            raise KeyboardInterrupt  # the solve has kept the values reached so far
        return summary.num_residuals

    def _has_priors(self) -> bool:
        """Return whether priors are in use, and enough registered images have a known position."""
        if not self._options.use_prior_position:
            return False
        known = [one.corr_data_id.id for one in self._cache.pose_priors if one.has_position()]
        images = [self._model.image(one) for one in known if self._model.exists_image(one)]
        return sum(bool(one.has_pose) for one in images) >= MIN_PRIORS
