"""Folders of COLMAP models, binary and text, of COLMAP 3 and 4.

Input: a folder, or a `Model`. Output: a `Model`, or files. A file is read whole: memory goes with
the size of the files, whatever counts they announce. A new file replaces an old one only when all
files are complete.
"""

import os
import stat
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.files import binary, text
from caspar.colmap.model import NO_POINT, Cameras, Model, SensorType, num_parameters_of
from caspar.errors import FileFormatError, InputError, warn_user
from caspar.io.compressed import FilePath, path_text
from caspar.io.replace import FileTransaction, open_for_replacing
from caspar.options import choice


class ModelFormat(Enum):
    """Form of the files of a model."""

    BINARY = "binary"
    TEXT = "text"

    @property
    def suffix(self) -> str:
        """Suffix of the files, with the dot."""
        return ".bin" if self is ModelFormat.BINARY else ".txt"

    def files(self, folder: FilePath) -> list[Path]:
        """List the files that a model in a folder has or may have."""
        return [_file(Path(path_text(folder)), name, self) for name in _PARTS]

    def check(self, model: Model) -> None:
        """Refuse a model that could not be read back from this format.

        Raises:
            InputError: An id, a size or a color is not an integer that the format can hold, a
                camera has a wrong number of parameters, or the format cannot hold the name of an
                image.
        """
        for name, part in model.parts().items():
            for field, (least, largest) in _RANGES[name].items():
                _check_integers(f"model, {name}.{field}", getattr(part, field), least, largest)
        _check_parameters(model.cameras)
        for image_id, image_name in zip(model.images.ids.tolist(), model.images.names, strict=True):
            if (wrong := self._wrong_name(image_name)) is not None:
                raise InputError(
                    f"the name {image_name!r} of image {image_id} cannot be written as "
                    f"{self.value}: {wrong}"
                )

    def _wrong_name(self, name: str) -> str | None:
        if self is ModelFormat.BINARY and "\0" in name:
            return "it has a NUL character; rename the image"
        if self is ModelFormat.TEXT and ("\n" in name or name != name.strip() or not name):
            return (
                "it is empty, has a line break, or has white space at an end; write a binary model"
            )
        try:
            encoded = name.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            encoded = b""
        if encoded.decode(errors="surrogateescape") != name:
            return "it has surrogates that stand for no bytes of a file name; rename the image"
        return None


class _Part(NamedTuple):
    stem: str
    read_binary: Callable[[binary.ByteReader], Any]
    read_text: Callable[[text.LineReader], Any]
    write_binary: Callable[[Any], Iterator[bytes]]
    write_text: Callable[[Any], Iterator[bytes]]
    is_needed: bool


_PARTS = {
    "cameras": _Part(
        "cameras",
        binary.read_cameras,
        text.read_cameras,
        binary.camera_bytes,
        text.camera_text,
        True,
    ),
    "images": _Part(
        "images", binary.read_images, text.read_images, binary.image_bytes, text.image_text, True
    ),
    "points": _Part(
        "points3D", binary.read_points, text.read_points, binary.point_bytes, text.point_text, True
    ),
    "rigs": _Part("rigs", binary.read_rigs, text.read_rigs, binary.rig_bytes, text.rig_text, False),
    "frames": _Part(
        "frames", binary.read_frames, text.read_frames, binary.frame_bytes, text.frame_text, False
    ),
}
"""Files by the field of `Model` that each holds."""

_ID_RANGE = (0, 2**32 - 1)
_LARGE_RANGE = (0, 2**63 - 1)

_RANGES = {
    "cameras": {
        "ids": _ID_RANGE,
        "model_ids": (0, max(MODELS_BY_ID)),
        "widths": _LARGE_RANGE,
        "heights": _LARGE_RANGE,
    },
    "images": {"ids": _ID_RANGE, "camera_ids": _ID_RANGE, "point_ids": (NO_POINT, _LARGE_RANGE[1])},
    "points": {
        "ids": _LARGE_RANGE,
        "colors": (0, 255),
        "image_ids": _ID_RANGE,
        "keypoint_index": _ID_RANGE,
    },
    "rigs": {"ids": _ID_RANGE, "sensor_types": (0, max(SensorType)), "sensor_ids": _ID_RANGE},
    "frames": {
        "ids": _ID_RANGE,
        "rig_ids": _ID_RANGE,
        "sensor_types": (0, max(SensorType)),
        "sensor_ids": _ID_RANGE,
        "data_ids": _LARGE_RANGE,
    },
}
"""Integers that both formats hold; COLMAP reads ids of 32 bits from text, too."""


def read_model(folder: FilePath) -> Model:
    """Read a COLMAP model.

    Args:
        folder: Holds cameras, images and points3D, and of a model of COLMAP 4 rigs and frames, with
            the suffix .bin or .txt. If all are there in both forms, the binary ones are read.

    Returns:
        The model, its parts in the order of the files.

    Raises:
        FileNotFoundError: There is no such folder.
        FileFormatError: A file is missing, or does not follow the format; the message has the file
            and the byte or the line.
        OptionError: `folder` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> import pycolmap
        >>> Path("model").mkdir()
        >>> pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions()).write("model")
        >>> caspar.colmap.read_model("model")
        Model(2 cameras, 10 images, 100 points, ...)
    """
    place = Path(path_text(folder))
    kind = _format_of(place)
    needed = {name for name, part in _PARTS.items() if part.is_needed}
    is_version_4 = [_file(place, name, kind).exists() for name in _PARTS.keys() - needed]
    if any(is_version_4) and not all(is_version_4):
        raise FileFormatError(
            f"{place}: a model of COLMAP 4 has both rigs{kind.suffix} and frames{kind.suffix}, one "
            "of COLMAP 3 neither; here is one of them"
        )
    names = list(_PARTS) if all(is_version_4) else [name for name in _PARTS if name in needed]
    parts = {name: _read(_file(place, name, kind), _PARTS[name], kind) for name in names}
    try:
        return Model(**parts)
    except InputError as error:
        raise FileFormatError(f"{place}: {error}") from error


def write_model(model: Model, folder: FilePath, format: str | ModelFormat = "binary") -> None:
    """Write a COLMAP model, so that `read_model` gives it back, as all versions of COLMAP do.

    A model without rigs and frames is written as by COLMAP 3, which COLMAP 4 reads too. When all
    files are complete, they replace the old ones. If that fails or is interrupted, the old ones are
    put back: the folder has all files of one model or of the other.

    Args:
        model: What to write.
        folder: Where to write; it is made if its parent is there.
        format: `binary` or `text`.

    Raises:
        OptionError: An unknown format, or `folder` is no path.
        InputError: The model has no rigs and frames, but the folder has those of another model; or
            the format cannot hold a name or a number, see `ModelFormat.check`. Nothing is written.
        OSError: A file cannot be written; all old files are unchanged.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> import pycolmap
        >>> Path("model").mkdir()
        >>> pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions()).write("model")
        >>> caspar.colmap.write_model(caspar.colmap.read_model("model"), "copy", "text")
        >>> sorted(path.name for path in Path("copy").iterdir())
        ['cameras.txt', 'frames.txt', 'images.txt', 'points3D.txt', 'rigs.txt']
    """
    place = Path(path_text(folder))
    kind = choice(ModelFormat, "format", format)
    kind.check(model)
    stale = [_file(place, name, kind) for name in _PARTS.keys() - model.parts().keys()]
    for file in sorted(stale):
        if file.exists():
            raise InputError(
                f"{file} belongs to another model: the one to be written has no rigs and frames; "
                "write to another folder, or remove the file"
            )
    if kind is ModelFormat.TEXT and _file(place, "cameras", ModelFormat.BINARY).exists():
        warn_user(f"{place} has a binary model, which COLMAP and caspar read instead of text files")
    files = FileTransaction()
    files.run(lambda: _write_parts(files, model, place, kind))


def _write_parts(files: FileTransaction, model: Model, place: Path, kind: ModelFormat) -> None:
    files.make_folder(place)
    for name, part in model.parts().items():
        writers = _PARTS[name]
        is_binary = kind is ModelFormat.BINARY
        with open_for_replacing(_file(place, name, kind)) as stream:
            for piece in (writers.write_binary if is_binary else writers.write_text)(part):
                stream.write(piece)


def _file(folder: Path, name: str, kind: ModelFormat) -> Path:
    return folder / f"{_PARTS[name].stem}{kind.suffix}"


def _check_integers(name: str, values: Any, least: int, largest: int) -> None:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name}: dtype {array.dtype}; it must be of integers")
    is_good = (array >= least) & (array <= largest)
    if not is_good.all():
        place = tuple(np.argwhere(~is_good)[0].tolist())
        row = ", ".join(map(str, place))
        raise InputError(
            f"{name}[{row}] is {array[place]}; files of COLMAP hold {least} to {largest}"
        )


def _check_parameters(cameras: Cameras) -> None:
    wanted = [num_parameters_of(model_id) for model_id in cameras.model_ids.tolist()]
    for camera_id, found, count in zip(
        cameras.ids.tolist(), np.diff(cameras.offsets).tolist(), wanted, strict=True
    ):
        if found != count:
            raise InputError(
                f"model, cameras: camera {camera_id} has {found} parameters; its model has {count}"
            )


def _format_of(folder: Path) -> ModelFormat:
    if not folder.exists():
        raise FileNotFoundError(2, "there is no such folder", str(folder))
    missing = {
        kind: [
            file.name
            for name, part in _PARTS.items()
            if part.is_needed and not (file := _file(folder, name, kind)).exists()
        ]
        for kind in ModelFormat
    }
    for kind, files in missing.items():
        if not files:
            return kind
    fewest = min(missing.values(), key=len)
    raise FileFormatError(
        f"{folder}: no COLMAP model is there: {', '.join(fewest)} missing; a model has cameras, "
        "images and points3D, all .bin or all .txt"
    )


def _read(file: Path, part: _Part, kind: ModelFormat) -> Any:
    # A device or a FIFO may have no end.
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise FileFormatError(f"{file}: this is not a regular file")
    data = file.read_bytes()
    if kind is ModelFormat.BINARY:
        return part.read_binary(binary.ByteReader(data, str(file)))
    return part.read_text(text.LineReader(data, str(file)))
