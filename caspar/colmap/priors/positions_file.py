"""Positions of cameras from a text file, by names of images, as COLMAP's model_aligner reads them.

Each line is a name and three numbers, separated by white space; names may have spaces. Lines that
are empty are skipped, and so are lines that begin with # unless they begin with the name of an
image. Lines may end as on any system, and the file may begin with the mark of UTF-8. One pass over
the file.
"""

import math
from numbers import Real
from typing import Any

import numpy as np

from caspar.colmap.model import Model
from caspar.colmap.priors.priors import PosePriors
from caspar.errors import FileFormatError, OptionError
from caspar.io.compressed import FilePath, bounded_lines, open_for_reading, path_text
from caspar.io.numbers import parse_numbers, shown

_LONGEST_LINE_BYTES = 1 << 20


def read_positions(
    path: FilePath,
    model: Model,
    *,
    stddev: float | None = None,
    is_gps: bool = False,
) -> PosePriors:
    """Read positions of the cameras of a model.

    Args:
        path: The file; plain, bzip2 or gzip.
        model: Has the ids of the images; lines of other images are left out.
        stddev: Standard deviation of each coordinate, in the file's unit of length. None: unknown.
        is_gps: Numbers are latitude and longitude in degrees and altitude in metres, rather than
            x, y and z. Positions are then metres east, north and up of the first one.

    Raises:
        FileFormatError: A line has no three numbers, or a name that no file has; an image is there
            twice, or no line is of an image of the model; the message has the line.
        OptionError: `stddev` is no number above 0, or `path` is no path.
        OSError: The file cannot be read.
    """
    path = path_text(path)
    _check_stddev(stddev)
    by_name: dict[str, list[int]] = {}
    for name, image_id in zip(model.images.names, model.images.ids.tolist(), strict=True):
        by_name.setdefault(name, []).append(image_id)
    found: dict[int, list[float]] = {}
    number = num_lines = 0
    with open_for_reading(path) as stream:
        for _, text in bounded_lines(stream, path, _LONGEST_LINE_BYTES):
            for line in text.splitlines():  # the files of old Macs have no \n
                number += 1
                words = line.strip().rsplit(maxsplit=3)
                name = words[0].decode(errors="surrogateescape") if words else ""
                if not words or (words[0].startswith(b"#") and name not in by_name):
                    continue
                num_lines += 1
                where = f"{path}, line {number}"
                place = _place(words, where)
                image_ids = by_name.get(name, [])
                if not image_ids and not name.isprintable():
                    raise FileFormatError(
                        f"{where}: no image of the model has the name {shown(words[0])}, which has "
                        "bytes that are no visible text of UTF-8; save the file as UTF-8"
                    )
                if len(image_ids) > 1:
                    raise FileFormatError(f"{where}: {len(image_ids)} images have the name {name}")
                for image_id in image_ids:
                    if image_id in found:
                        raise FileFormatError(f"{where}: {name} is there twice")
                    found[image_id] = place
    if len(found) == 0:
        raise FileFormatError(
            f"{path}: none of its {num_lines} lines is of an image of the model; each "
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


def _check_stddev(stddev: Any) -> None:
    is_number = isinstance(stddev, Real) and not isinstance(stddev, bool)
    if stddev is not None and not (is_number and math.isfinite(stddev) and stddev > 0):
        raise OptionError(f"stddev={stddev!r}: it must be a finite number above 0, or None")


def _place(words: list[bytes], where: str) -> list[float]:
    """Return the three numbers behind a name."""
    run = parse_numbers(b" ".join(words[1:]))
    if len(run.values) != 3 or not np.isfinite(run.values).all():
        stray = "" if run.stray is None else f"; {shown(run.stray)} is no number"
        raise FileFormatError(
            f"{where}: it must be a name and three numbers, x y z, separated by spaces{stray}"
        )
    place: list[float] = run.values.tolist()
    return place
