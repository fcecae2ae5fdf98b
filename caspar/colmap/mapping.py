"""COLMAP's incremental mapper with caspar as its adjuster.

Input: a database with matches, as COLMAP makes it. Output: models. pycolmap, which is imported when
it is needed, registers images and triangulates; all adjustments are caspar's.
"""

import os
from collections.abc import Callable
from typing import Any

from caspar.options import BackendChoice

Path = str | os.PathLike[str]
"""Of a file or folder."""


def incremental_mapping(
    database_path: Path,
    image_path: Path,
    output_path: Path,
    options: Any = None,
    input_path: Path | None = None,
    initial_image_pair_callback: Callable[[], object] | None = None,
    next_image_callback: Callable[[], object] | None = None,
    *,
    backend: str | BackendChoice = BackendChoice.AUTO,
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
