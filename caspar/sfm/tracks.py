"""Read and write `tracks.csv` of OpenSfM, versions 0 to 2.

Columns are separated by tabulators: image, track, feature, x, y; then, from version 1 on, the
feature's size; then red, green, blue; in version 2 two labels of segmentation. x and y are
*normalised*: in units of the greater side of the image, from its centre, y downwards.

Input: a text file, plain or packed. Output: `Tracks`. Cost: some microseconds a line.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.compressed import FilePath, bounded_lines, open_for_reading, path_text
from caspar.io.numbers import parse_numbers, shown
from caspar.io.replace import open_for_packing

LONGEST_LINE_BYTES = 1 << 16
_LONGEST_NAME_BYTES = 1 << 14  # two of them and the numbers fit into a line
_LARGEST_FEATURE = 2.0**53  # whole numbers below it are the same in float64
_LINES_PER_WRITE = 1 << 13
_LINES_AT_ONCE = 1 << 13

_HEADER = b"OPENSFM_TRACKS_VERSION_v"
_NUM_COLUMNS = {0: 8, 1: 9, 2: 11}


@dataclass(frozen=True, eq=False, repr=False)
class Tracks:
    """Observations of tracks in images.

    Attributes:
        version: Of the file: 0, 1 or 2.
        images: Names of images, in the order in which they first come.
        tracks: Names of tracks, in the order in which they first come.
        image_index: (n,) int32, rows of `images`.
        track_index: (n,) int32, rows of `tracks`.
        features: (n,) int64, the feature in the image's list.
        xy: (n, 2) float64, normalised.
        others: (n, k) float64, what follows x and y: size if the version has it, red, green, blue,
            labels if the version has them.
    """

    version: int
    images: tuple[str, ...]
    tracks: tuple[str, ...]
    image_index: NDArray[np.int32]
    track_index: NDArray[np.int32]
    features: NDArray[np.int64]
    xy: NDArray[np.float64]
    others: NDArray[np.float64]

    def __repr__(self) -> str:
        """Return the sizes; the arrays are too large to be shown."""
        return (
            f"Tracks({len(self.images)} images, {len(self.tracks)} tracks, "
            f"{len(self.xy)} observations)"
        )


def read_tracks(path: FilePath) -> Tracks:
    """Read `tracks.csv`.

    Args:
        path: the file; plain, bzip2 or gzip.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format; the message gives the line.
        OptionError: `path` is no path.
    """
    path = path_text(path)
    images: dict[str, int] = {}
    tracks: dict[str, int] = {}
    ends: dict[tuple[int, int], int] = {}
    parts: list[NDArray[np.float64]] = []
    version, num_columns = 0, _NUM_COLUMNS[0]
    pending: list[tuple[int, bytes]] = []
    with open_for_reading(path) as stream:
        for number, text in bounded_lines(stream, path, LONGEST_LINE_BYTES):
            line = text.rstrip(b"\r\n")
            if not line:
                continue
            if number == 1 and line.startswith(_HEADER):
                version = _version(line, path)
                num_columns = _NUM_COLUMNS[version]
                continue
            columns = line.split(b"\t")
            if len(columns) != num_columns:
                raise FileFormatError(
                    f"{path}, line {number}: there are {len(columns)} columns; version {version} "
                    f"has {num_columns}, separated by tabulators"
                )
            names = [_name(name, number, path) for name in columns[:2]]
            both = (
                images.setdefault(names[0], len(images)),
                tracks.setdefault(names[1], len(tracks)),
            )
            first = ends.setdefault(both, number)
            if first != number:
                raise FileFormatError(
                    f"{path}, line {number}: track {names[1]!r:.60} was in image {names[0]!r:.60} "
                    f"before, in line {first}; an observation must be there once"
                )
            pending.append((number, b" ".join(columns[2:])))
            if len(pending) == _LINES_AT_ONCE:
                parts.append(_parsed(pending, num_columns - 2, path))
                pending = []
    parts.append(_parsed(pending, num_columns - 2, path))
    numbers = np.concatenate(parts)
    index = np.array(list(ends), np.int32).reshape(-1, 2)
    return Tracks(
        version=version,
        images=tuple(images),
        tracks=tuple(tracks),
        image_index=index[:, 0].copy(),
        track_index=index[:, 1].copy(),
        features=numbers[:, 0].astype(np.int64),
        xy=numbers[:, 1:3].copy(),
        others=numbers[:, 3:].copy(),
    )


def _version(line: bytes, path: str) -> int:
    text = line[len(_HEADER) :].strip()
    if text not in (b"0", b"1", b"2"):
        raise FileFormatError(f"{path}, line 1: version {shown(text)} is not one of 0, 1 and 2")
    return int(text)


def _name(name: bytes, number: int, path: str) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}, line {number}: {shown(name)} is no UTF-8 text") from error


def _parsed(lines: list[tuple[int, bytes]], num_columns: int, path: str) -> NDArray[np.float64]:
    run = parse_numbers(b" ".join(text for _, text in lines))
    if run.stray is not None or run.values.size != len(lines) * num_columns:
        raise _wrong_line(lines, num_columns, path)
    values = run.values.reshape(len(lines), num_columns)
    is_good = np.isfinite(values).all(axis=1) & (np.abs(values[:, 0]) < _LARGEST_FEATURE)
    is_good &= values[:, 0] == np.floor(values[:, 0])
    if not is_good.all():
        number, text = lines[int(np.argmin(is_good))]
        raise FileFormatError(
            f"{path}, line {number}: {shown(text)} must be an integer and finite numbers"
        )
    return values


def _wrong_line(lines: list[tuple[int, bytes]], num_columns: int, path: str) -> FileFormatError:
    for number, text in lines:
        run = parse_numbers(text)
        if run.stray is not None:
            return FileFormatError(f"{path}, line {number}: {shown(run.stray)} is not a number")
        if len(run.values) != num_columns:
            return FileFormatError(
                f"{path}, line {number}: {len(run.values)} numbers follow the track; there must be "
                f"{num_columns}"
            )
    return FileFormatError(f"{path}: the columns of numbers cannot be read")


def write_tracks(path: FilePath, tracks: Tracks) -> None:
    """Write `tracks.csv`, so that `read_tracks` gives the tracks back.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        tracks: what to write.

    Raises:
        ValueError: a name holds a tabulator or the end of a line, is no text of UTF-8, or is too
            long; an observation is there twice; a number is not finite; a feature is beyond 2^53;
            or `path` is no path. Nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.
    """
    path = path_text(path)
    _check_names(tracks)
    pairs = tracks.image_index.astype(np.int64) * len(tracks.tracks) + tracks.track_index
    if len(np.unique(pairs)) < len(pairs):
        raise ValueError("Tracks: an observation of a track in an image is there twice")
    if (np.abs(tracks.features) >= _LARGEST_FEATURE).any():
        raise ValueError("Tracks.features: it must be between -2^53 and 2^53")
    if not (np.isfinite(tracks.xy).all() and np.isfinite(tracks.others).all()):
        raise ValueError("Tracks: a number is not finite")
    with open_for_packing(path) as stream:
        if tracks.version > 0:
            stream.write(f"{_HEADER.decode()}{tracks.version}\n".encode())
        for start in range(0, len(tracks.xy), _LINES_PER_WRITE):
            part = slice(start, start + _LINES_PER_WRITE)
            rows = zip(
                tracks.image_index[part].tolist(),
                tracks.track_index[part].tolist(),
                tracks.features[part].tolist(),
                tracks.xy[part].tolist(),
                tracks.others[part].tolist(),
                strict=True,
            )
            lines = (
                "\t".join(
                    [
                        tracks.images[image],
                        tracks.tracks[track],
                        str(feature),
                        *(_written(number) for number in (*xy, *others)),
                    ]
                )
                for image, track, feature, xy, others in rows
            )
            stream.write("".join(f"{line}\n" for line in lines).encode())


def _check_names(tracks: Tracks) -> None:
    for name in (*tracks.images, *tracks.tracks):
        if any(letter in name for letter in "\t\r\n"):
            raise ValueError(f"Tracks: the name {name!r} has a tabulator or the end of a line")
        try:
            num_bytes = len(name.encode())
        except UnicodeEncodeError:
            raise ValueError(f"Tracks: the name {name!r} is no text of UTF-8") from None
        if num_bytes > _LONGEST_NAME_BYTES:
            raise ValueError(
                f"Tracks: the name {name!r:.60} has {num_bytes} bytes; allowed are "
                f"{_LONGEST_NAME_BYTES}"
            )
        if name.startswith(_HEADER.decode()) and tracks.version == 0:
            raise ValueError(f"Tracks: the name {name!r:.60} would be read as the file's version")


def _written(number: float) -> str:
    """A number with all its digits; whole ones, such as colors, without a point."""
    return str(int(number)) if number == int(number) and abs(number) < 2.0**53 else repr(number)
