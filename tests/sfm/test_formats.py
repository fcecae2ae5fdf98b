"""Files of Bundler, OpenSfM and openMVG: what they hold, what they are solved to, round trips."""

import bz2
import codecs
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import FileFormatError, InputError
from caspar.sfm import (
    read_bundler,
    read_openmvg,
    read_opensfm,
    read_tracks,
    write_bundler,
    write_opensfm,
    write_tracks,
)
from tests.io.g2o_files import DATA

BUNDLER = DATA / "Balbianello.out.bz2"
BERLIN = (DATA / "berlin_reconstruction.json.bz2", DATA / "berlin_tracks.csv.bz2")


def assert_equal(found: Any, wanted: Any, atol: float) -> None:
    for field in fields(found):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=field.name)
        else:
            assert one == other, field.name


class TestBundler:
    """`.out` files."""

    def test_known_optimum(self) -> None:
        scene = read_bundler(BUNDLER)
        assert repr(scene) == "BundlerScene(5 cameras, 544 points, 1417 observations)"
        task = scene.problem()
        solver = caspar.Solver(
            [caspar.bundle_adjustment.snavely], backend="cpu", precision="float64"
        )
        result = solver.solve(
            {
                "Cam": task.cameras,
                "Point": task.points,
                "snavely": {
                    "cam": task.camera_index,
                    "point": task.point_index,
                    "pixel": task.pixels,
                },
            }
        )
        assert result.initial_cost == pytest.approx(126.9283, abs=5e-5)
        assert result.final_cost == pytest.approx(125.169594, abs=5e-7)
        solved = scene.with_values(result.values["Cam"], result.values["Point"])
        np.testing.assert_array_equal(solved.problem().cameras, result.values["Cam"])

    def test_round_trip(self, tmp_path: Path) -> None:
        scene = read_bundler(BUNDLER)
        write_bundler(tmp_path / "out.out", scene)
        assert_equal(read_bundler(tmp_path / "out.out"), scene, 3e-16)

    def test_cameras_that_are_not_registered(self, tmp_path: Path) -> None:
        scene = read_bundler(BUNDLER)
        is_registered = scene.is_registered.copy()
        is_registered[1] = False
        cameras = scene.cameras.copy()
        cameras[1] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
        part = replace(scene, cameras=cameras, is_registered=is_registered)
        write_bundler(tmp_path / "out.out.gz", part)
        again = read_bundler(tmp_path / "out.out.gz")
        assert_equal(again, part, 3e-16)
        task = again.problem()
        assert task.num_cameras == 4
        assert task.num_observations == int((scene.camera_index != 1).sum())
        assert task.camera_index.max() == 3
        with pytest.raises(InputError, match=r"cameras has shape \(5, 10\); it must have shape"):
            again.with_values(scene.cameras, scene.points)

    def test_what_cannot_be_written(self, tmp_path: Path) -> None:
        """A focal length of 0 is how the file says that a camera is not registered."""
        scene = read_bundler(BUNDLER)
        for row, is_registered in ((1, True), (2, False)):
            cameras, registered = scene.cameras.copy(), scene.is_registered.copy()
            cameras[1, 7], registered[2] = (0.0, True) if is_registered else (500.0, False)
            wrong = replace(scene, cameras=cameras, is_registered=registered)
            with pytest.raises(ValueError, match=rf"cameras\[{row}\]: the focal length must be 0"):
                write_bundler(tmp_path / "out.out", wrong)
        assert not (tmp_path / "out.out").exists()

    TEXT = (
        "# Bundle file v0.3\n1 1\n500 0 0\n1 0 0\n0 1 0\n0 0 1\n0 0 0\n"
        "1 2 3\n10 20 30\n1 0 5 1.5 -2.5\n"
    )

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("# Bundle file", "# Bundler", "line 1: '# Bundler v0.3' is not the first line"),
            ("1 1\n", "1 2\n", "the file ends within 2 points"),
            ("1 1\n", "1.5 1\n", "line 2: num_cameras is 1.5; it must be an integer"),
            ("1 1\n", "-1 1\n", "line 2: num_cameras is -1"),
            ("1 1\n", "2000000000 1\n", "the file ends within 2000000000 cameras"),
            ("1 0 0\n", "2 0 0\n", "line 4: the matrix of camera 0 is no rotation"),
            ("10 20 30", "10 20 256", "line 9: the color of point 0 must be integers"),
            ("1 0 5", "1 1 5", "line 10: the camera of a view is 1; it must be an integer from 0"),
            ("1 0 5", "3 0 5", "the file ends within the views of point 0"),
            ("1 0 5", "2 0 5 0 0 0 5", "line 10: point 0 has key 5 of camera 0 twice"),
            ("1 0 5", "0 0 5", "line 10: the file goes on behind its last point"),
            ("500", "x", "line 3: 'x' is not a number; 1 cameras must be here"),
            ("500", "nan", "line 3: 1 cameras must be finite numbers"),
        ],
    )
    def test_wrong(self, tmp_path: Path, old: str, new: str, said: str) -> None:
        path = tmp_path / "a.out"
        path.write_text(self.TEXT)
        assert read_bundler(path).key_index.tolist() == [5]
        path.write_text(self.TEXT.replace(old, new, 1))
        with pytest.raises(FileFormatError, match=re.escape(said)):
            read_bundler(path)


class TestOpenSfm:
    """`reconstruction.json` and `tracks.csv`."""

    def test_known_optimum(self, tmp_path: Path) -> None:
        scene = read_opensfm(*BERLIN)
        assert repr(scene.model) == ("Model(1 cameras, 3 images, 1430 points, 3082 observations)")
        summary = caspar.colmap.bundle_adjustment(scene.model)
        assert summary.initial_cost == pytest.approx(9361.6634, abs=5e-5)
        assert summary.final_cost == pytest.approx(6303.371204, abs=5e-7)
        solved = scene.with_model(summary.model)
        write_opensfm(tmp_path / "out.json", solved)
        write_tracks(tmp_path / "out.csv", scene.tracks)
        again = read_opensfm(tmp_path / "out.json", tmp_path / "out.csv")
        summary = caspar.colmap.bundle_adjustment(again.model)
        assert summary.initial_cost == pytest.approx(6303.371204, abs=5e-7)
        shot = solved.document[0]["shots"]["01.jpg"]
        assert shot["gps_dop"] == 5.0  # what the model has no place for stays
        instance = solved.document[0]["rig_instances"]["0"]
        assert instance["rotation"] == shot["rotation"]
        before = scene.document[0]["shots"]["01.jpg"]
        assert before["rotation"] != shot["rotation"]

    def test_round_trip(self, tmp_path: Path) -> None:
        scene = read_opensfm(*BERLIN)
        same = scene.with_model(scene.model)
        write_opensfm(tmp_path / "out.json", same)
        write_tracks(tmp_path / "out.csv.bz2", scene.tracks)
        again = read_opensfm(tmp_path / "out.json", tmp_path / "out.csv.bz2")
        assert_equal(again.tracks, scene.tracks, 0.0)
        for name in ("cameras", "images", "points"):
            assert_equal(getattr(again.model, name), getattr(scene.model, name), 1e-12)
        assert again.document[0]["shots"].keys() == scene.document[0]["shots"].keys()

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_versions_of_tracks(self, tmp_path: Path, version: int) -> None:
        columns = {0: "10\t20\t30", 1: "0.5\t10\t20\t30", 2: "0.5\t10\t20\t30\t-1\t4"}[version]
        head = f"OPENSFM_TRACKS_VERSION_v{version}\n" if version > 0 else ""
        lines = f"b c.jpg\t7\t3\t0.25\t-0.125\t{columns}\na.jpg\t7\t4\t1e-3\t0\t{columns}\n"
        path = tmp_path / "tracks.csv"
        path.write_text(head + lines)
        tracks = read_tracks(path)
        assert (tracks.version, tracks.images, tracks.tracks) == (
            version,
            ("b c.jpg", "a.jpg"),
            ("7",),
        )
        assert tracks.features.tolist() == [3, 4]
        assert tracks.xy.tolist() == [[0.25, -0.125], [0.001, 0.0]]
        write_tracks(path, tracks)
        assert_equal(read_tracks(path), tracks, 0.0)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("OPENSFM_TRACKS_VERSION_v3\n", "line 1: version '3' is not one of 0, 1 and 2"),
            ("a\t1\t2\t3\n", "line 1: there are 4 columns; version 0 has 8"),
            ("a\t1\tx\t0\t0\t1\t2\t3\n", "line 1: 'x' is not a number"),
            ("a\t1\t1.5\t0\t0\t1\t2\t3\n", "must be an integer and finite numbers"),
            ("a\t1\t1\tinf\t0\t1\t2\t3\n", "must be an integer and finite numbers"),
            ("a\t1\t1 2\t0\t\t1\t2\t3\n", None),
            ("a" * 70_000, "line 1: the line is longer than 65536 bytes"),
            (
                "a\t1\t1\t0\t0\t1\t2\t3\nb\t1\t1\t0\t0\t1\t2\t3\n" * 2,
                "line 3: track '1' was in image 'a' before, in line 1",
            ),
            (f"a\t1\t{2**53 + 1}\t0\t0\t1\t2\t3\n", "must be an integer and finite numbers"),
        ],
    )
    def test_wrong_tracks(self, tmp_path: Path, text: str, said: str | None) -> None:
        path = tmp_path / "tracks.csv"
        path.write_text(text)
        if said is None:  # an empty column beside two numbers
            assert len(read_tracks(path).xy) == 1
            return
        with pytest.raises(FileFormatError, match=re.escape(said)):
            read_tracks(path)

    def test_a_mark_of_utf8_is_no_part_of_a_name(self, tmp_path: Path) -> None:
        path = tmp_path / "tracks.csv"
        path.write_bytes(codecs.BOM_UTF8 + b"a\t1\t1\t0\t0\t1\t2\t3\na\t2\t1\t0\t0\t1\t2\t3\n")
        assert read_tracks(path).images == ("a",)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"images": ("a\tb",)}, "has a tabulator or the end of a line"),
            ({"images": ("\ud800",)}, "is no text of UTF-8"),
            ({"tracks": ("t" * 20_000, "2")}, "has 20000 bytes; allowed are 16384"),
            ({"images": ("OPENSFM_TRACKS_VERSION_v1",)}, "would be read as the file's version"),
            ({"track_index": np.zeros(2, np.int32)}, "is there twice"),
            ({"features": np.array([0, 2**53])}, r"Tracks\.features: it must be between"),
        ],
    )
    def test_tracks_that_cannot_be_written(
        self, tmp_path: Path, change: dict[str, Any], said: str
    ) -> None:
        path = tmp_path / "tracks.csv"
        path.write_text("a\t1\t1\t0\t0\t1\t2\t3\na\t2\t1\t0\t0\t1\t2\t3\n")
        tracks = read_tracks(path)
        with pytest.raises(ValueError, match=said):
            write_tracks(tmp_path / "out.csv", replace(tracks, **change))
        assert not (tmp_path / "out.csv").exists()

    def test_names_that_json_can_hold(self, tmp_path: Path) -> None:
        """JSON has escapes for a lone surrogate and a NUL, which other formats cannot hold."""
        document = json.loads(bz2.decompress(BERLIN[0].read_bytes()))
        shots = document[0]["shots"]
        document[0]["shots"] = {
            "\ud800" if name == "01.jpg" else f"{name}\0": shot for name, shot in shots.items()
        }
        (tmp_path / "a.json").write_text(json.dumps(document))
        scene = read_opensfm(tmp_path / "a.json", BERLIN[1])
        write_opensfm(tmp_path / "b.json", scene)
        again = read_opensfm(tmp_path / "b.json", BERLIN[1])
        assert again.model.images.names == scene.model.images.names
        assert "\ud800" in again.model.images.names
        for format in ("binary", "text"):
            with pytest.raises(InputError, match=f"of image . cannot be written as {format}"):
                caspar.colmap.write_model(scene.model, tmp_path / "model", format)
        assert not (tmp_path / "model").exists()
        with pytest.raises(InputError, match="other names of images"):
            read_opensfm(*BERLIN).with_model(scene.model)

    def test_other_projections(self, tmp_path: Path) -> None:
        """Parameters in pixels, and back."""
        document = json.loads(bz2.decompress(BERLIN[0].read_bytes()))
        (name,) = document[0]["cameras"]
        size = {"width": 3264, "height": 2448}
        brown = {"focal_x": 0.8, "focal_y": 0.81, "c_x": 0.01, "c_y": -0.02}
        brown |= {"k1": 0.1, "k2": 0.02, "k3": 0.003, "p1": 1e-3, "p2": 2e-3}
        fisheye = {"focal": 0.7, "k1": 0.1, "k2": 0.2}
        for kind, own, model, wanted in (
            (
                "brown",
                brown,
                "FULL_OPENCV",
                [2611.2, 2643.84, 1664.64, 1158.72, 0.1, 0.02, 1e-3, 2e-3, 0.003, 0, 0, 0],
            ),
            ("fisheye", fisheye, "RADIAL_FISHEYE", [2284.8, 1632, 1224, 0.1, 0.2]),
        ):
            document[0]["cameras"][name] = {"projection_type": kind, **size, **own}
            (tmp_path / "a.json").write_text(json.dumps(document))
            scene = read_opensfm(tmp_path / "a.json", BERLIN[1])
            cameras = scene.model.cameras
            assert caspar.cameras.MODELS[model].model_id == cameras.model_ids[0]
            np.testing.assert_allclose(cameras.parameters, wanted, rtol=1e-14)
            again = scene.with_model(scene.model).document[0]["cameras"][name]
            assert again.keys() == document[0]["cameras"][name].keys()
            assert {key: again[key] for key in own} == pytest.approx(own, rel=1e-12)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda one: one.pop("shots"), "reconstruction 0 has no field 'shots'"),
            (
                lambda one: one["shots"]["01.jpg"].update(rotation=[1, 2]),
                "reconstruction 0.shots['01.jpg'] has a field 'rotation' that must be 3 numbers",
            ),
            (
                lambda one: one["shots"]["01.jpg"].update(rotation=[1, 2, "3"]),
                "must be finite numbers, not a text",
            ),
            (lambda one: one["shots"]["01.jpg"].update(rotation=[1, 2, 10**400]), "finite numbers"),
            (lambda one: one["shots"]["01.jpg"].update(camera="x"), "names the camera 'x', which"),
            (lambda one: one.update(points=[]), "reconstruction 0.points must be an object, not a"),
            (
                lambda one: next(iter(one["cameras"].values())).update(projection_type="dual"),
                "has the projection_type 'dual', which is not read; allowed are perspective",
            ),
            (
                lambda one: next(iter(one["cameras"].values())).update(width=1.5),
                "has a field 'width' that must be an integer from 0",
            ),
        ],
    )
    def test_wrong(self, tmp_path: Path, change: Callable[[Any], object], said: str) -> None:
        document = json.loads(bz2.decompress(BERLIN[0].read_bytes()))
        change(document[0])
        (tmp_path / "a.json").write_text(json.dumps(document))
        with pytest.raises(FileFormatError, match=re.escape(said)):
            read_opensfm(tmp_path / "a.json", BERLIN[1])

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"", "this is no JSON"),
            (b"{}", "this is no list of reconstructions"),
            (b"[" * 100_000, "the JSON is nested too deeply"),
            (b"[NaN]", "this is no JSON: it has the number NaN"),
            (b'[{"shots": {"a": 1, "a": 2}}]', "this is no JSON: an object has the name 'a' twice"),
            (b"[\xff]", "this is no JSON: it is no UTF-8 text"),
            (b"[\0]", "this is no JSON: it has a NUL byte"),
            (b"[1]", "reconstruction 0 must be an object, not 1"),
        ],
    )
    def test_no_json(self, tmp_path: Path, text: bytes, said: str) -> None:
        (tmp_path / "a.json").write_bytes(text)
        with pytest.raises(FileFormatError, match=re.escape(said)):
            read_opensfm(tmp_path / "a.json", BERLIN[1])

    def test_other_models_are_refused(self) -> None:
        scene = read_opensfm(*BERLIN)
        images = replace(scene.model.images, ids=scene.model.images.ids + 1)
        points = replace(scene.model.points, image_ids=scene.model.points.image_ids + 1)
        moved = replace(scene.model, images=images, points=points)
        with pytest.raises(InputError, match="the model has other image ids than the scene"):
            scene.with_model(moved)
        with pytest.raises(InputError, match="index=1: "):
            read_opensfm(*BERLIN, index=1)


def openmvg_document() -> Any:
    """Three views of forty points, as openMVG writes them; the last view has no pose."""
    generator = np.random.default_rng(5)
    points = generator.uniform([-1.0, -1.0, 4.0], [1.0, 1.0, 6.0], (40, 3))
    camera = {
        "width": 1600,
        "height": 1200,
        "focal_length": 1650.0,
        "principal_point": [815.0, 602.0],
        "disto_k3": [-0.15, 0.2, 0.01],
    }
    poses = [
        {
            "rotation": Rotation.from_rotvec([0.01, 0.05 * place, 0.02]).as_matrix().tolist(),
            "center": [0.4 * place, 0.1, 0.0],
        }
        for place in range(3)
    ]
    pixels = generator.uniform(300.0, 900.0, (40, 3, 2))
    for view, pose in enumerate(poses):
        local = (points - pose["center"]) @ np.transpose(pose["rotation"])
        plane = local[:, :2] / local[:, 2:]
        noise = generator.normal(size=(40, 2))
        pixels[:, view] = 1650.0 * plane + camera["principal_point"] + noise
    data = [
        {"filename": f"{key}.jpg", "id_view": key, "id_intrinsic": 0, "id_pose": key}
        for key in range(4)
    ]
    return {
        "sfm_data_version": "0.3",
        "views": [
            {"key": key, "value": {"ptr_wrapper": {"id": key, "data": one}}}
            for key, one in enumerate(data)
        ],
        "intrinsics": [
            {
                "key": 0,
                "value": {
                    "polymorphic_id": 2147483649,
                    "polymorphic_name": "pinhole_radial_k3",
                    "ptr_wrapper": {"id": 1, "data": camera},
                },
            }
        ],
        "extrinsics": [{"key": key, "value": pose} for key, pose in enumerate(poses)],
        "structure": [
            {
                "key": key,
                "value": {
                    "X": point.tolist(),
                    "observations": [
                        {"key": view, "value": {"id_feat": key, "x": seen.tolist()}}
                        for view, seen in enumerate(pixels[key])
                    ],
                },
            }
            for key, point in enumerate(points)
        ],
    }


class TestOpenMvg:
    """`sfm_data.json`."""

    def test_errors_are_those_of_the_file(self, tmp_path: Path) -> None:
        """Residuals by the formula of openMVG, in NumPy."""
        document = openmvg_document()
        (tmp_path / "a.json").write_text(json.dumps(document))
        camera = document["intrinsics"][0]["value"]["ptr_wrapper"]["data"]
        focal, centre = camera["focal_length"], np.array(camera["principal_point"])
        poses = {one["key"]: one["value"] for one in document["extrinsics"]}
        total = 0.0
        for point in document["structure"]:
            for seen in point["value"]["observations"]:
                pose = poses[seen["key"]]
                x, y, z = np.array(pose["rotation"]) @ (
                    np.array(point["value"]["X"]) - pose["center"]
                )
                plane = np.array([x, y]) / z
                square = plane @ plane
                k1, k2, k3 = camera["disto_k3"]
                bent = plane * (1 + k1 * square + k2 * square**2 + k3 * square**3)
                total += float(np.sum((focal * bent + centre - seen["value"]["x"]) ** 2))
        model = read_openmvg(tmp_path / "a.json")
        assert repr(model) == "Model(1 cameras, 3 images, 40 points, 120 observations)"
        summary = caspar.colmap.bundle_adjustment(model)
        assert summary.initial_cost == pytest.approx(0.5 * total, rel=1e-12)
        assert summary.final_cost < summary.initial_cost

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                lambda one: one["intrinsics"][0]["value"].update(polymorphic_name="spherical"),
                "has a camera of the kind 'spherical', which is not read",
            ),
            (
                lambda one: one["extrinsics"][0]["value"].update(rotation=[[0, 0, 0]] * 3),
                "has a field 'rotation' that is no rotation",
            ),
            (lambda one: one.update(structure={}), "a field 'structure' that must be a list"),
            (lambda one: one["structure"][0].update(key=-1), "'key' that must be an integer"),
            (
                lambda one: one["structure"][1].update(key=0),
                "the file.structure[1] has the key 0, which another entry has too",
            ),
            (
                lambda one: one["views"].append(one["views"][2]),
                "the file.views[4] has the key 2, which another entry has too",
            ),
            (
                lambda one: one["extrinsics"].append(one["extrinsics"][0]),
                "the file.extrinsics[3] has the key 0, which another entry has too",
            ),
            (
                lambda one: one["structure"][0]["value"]["observations"].append(
                    one["structure"][0]["value"]["observations"][1]
                ),
                "the file.structure[0].value.observations[3] has the key 1, which another",
            ),
            (
                lambda one: one["views"][0]["value"]["ptr_wrapper"]["data"].update(id_pose=True),
                "has a field 'id_pose' that must be an integer",
            ),
        ],
    )
    def test_wrong(self, tmp_path: Path, change: Callable[[Any], object], said: str) -> None:
        document = openmvg_document()
        change(document)
        (tmp_path / "a.json").write_text(json.dumps(document))
        with pytest.raises(FileFormatError, match=re.escape(said)):
            read_openmvg(tmp_path / "a.json")
