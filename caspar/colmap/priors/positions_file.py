"""Positions of cameras from a text file, by names of images, as COLMAP's model_aligner reads them.

Each line is a name and three numbers, separated by spaces; names may have spaces. Lines that are
empty or begin with # are skipped. One pass over the file.
"""

import os
from typing import Any

import numpy as np

from caspar.colmap.model import Model
from caspar.colmap.priors.priors import PosePriors
from caspar.errors import FileFormatError


def read_positions(
    path: str | os.PathLike[str],
    model: Model,
    *,
    stddev: float | None = None,
    is_gps: bool = False,
) -> PosePriors:
    """Read positions of the cameras of a model.

    Args:
        path: The file.
        model: Has the ids of the images; lines of other images are left out.
        stddev: Standard deviation of each coordinate, in the file's unit of length. None: unknown.
        is_gps: Numbers are latitude and longitude in degrees and altitude in metres, rather than
            x, y and z. Positions are then metres east, north and up of the first one.

    Raises:
        FileFormatError: A line has no three numbers, or an image is there twice, or no line is of
            an image of the model.
        OSError: The file cannot be read.
    """
    by_name = dict(zip(model.images.names, model.images.ids.tolist(), strict=True))
    found: dict[int, list[float]] = {}
    num_lines = 0
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text == "" or text.startswith("#"):
                continue
            num_lines += 1
            name, place = _parsed(path, number, text)
            image_id = by_name.get(name)
            if image_id is None:
                continue
            if image_id in found:
                raise FileFormatError(f"{os.fspath(path)}, line {number}: {name} is there twice")
            found[image_id] = place
    if len(found) == 0:
        raise FileFormatError(
            f"{os.fspath(path)}: none of its {num_lines} lines is of an image of the model; each "
            "must begin with the name of an image as the model has it, such as "
            f"{next(iter(by_name), 'folder/1.jpg')}"
        )
    covariances = None
    if stddev is not None:
        covariances = np.tile(stddev**2 * np.eye(3), (len(found), 1, 1))
    ids, array = list(found), np.array(list(found.values()))
    if is_gps:
        return PosePriors.from_gps(ids, *array.T, covariances=covariances)
    return PosePriors(ids, array, covariances)


def _parsed(path: Any, number: int, text: str) -> tuple[str, list[float]]:
    words = text.rsplit(maxsplit=3)
    try:
        name, *numbers = words
        place = [float(one) for one in numbers]
    except ValueError:
        place = []
    if len(place) != 3 or not np.isfinite(place).all():
        raise FileFormatError(
            f"{os.fspath(path)}, line {number}: it must be a name and three numbers, x y z"
        )
    return name, place
