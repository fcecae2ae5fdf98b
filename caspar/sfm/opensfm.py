"""Read and write `reconstruction.json` of OpenSfM, with `tracks.csv`.

A shot sees a point X at ``camera(R X + t)``, R from the angle-axis `rotation`, t the `translation`,
in axes as COLMAP's: x to the right, y down, z forward. OpenSfM's cameras work in units of the
greater side of the image, from its centre. Here they become COLMAP's, in pixels whose origin is the
corner of the image:

=================  ==================  ==============================
`projection_type`  parameters          COLMAP's model
=================  ==================  ==============================
perspective        focal k1 k2         RADIAL
brown              focal_x ... p1 p2   FULL_OPENCV, k4 k5 k6 zero
fisheye            focal k1 k2         RADIAL_FISHEYE
fisheye_opencv     focal_x ... k1..k4  OPENCV_FISHEYE
=================  ==================  ==============================

Input: the two files. Output: `OpenSfmScene`, whose `model` is what `caspar.colmap` takes. What the
model has no place for, such as GPS positions, stays in `document` and is written again.
Cost: some microseconds an observation.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS, MODELS_BY_ID
from caspar.colmap.model import NO_POINT, Cameras, Images, Model, Points, offsets_of
from caspar.errors import FileFormatError, InputError
from caspar.io.compressed import FilePath, path_text
from caspar.io.replace import write_file
from caspar.io.rotations import angle_axis_from_quaternion, quaternion_from_angle_axis
from caspar.sfm.json_text import Fields, read_json
from caspar.sfm.tracks import Tracks, read_tracks

_LARGEST_SIDE = 1 << 24


@dataclass(frozen=True)
class _Projection:
    """The conversion of OpenSfM's camera to COLMAP's `model`, in the order of its parameters.

    `scaled` are fields in units of the greater side; c_x and c_y are from the image's centre, None
    is the centre itself. `others` have no unit; None is zero.
    """

    model: str
    scaled: tuple[str | None, ...]
    others: tuple[str | None, ...]


_BROWN = ("focal_x", "focal_y", "c_x", "c_y")
_PROJECTIONS = {
    "perspective": _Projection("RADIAL", ("focal", None, None), ("k1", "k2")),
    "brown": _Projection("FULL_OPENCV", _BROWN, ("k1", "k2", "p1", "p2", "k3", None, None, None)),
    "fisheye": _Projection("RADIAL_FISHEYE", ("focal", None, None), ("k1", "k2")),
    "fisheye_opencv": _Projection("OPENCV_FISHEYE", _BROWN, ("k1", "k2", "k3", "k4")),
}


@dataclass(frozen=True, eq=False, repr=False)
class OpenSfmScene:
    """A reconstruction of OpenSfM.

    Attributes:
        model: What `caspar.colmap.bundle_adjustment` takes. Ids count from 1: cameras, shots and
            points in the order of the document.
        tracks: The observations, those of images that are no shots among them.
        document: All reconstructions of the file, as JSON has them.
        index: Which of them `model` is.
        camera_names: Name of each camera of the model.
        point_names: Name of each point of the model when it was read; the names of images are in
            the model.
    """

    model: Model
    tracks: Tracks
    document: tuple[Mapping[str, Any], ...]
    index: int
    camera_names: tuple[str, ...]
    point_names: tuple[str, ...]

    def with_model(self, model: Model) -> "OpenSfmScene":
        """Return the scene with the values of a model that was adjusted.

        Args:
            model: Of this scene's `model`; points that it no longer has are left out.

        Raises:
            InputError: It has other cameras or images, or the shots are in rigs of several cameras,
                whose poses would no longer agree.
        """
        for name, found, wanted in (
            ("camera", model.cameras.ids, self.model.cameras.ids),
            ("image", model.images.ids, self.model.images.ids),
        ):
            if not np.array_equal(found, wanted):
                raise InputError(f"the model has other {name} ids than the scene")
        if model.images.names != self.model.images.names:
            raise InputError("the model has other names of images than the scene")
        changed = copy.deepcopy(dict(self.document[self.index]))
        _put_cameras(changed, self.camera_names, model.cameras)
        _put_shots(changed, model.images)
        xyz = {
            int(one): place for one, place in zip(model.points.ids, model.points.xyz, strict=True)
        }
        changed["points"] = {
            name: {**changed["points"][name], "coordinates": xyz[place].tolist()}
            for place, name in enumerate(self.point_names, 1)
            if place in xyz
        }
        document = list(self.document)
        document[self.index] = changed
        return replace(self, model=model, document=tuple(document))

    def __repr__(self) -> str:
        """Return the sizes; the arrays are too large to be shown."""
        return f"OpenSfmScene({self.model!r})"


def read_opensfm(reconstruction: FilePath, tracks: FilePath, *, index: int = 0) -> OpenSfmScene:
    """Read a reconstruction of OpenSfM.

    Args:
        reconstruction: `reconstruction.json`; plain, bzip2 or gzip.
        tracks: `tracks.csv`; plain, bzip2 or gzip.
        index: which reconstruction of the file; they are sorted, the largest one first.

    Returns:
        The scene.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: a file does not follow its format, or a camera is of a kind that is not
            read; the message says where.
        InputError: there is no reconstruction `index`.
        OptionError: a path is no path.
    """
    path = path_text(reconstruction)
    document = read_json(path)
    if not isinstance(document, list):
        raise FileFormatError(f"{path}: this is no list of reconstructions")
    if not 0 <= index < len(document):
        raise InputError(f"index={index}: {path} has {len(document)} reconstructions")
    fields = Fields(document[index], f"reconstruction {index}", path)
    observed = read_tracks(tracks)
    cameras, camera_names = _cameras(fields.object("cameras"))
    shots = dict(fields.object("shots").items())
    coordinates, colors, point_names = _points(fields.object("points"))
    model = _model(
        cameras, _poses(shots, camera_names), (coordinates, colors, point_names), observed
    )
    return OpenSfmScene(
        model=model,
        tracks=observed,
        document=tuple(document),
        index=index,
        camera_names=camera_names,
        point_names=point_names,
    )


# -- reading ---------------------------------------------------------------------------------------


def _cameras(fields: Fields) -> tuple[Cameras, tuple[str, ...]]:
    names, models, sides, parameters = [], [], [], []
    for name, camera in fields.items():
        kind = camera.text("projection_type")
        projection = _PROJECTIONS.get(kind)
        if projection is None:
            raise camera.error(
                f"has the projection_type {kind!r:.40}, which is not read; allowed are "
                f"{', '.join(_PROJECTIONS)}"
            )
        width, height = (camera.integer(side, _LARGEST_SIDE) for side in ("width", "height"))
        size = max(width, height)
        centre = {"c_x": 0.5 * width, "c_y": 0.5 * height}
        own = [
            size * camera.number(field) + centre.get(field, 0.0)
            for field in projection.scaled
            if field is not None
        ]
        if None in projection.scaled:
            own += list(centre.values())
        own += [0.0 if field is None else camera.number(field, 0.0) for field in projection.others]
        names.append(name)
        models.append(MODELS[projection.model].model_id)
        sides.append((width, height))
        parameters.append(own)
    side_array = np.array(sides, np.int64).reshape(-1, 2)
    cameras = Cameras(
        ids=np.arange(1, len(names) + 1),
        model_ids=np.array(models, np.int64),
        widths=side_array[:, 0].copy(),
        heights=side_array[:, 1].copy(),
        offsets=offsets_of([len(own) for own in parameters]),
        parameters=np.array([number for own in parameters for number in own], np.float64),
    )
    return cameras, tuple(names)


@dataclass(frozen=True, eq=False)
class _Shots:
    names: tuple[str, ...]
    camera_rows: NDArray[np.int64]
    poses: NDArray[np.float64]


def _poses(shots: Mapping[str, Fields], camera_names: tuple[str, ...]) -> _Shots:
    rows = {name: row for row, name in enumerate(camera_names)}
    cameras, turns, places = [], [], []
    for shot in shots.values():
        camera = shot.text("camera")
        if camera not in rows:
            raise shot.error(f"names the camera {camera!r:.60}, which the file does not have")
        cameras.append(rows[camera])
        turns.append(shot.numbers("rotation", 3))
        places.append(shot.numbers("translation", 3))
    turn = np.array(turns, np.float64).reshape(-1, 3)
    quaternion = quaternion_from_angle_axis(np.clip(turn, -1e100, 1e100))
    poses = np.concatenate(
        [quaternion[:, [3, 0, 1, 2]], np.array(places, np.float64).reshape(-1, 3)], axis=1
    )
    return _Shots(tuple(shots), np.array(cameras, np.int64), poses)


def _points(fields: Fields) -> tuple[NDArray[np.float64], NDArray[np.uint8], tuple[str, ...]]:
    names, coordinates, colors = [], [], []
    for name, point in fields.items():
        names.append(name)
        coordinates.append(point.numbers("coordinates", 3))
        colors.append(point.numbers("color", 3) if "color" in point else np.zeros(3))
    color = np.array(colors, np.float64).reshape(-1, 3)
    return (
        np.array(coordinates, np.float64).reshape(-1, 3),
        np.clip(np.rint(color), 0, 255).astype(np.uint8),
        tuple(names),
    )


def _model(
    cameras: Cameras,
    shots: _Shots,
    points: tuple[NDArray[np.float64], NDArray[np.uint8], tuple[str, ...]],
    tracks: Tracks,
) -> Model:
    coordinates, colors, point_names = points
    shot_rows = {name: row for row, name in enumerate(shots.names)}
    point_ids = {name: row for row, name in enumerate(point_names, 1)}
    shot_of = np.array([shot_rows.get(name, -1) for name in tracks.images], np.int64)
    point_of = np.array([point_ids.get(name, NO_POINT) for name in tracks.tracks], np.int64)
    shot = shot_of[tracks.image_index]
    kept = np.flatnonzero(shot >= 0)
    kept = kept[np.argsort(shot[kept], kind="stable")]
    shot, seen = shot[kept], point_of[tracks.track_index[kept]]
    offsets = offsets_of(np.bincount(shot, minlength=len(shots.names)))
    camera = shots.camera_rows[shot]
    sides = np.stack([cameras.widths, cameras.heights], axis=1)[camera]
    keypoints = tracks.xy[kept] * sides.max(axis=1, initial=0)[:, None] + 0.5 * sides
    images = Images(
        ids=np.arange(1, len(shots.names) + 1),
        names=shots.names,
        camera_ids=shots.camera_rows + 1,
        cam_from_world=shots.poses,
        offsets=offsets,
        keypoints=keypoints,
        point_ids=seen,
    )
    is_seen = seen != NO_POINT
    order = np.argsort(seen[is_seen], kind="stable")
    within = np.arange(len(shot)) - offsets[shot]
    return Model(
        cameras=cameras,
        images=images,
        points=Points(
            ids=np.arange(1, len(point_names) + 1),
            xyz=coordinates,
            colors=colors,
            errors=np.full(len(point_names), -1.0),
            offsets=offsets_of(np.bincount(seen[is_seen], minlength=len(point_names) + 1)[1:]),
            image_ids=(shot[is_seen] + 1)[order],
            keypoint_index=within[is_seen][order],
        ),
    )


# -- writing ---------------------------------------------------------------------------------------


def write_opensfm(path: FilePath, scene: OpenSfmScene) -> None:
    """Write `reconstruction.json`; the tracks are written by `write_tracks`.

    Args:
        path: the file to create or replace.
        scene: as `read_opensfm` or `OpenSfmScene.with_model` returns it.

    Raises:
        ValueError: a number is not finite, or `path` is no path; nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.
    """
    text = json.dumps(list(scene.document), indent=4, allow_nan=False, ensure_ascii=False)
    # A surrogate that is alone in a name is no text of UTF-8, but JSON has an escape for it.
    write_file(path, f"{text}\n".encode(errors="backslashreplace"))


def _put_cameras(document: dict[str, Any], names: tuple[str, ...], cameras: Cameras) -> None:
    for row, name in enumerate(names):
        camera = document["cameras"][name]
        projection = _PROJECTIONS[camera["projection_type"]]
        model = MODELS_BY_ID[int(cameras.model_ids[row])]
        if model.name != projection.model:
            raise InputError(f"camera {name!r} is {model.name}; it must be {projection.model}")
        own = cameras.parameters[cameras.offsets[row] : cameras.offsets[row + 1]].tolist()
        size = max(camera["width"], camera["height"])
        centre = {"c_x": 0.5 * camera["width"], "c_y": 0.5 * camera["height"]}
        fields = (*projection.scaled, *projection.others)
        for place, field in enumerate(fields):
            if field is None:
                continue
            is_scaled = place < len(projection.scaled)
            value = (own[place] - centre.get(field, 0.0)) / size if is_scaled else own[place]
            if field in camera or value != 0.0:
                camera[field] = value


def _put_shots(document: dict[str, Any], images: Images) -> None:
    poses = images.cam_from_world
    turns = angle_axis_from_quaternion(poses[:, [1, 2, 3, 0]])
    new = {
        name: {"rotation": turn.tolist(), "translation": pose[4:].tolist()}
        for name, turn, pose in zip(images.names, turns, poses, strict=True)
    }
    for name, pose in new.items():
        document["shots"][name].update(pose)
    instances = document.get("rig_instances", {})
    rigs = document.get("rig_cameras", {})
    for instance in instances.values():
        shots = instance.get("rig_camera_ids", {})
        is_alone = len(shots) == 1 and all(
            not any(
                [
                    *rigs.get(rig, {}).get("rotation", [0]),
                    *rigs.get(rig, {}).get("translation", [0]),
                ]
            )
            for rig in shots.values()
        )
        if not is_alone:
            raise InputError(
                "the shots are in rigs of several cameras; their poses are adjusted one by one, so "
                "the rigs' poses would no longer agree"
            )
        instance.update(new[next(iter(shots))])
