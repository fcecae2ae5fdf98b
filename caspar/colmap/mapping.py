"""COLMAP's mappers with caspar as their solver.

Input: a database with matches, as COLMAP makes it. Output: models. pycolmap, which is imported when
it is needed, registers images, triangulates and filters; caspar averages rotations, finds positions
and adjusts.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from caspar.options import BackendChoice, BackendName

Path = str | os.PathLike[str]
"""The path of a file or folder."""


def incremental_mapping(
    database_path: Path,
    image_path: Path,
    output_path: Path,
    options: Any = None,
    input_path: Path | None = None,
    initial_image_pair_callback: Callable[[], object] | None = None,
    next_image_callback: Callable[[], object] | None = None,
    *,
    backend: BackendName | BackendChoice = BackendChoice.AUTO,
) -> dict[int, Any]:
    """Recover poses of images, cameras and points, as `pycolmap.incremental_mapping` does.

    One image after another is registered, its points are triangulated, and the images near it are
    adjusted; now and then everything is. Options that choose or tune COLMAP's own solver have no
    effect.

    Args:
        database_path: COLMAP's database, with features and verified matches.
        image_path: The folder of the images. It is read for colours only, so it need not exist if
            `options.extract_colors` is False.
        output_path: A folder, made if it is not there, for one folder a model: 0, 1 and so on.
        options: A `pycolmap.IncrementalPipelineOptions`, which is not changed; None: the defaults.
        input_path: The folder of one model to go on from; None: begin anew.
        initial_image_pair_callback: Called when the first two images of a model are registered.
        next_image_callback: Called after each further image.
        backend: Where adjustments run: `auto`, `cuda` or `cpu`.

    Returns:
        By number a `pycolmap.Reconstruction`. An interrupt (Ctrl-C) is passed on once the models
        reached so far are written.

    Raises:
        MissingPackageError: pycolmap is not installed.
        InputError: The database or a folder does not exist or cannot be read, or poses of sensors
            in their rigs are not known.
        OptionError: Options of another type, or out of range.
    """
    from caspar.colmap.incremental import models_of

    callbacks = initial_image_pair_callback, next_image_callback
    return models_of(
        database_path, image_path, output_path, options, input_path, callbacks, backend
    )


def global_mapping(
    database_path: Path,
    image_path: Path,
    output_path: Path,
    options: Any = None,
    *,
    backend: BackendName | BackendChoice = BackendChoice.AUTO,
) -> dict[int, Any]:
    """Recover poses of all images at once, cameras and points, as `pycolmap.global_mapping` does.

    Rotations of all images are averaged, then all positions and points are found together, then
    everything is adjusted and triangulated anew. This is quicker than `incremental_mapping`, and
    needs focal lengths that are known well. Options that choose or tune COLMAP's own solver have no
    effect.

    Args:
        database_path: COLMAP's database, with features and verified matches.
        image_path: The folder of the images. It is read for colours only; "": no colours.
        output_path: A folder, made if it is not there, for one folder a model: 0, 1 and so on.
        options: A `pycolmap.GlobalPipelineOptions`, which is not changed; None: the defaults.
        backend: Where solves run: `auto`, `cuda` or `cpu`.

    Returns:
        By number a `pycolmap.Reconstruction`. An interrupt (Ctrl-C) is passed on once the models
        reached so far are written.

    Raises:
        MissingPackageError: pycolmap is not installed.
        InputError: The database or the folder of images does not exist or cannot be read.
        OptionError: Options of another type, or one that is not supported.
    """
    from caspar.colmap.global_mapper import models_of

    return models_of(database_path, image_path, output_path, options, backend)


def rotation_averaging(
    options: Any,
    pose_graph: Any,
    reconstruction: Any,
    pose_priors: Sequence[Any] = (),
    *,
    backend: BackendName | BackendChoice = BackendChoice.AUTO,
) -> bool:
    """Give frames rotations from relative rotations, as `pycolmap.run_rotation_averaging` does.

    Wrong relative rotations may be among them. Frames outside the largest connected set stay as
    they are, or are deregistered if they were registered. With `use_gravity`, and where rotations
    of cameras in their rigs are unknown, pycolmap does all of it.

    Args:
        options: A `pycolmap.RotationEstimatorOptions`; None: the defaults.
        pose_graph: A `pycolmap.PoseGraph`. Pairs that prove wrong become invalid.
        reconstruction: A `pycolmap.Reconstruction`. Its frames get rotations, and positions of NaN.
        pose_priors: pycolmap's, for gravity.
        backend: Where the solve runs: `auto`, `cuda` or `cpu`.

    Returns:
        False if no two frames are connected.

    Raises:
        MissingPackageError: pycolmap is not installed.
        OptionError: Options of another type, or one that is not supported.
    """
    from caspar.colmap.averaging import average

    return average(options, pose_graph, reconstruction, pose_priors, backend)


def global_positioning(
    options: Any,
    pose_graph: Any,
    reconstruction: Any,
    *,
    backend: BackendName | BackendChoice = BackendChoice.AUTO,
) -> bool:
    """Find positions of frames and points together, as `pycolmap.run_global_positioning` does.

    Rotations and tracks are known. There is no random start: the solve begins with the optimum of a
    convex problem. Frames that see no point of enough observations are deregistered. Where
    positions of cameras in their rigs are unknown, pycolmap does all of it.

    Args:
        options: A `pycolmap.GlobalPositionerOptions`; None: the defaults.
        pose_graph: A `pycolmap.PoseGraph`; read only where pycolmap does all of it.
        reconstruction: A `pycolmap.Reconstruction` whose registered frames have rotations. Frames
            get positions, and points their coordinates.
        backend: Where the solve runs: `auto`, `cuda` or `cpu`.

    Returns:
        False if no point has enough observations.

    Raises:
        MissingPackageError: pycolmap is not installed.
        OptionError: Options of another type, or one that is not supported.
    """
    from caspar.colmap.positioning import position

    return position(options, pose_graph, reconstruction, backend)
