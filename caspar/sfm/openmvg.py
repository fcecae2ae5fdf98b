"""Read `sfm_data.json` of openMVG.

A view sees a point X at ``camera(R (X - C))``, R and C the rotation and centre of its pose, in
axes as COLMAP's. Pixels have their origin in the centre of the first pixel, half a pixel from
COLMAP's. Cameras: `pinhole`, `pinhole_radial_k1`, `pinhole_radial_k3`, `pinhole_brown_t2` and
`fisheye` become SIMPLE_PINHOLE, SIMPLE_RADIAL, FULL_OPENCV twice, and OPENCV_FISHEYE.

Input: the file. Output: `caspar.colmap.Model`. Cost: some microseconds an observation.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from caspar.cameras import MODELS
from caspar.colmap.model import Cameras, Images, Model, Points, offsets_of
from caspar.io.compressed import FilePath, path_text
from caspar.sfm.json_text import Fields, read_json

_LARGEST_ID = (1 << 31) - 2
_UNDEFINED = (1 << 32) - 1  # of a view without a pose or a camera
_LARGEST_SIDE = 1 << 24
_ROTATION_TOLERANCE = 1e-2

_MODELS = {
    "pinhole": "SIMPLE_PINHOLE",
    "pinhole_radial_k1": "SIMPLE_RADIAL",
    "pinhole_radial_k3": "FULL_OPENCV",
    "pinhole_brown_t2": "FULL_OPENCV",
    "fisheye": "OPENCV_FISHEYE",
}


def read_openmvg(path: FilePath) -> Model:
    """Read a scene of openMVG.

    Args:
        path: `sfm_data.json`; plain, bzip2 or gzip.

    Returns:
        The views that have a pose, with the observations of points. Ids are openMVG's keys plus 1;
        the colors of points are black, as the file has none.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format, or a camera is of a kind that is not
            read; the message says where.
        OptionError: `path` is no path.
    """
    path = path_text(path)
    fields = Fields(read_json(path), "the file", path)
    names: dict[int, str] = {}  # of polymorphic_id, said only where an id first comes
    cameras = [_camera(entry, names) for entry in _by_key(fields, "intrinsics").values()]
    poses = {
        key: _pose(entry.object("value")) for key, entry in _by_key(fields, "extrinsics").items()
    }
    images = {}
    camera_ids = {camera[0] for camera in cameras}
    for key, entry in _by_key(fields, "views").items():
        data = entry.object("value").object("ptr_wrapper").object("data")
        pose, camera = (data.integer(name, _UNDEFINED) for name in ("id_pose", "id_intrinsic"))
        if pose in poses and camera + 1 in camera_ids:
            images[key] = (data.text("filename"), camera + 1, poses[pose])
    return _model(cameras, images, _by_key(fields, "structure"))


def _key(entry: Fields) -> int:
    return entry.integer("key", _LARGEST_ID)


def _by_key(fields: Fields, name: str) -> dict[int, Fields]:
    """Return the entries of a list by their keys, each of which must be there once."""
    found: dict[int, Fields] = {}
    for entry in fields.list(name):
        if found.setdefault(_key(entry), entry) is not entry:
            raise entry.error(f"has the key {_key(entry)}, which another entry has too")
    return found


def _camera(entry: Fields, names: dict[int, str]) -> tuple[int, int, int, int, list[float]]:
    value = entry.object("value")
    tag = value.integer("polymorphic_id", (1 << 32) - 1) & ((1 << 31) - 1)
    if "polymorphic_name" in value:
        names[tag] = value.text("polymorphic_name")
    kind = names.get(tag, "")
    if kind not in _MODELS:
        raise value.error(
            f"has a camera of the kind {kind!r:.40}, which is not read; allowed are "
            f"{', '.join(_MODELS)}"
        )
    data = value.object("ptr_wrapper").object("data")
    width, height = (data.integer(side, _LARGEST_SIDE) for side in ("width", "height"))
    focal = data.number("focal_length")
    x, y = data.numbers("principal_point", 2) + 0.5
    if kind == "pinhole":
        own = [focal, x, y]
    elif kind == "pinhole_radial_k1":
        own = [focal, x, y, *data.numbers("disto_k1", 1)]
    elif kind == "pinhole_radial_k3":
        k1, k2, k3 = data.numbers("disto_k3", 3)
        own = [focal, focal, x, y, k1, k2, 0.0, 0.0, k3, 0.0, 0.0, 0.0]
    elif kind == "pinhole_brown_t2":
        k1, k2, k3, t1, t2 = data.numbers("disto_t2", 5)
        # openMVG has t2 (r^2 + 2 x^2) + 2 t1 x y in x: the order of COLMAP's p1, p2
        own = [focal, focal, x, y, k1, k2, t1, t2, k3, 0.0, 0.0, 0.0]
    else:
        own = [focal, focal, x, y, *data.numbers("fisheye", 4)]
    model_id = MODELS[_MODELS[kind]].model_id
    assert model_id is not None
    return _key(entry) + 1, model_id, width, height, [float(one) for one in own]


def _pose(value: Fields) -> NDArray[np.float64]:
    """qw qx qy qz tx ty tz."""
    matrix = value.numbers("rotation", 3, 3)
    centre = value.numbers("center", 3)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = np.abs(matrix @ matrix.T - np.eye(3)).max()
    if not deviation <= _ROTATION_TOLERANCE or np.linalg.det(matrix) <= 0.0:
        raise value.error("has a field 'rotation' that is no rotation")
    turn = Rotation.from_matrix(matrix)
    return np.concatenate([turn.as_quat()[[3, 0, 1, 2]], -turn.apply(centre)])


def _model(
    cameras: list[tuple[int, int, int, int, list[float]]],
    images: dict[int, tuple[str, int, NDArray[np.float64]]],
    structure: dict[int, Fields],
) -> Model:
    keys = sorted(images)
    row_of = {key: row for row, key in enumerate(keys)}
    ids: list[int] = []
    xyz: list[Any] = []
    seen: list[tuple[int, int, float, float]] = []  # point, image row, x, y
    for key, entry in structure.items():
        value = entry.object("value")
        ids.append(key + 1)
        xyz.append(value.numbers("X", 3))
        for view, observation in _by_key(value, "observations").items():
            row = row_of.get(view)
            if row is not None:
                x, y = observation.object("value").numbers("x", 2) + 0.5
                seen.append((len(ids) - 1, row, float(x), float(y)))
    table = np.array(seen, np.float64).reshape(-1, 4)
    point, image = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    by_image = np.argsort(image, kind="stable")
    offsets = offsets_of(np.bincount(image, minlength=len(keys)))
    within = np.empty(len(table), np.int64)
    within[by_image] = np.arange(len(table)) - offsets[image[by_image]]
    all_ids = np.array(ids, np.int64)
    return Model(
        cameras=Cameras(
            ids=np.array([camera[0] for camera in cameras], np.int64),
            model_ids=np.array([camera[1] for camera in cameras], np.int64),
            widths=np.array([camera[2] for camera in cameras], np.int64),
            heights=np.array([camera[3] for camera in cameras], np.int64),
            offsets=offsets_of([len(camera[4]) for camera in cameras]),
            parameters=np.array([one for camera in cameras for one in camera[4]], np.float64),
        ),
        images=Images(
            ids=np.array(keys, np.int64) + 1,
            names=tuple(images[key][0] for key in keys),
            camera_ids=np.array([images[key][1] for key in keys], np.int64),
            cam_from_world=np.array([images[key][2] for key in keys], np.float64).reshape(-1, 7),
            offsets=offsets,
            keypoints=table[by_image, 2:],
            point_ids=all_ids[point[by_image]],
        ),
        points=Points(
            ids=all_ids,
            xyz=np.array(xyz, np.float64).reshape(-1, 3),
            colors=np.zeros((len(ids), 3), np.uint8),
            errors=np.full(len(ids), -1.0),
            offsets=offsets_of(np.bincount(point, minlength=len(ids))),
            image_ids=np.array(keys, np.int64)[image] + 1 if keys else image,
            keypoint_index=within,
        ),
    )
