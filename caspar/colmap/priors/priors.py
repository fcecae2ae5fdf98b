"""Priors, known besides the pixels: positions of cameras, gravity, intrinsics.

Plain arrays, checked once.

Also here: positions of cameras from a text file, by names of images, as COLMAP's model_aligner
reads them. Each line is a name and three numbers, separated by white space; names may have spaces.
Lines that are empty are skipped, and so are lines that begin with # unless they begin with the name
of an image. Lines may end as on any system, and the file may begin with the mark of UTF-8.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from caspar.colmap.adjust.options import LossFunction
from caspar.colmap.model import Floats, Model
from caspar.errors import FileFormatError, InputError, OptionError
from caspar.io.compressed import FilePath, bounded_lines, open_for_reading, path_text
from caspar.io.numbers import parse_numbers, shown
from caspar.options import choice

CHI_SQUARE_3 = 7.814727903251179
"""The squared distance, in standard deviations, that 95 of 100 points in space are within."""

_LEAST_GRAVITY = 1e-6
"""Length of a direction of gravity at least."""


@dataclass(frozen=True, eq=False)
class PosePriors:
    """Measured positions of cameras and directions of gravity.

    Attributes:
        image_ids: (n,) ids of images, each once.
        positions: (n, 3) of the cameras in the world, such as metres east, north and up of a place
            nearby; NaN where unknown. None: no positions.
        covariances: (n, 3, 3) of the positions; NaN where unknown. None: all are unknown.
        gravity: (n, 3) direction in which things fall, in camera coordinates; NaN where unknown.
            None: no gravity.

    Raises:
        InputError: An array has a wrong shape, or values that are not allowed.
    """

    image_ids: Any
    positions: Any = None
    covariances: Any = None
    gravity: Any = None

    def __post_init__(self) -> None:
        """Check shapes, and make arrays of float64."""
        ids = np.asarray(self.image_ids)
        if ids.ndim != 1 or (ids.size > 0 and ids.dtype.kind not in "iu"):
            raise InputError(f"PosePriors, image_ids: shape {ids.shape}; it must be ids, (n,)")
        if len(np.unique(ids)) < len(ids):
            raise InputError("PosePriors, image_ids: an id is there twice")
        object.__setattr__(self, "image_ids", ids.astype(np.int64))
        shapes = {"positions": (3,), "covariances": (3, 3), "gravity": (3,)}
        for name, shape in shapes.items():
            given = getattr(self, name)
            wanted = (len(ids), *shape)
            array = np.full(wanted, np.nan) if given is None else np.asarray(given, np.float64)
            if array.shape != wanted:
                raise InputError(f"PosePriors, {name}: shape {array.shape}; it must be {wanted}")
            object.__setattr__(self, name, array)
        self._check_values()

    def _check_values(self) -> None:
        known = np.isfinite(self.covariances).all(axis=(1, 2))
        found = self.covariances[known]
        is_symmetric = np.allclose(found, found.transpose(0, 2, 1), rtol=1e-9, atol=0)
        if not is_symmetric or not (np.linalg.eigvalsh(found) > 0).all():
            raise InputError(
                "PosePriors, covariances: one is not symmetric and positive definite; use NaN "
                "where a covariance is unknown"
            )
        lengths = np.linalg.norm(self.gravity, axis=1)
        if (lengths < _LEAST_GRAVITY).any():
            raise InputError("PosePriors, gravity: one is zero; use NaN where it is unknown")

    @property
    def has_position(self) -> Any:
        """(n,) whether a position is known."""
        return np.isfinite(self.positions).all(axis=1)

    @property
    def has_gravity(self) -> Any:
        """(n,) whether a direction of gravity is known."""
        return np.isfinite(self.gravity).all(axis=1)

    @classmethod
    def from_gps(
        cls,
        image_ids: Any,
        latitudes: Any,
        longitudes: Any,
        altitudes: Any,
        *,
        covariances: Any = None,
        gravity: Any = None,
        origin: tuple[float, float, float] | None = None,
    ) -> "PosePriors":
        """Positions in metres east, north and up of an origin, on the ellipsoid of WGS84.

        Args:
            image_ids: (n,).
            latitudes: (n,) degrees.
            longitudes: (n,) degrees.
            altitudes: (n,) metres above the ellipsoid.
            covariances: (n, 3, 3) square metres, of east, north and up.
            gravity: As of the class.
            origin: Latitude, longitude and altitude. None: those of the first position.

        Raises:
            InputError: A latitude is not from -90 to 90 degrees, or as of the class.
        """
        places = np.stack(
            [np.asarray(one, np.float64) for one in (latitudes, longitudes, altitudes)]
        )
        beyond = places[0][~(np.abs(places[0]) <= 90)]
        if len(beyond) > 0:
            raise InputError(
                f"PosePriors, latitudes: {beyond[0]!s}; they must be from -90 to 90 degrees; of "
                "positions in metres make PosePriors(image_ids, positions)"
            )
        place = np.asarray(places[:, 0] if origin is None else origin, np.float64)
        return cls(image_ids, _east_north_up(places, place), covariances, gravity)


@dataclass(frozen=True)
class PosePriorOptions:
    """Weights of pose priors. Names and defaults of the first three are COLMAP's.

    Attributes:
        prior_position_fallback_stddev: Standard deviation of each coordinate of a position whose
            covariance is unknown.
        prior_position_loss_function_type: A `LossFunction` of the distance of a position, in
            standard deviations.
        prior_position_loss_scale: Its scale.
        alignment_max_error: Distance from its prior up to which a camera is used to align the model
            before the solve. None: that within which 95 % are, by the median variance.
        prior_gravity_stddev: Standard deviation of a direction of gravity in degrees.
        gravity_in_world: Direction of gravity in the world. None: 0, 0, -1 if there are positions,
            whose z is up, and else 0, 1, 0, as COLMAP aligns models.

    Raises:
        OptionError: A value that is not allowed.
    """

    prior_position_fallback_stddev: float = 1.0
    prior_position_loss_function_type: str | LossFunction = LossFunction.TRIVIAL
    prior_position_loss_scale: float = CHI_SQUARE_3**0.5
    alignment_max_error: float | None = None
    prior_gravity_stddev: float = 1.0
    gravity_in_world: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        """Check values."""
        name = "prior_position_loss_function_type"
        loss = choice(LossFunction, name, self.prior_position_loss_function_type)
        object.__setattr__(self, name, loss)
        for name in (
            *("prior_position_fallback_stddev", "prior_position_loss_scale"),
            *("prior_gravity_stddev", "alignment_max_error"),
        ):
            value = getattr(self, name)
            if value is not None and not (value > 0 and np.isfinite(value)):
                raise OptionError(f"{name}={value!r}: it must be positive and finite")
        if self.gravity_in_world is not None:
            down = np.asarray(self.gravity_in_world, np.float64)
            if down.shape != (3,) or not np.linalg.norm(down) > 0 or not np.isfinite(down).all():
                raise OptionError(
                    f"gravity_in_world={self.gravity_in_world!r}: it must be a direction, x y z"
                )

    def down(self, *, has_positions: bool) -> Floats:
        """(3,) the unit vector of gravity in the world."""
        usual = (0.0, 0.0, -1.0) if has_positions else (0.0, 1.0, 0.0)
        given = np.asarray(self.gravity_in_world or usual, np.float64)
        unit: Floats = given / np.linalg.norm(given)
        return unit


@dataclass(frozen=True, eq=False)
class IntrinsicsPrior:
    """Prior knowledge of a camera's intrinsics, independent of each other.

    Attributes:
        mean: Parameters in the order of the camera model.
        stddev: Their standard deviations; infinite where nothing is known.

    Raises:
        InputError: Lengths differ, or a standard deviation is not positive.
    """

    mean: Floats
    stddev: Floats

    def __post_init__(self) -> None:
        """Check values."""
        mean, stddev = np.asarray(self.mean, np.float64), np.asarray(self.stddev, np.float64)
        if mean.ndim != 1 or mean.shape != stddev.shape:
            raise InputError(
                f"IntrinsicsPrior: mean of shape {mean.shape}, stddev of shape {stddev.shape}; "
                "both must be (n,) with the n parameters of the camera"
            )
        if not (stddev > 0).all() or not np.isfinite(mean).all():
            raise InputError(
                "IntrinsicsPrior: stddev must be positive, infinite where nothing is known, and "
                "mean finite"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "stddev", stddev)


_SEMI_MAJOR_AXIS = 6378137.0
"""The semi-major axis of WGS84, in metres."""

_FLATTENING = 1 / 298.257223563
"""The flattening of WGS84."""


def _earth_centred(places: Floats) -> Floats:
    """Return x, y, z in metres of (3, ...) latitudes, longitudes in degrees and altitudes."""
    latitude, longitude, altitude = np.radians(places[0]), np.radians(places[1]), places[2]
    square = _FLATTENING * (2 - _FLATTENING)
    normal = _SEMI_MAJOR_AXIS / np.sqrt(1 - square * np.sin(latitude) ** 2)
    across = (normal + altitude) * np.cos(latitude)
    found: Floats = np.stack(
        [
            across * np.cos(longitude),
            across * np.sin(longitude),
            (normal * (1 - square) + altitude) * np.sin(latitude),
        ]
    )
    return found


def _east_north_up(places: Floats, origin: Floats) -> Floats:
    offset = _earth_centred(places) - _earth_centred(origin)[:, None]
    latitude, longitude = np.radians(origin[:2])
    sine, cosine = np.sin(latitude), np.cos(latitude)
    east = [-np.sin(longitude), np.cos(longitude), 0.0]
    north = [-sine * np.cos(longitude), -sine * np.sin(longitude), cosine]
    up = [cosine * np.cos(longitude), cosine * np.sin(longitude), sine]
    local: Floats = (np.array([east, north, up]) @ offset).T
    return local


_LONGEST_LINE_BYTES = 1 << 20


def read_positions(
    path: FilePath, model: Model, *, stddev: float | None = None, is_gps: bool = False
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
    run = parse_numbers(b" ".join(words[1:]))
    if len(run.values) != 3 or not np.isfinite(run.values).all():
        stray = "" if run.stray is None else f"; {shown(run.stray)} is no number"
        raise FileFormatError(
            f"{where}: it must be a name and three numbers, x y z, separated by spaces{stray}"
        )
    place: list[float] = run.values.tolist()
    return place
