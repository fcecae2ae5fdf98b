"""COLMAP's incremental mapper with caspar as its adjuster.

Input: a database with matches, as COLMAP makes it. Output: models. pycolmap, which is imported when
it is needed, registers images and triangulates; all adjustments are caspar's.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from caspar.errors import InputError, MissingPackageError, OptionError
from caspar.options import BackendChoice

Path = str | os.PathLike[str]


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
    adjusted; now and then everything is. Options that choose a solver of COLMAP have no effect.

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
        InputError: The database or a folder does not exist, or poses of sensors in their rigs are
            not known.
        OptionError: Options of another type, or out of range.
    """
    pycolmap = _pycolmap()
    chosen = pycolmap.IncrementalPipelineOptions() if options is None else options
    if not isinstance(chosen, pycolmap.IncrementalPipelineOptions):
        raise OptionError(
            f"options is a {type(chosen).__name__}; it must be a "
            "pycolmap.IncrementalPipelineOptions"
        )
    _check_paths(database_path, image_path, chosen.extract_colors, input_path)
    chosen = pycolmap.IncrementalPipelineOptions(chosen.todict())
    chosen.image_path = os.fspath(image_path)
    if not chosen.check():
        raise OptionError("options: a value is out of range; pycolmap's log says which")
    models = pycolmap.ReconstructionManager()
    if input_path is not None:
        models.read(input_path)
    os.makedirs(output_path, exist_ok=True)
    course = import_module("caspar.colmap.incremental")  # it needs pycolmap
    mapping = course.IncrementalMapping(database_path, chosen, models, backend)
    mapping.when(initial_image_pair_callback, next_image_callback)
    try:
        mapping.run()
    finally:
        models.write(output_path)
    return {number: models.get(number) for number in range(models.size())}


def mapping_options(**changes: Any) -> Any:
    """Return pycolmap's default options with some changed.

    Args:
        changes: Fields of `pycolmap.IncrementalPipelineOptions` by name.

    Raises:
        MissingPackageError: pycolmap is not installed.
    """
    options = _pycolmap().IncrementalPipelineOptions()
    for name, value in changes.items():
        setattr(options, name, value)
    return options


def _pycolmap() -> Any:
    try:
        return import_module("pycolmap")
    except ImportError as error:
        raise MissingPackageError("caspar.colmap's mapper", "pycolmap", "colmap") from error


def _check_paths(
    database_path: Path, image_path: Path, reads_images: bool, input_path: Path | None
) -> None:
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
