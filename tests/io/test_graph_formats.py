"""Landmarks, priors and offsets in g2o files; TORO's and GTSAM's text formats."""

import bz2
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caspar.errors import FileFormatError
from caspar.io import (
    PoseGraph,
    PoseGraphKind,
    read_g2o,
    read_gtsam,
    read_pose_graph,
    read_toro,
    write_g2o,
    write_toro,
)
from caspar.io.graphs.toro import euler_from_storage, storage_from_euler
from caspar.io.rotations import (
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    quaternion_from_angle_axis,
)
from tests.io.g2o_files import DATA, INFORMATION_SE2, LINES_SE2
from tests.io.graph_files import (
    GTSAM_TEXT,
    PLANE,
    SPACE,
    TORO_PLANE,
    TORO_SPACE,
    assert_graphs_equal,
    information,
)


def written(folder: Path, text: str, name: str = "graph.g2o") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestG2o:
    """Every kind of line arrives where the documentation says."""

    def test_plane(self, tmp_path: Path) -> None:
        graph = read_g2o(written(tmp_path, PLANE))
        assert repr(graph) == (
            "PoseGraph(SE2, 3 poses, 2 edges, 2 sensor edges, 2 landmarks, 3 sightings, "
            "2 bearings, 1 pose priors, 1 position priors, 1 landmark priors)"
        )
        assert graph.landmarks.ids.tolist() == [20, 21]
        assert graph.landmarks.points.tolist() == [[1.5, 2.5], [-1.5, -2.5]]
        assert graph.landmarks.fixed.tolist() == [True, False]
        assert graph.fixed.tolist() == [True, False, False]
        seen = graph.sightings
        assert seen.pose.tolist() == [0, 2, 1]  # in the order of the file, of both kinds
        assert seen.landmark.tolist() == [0, 1, 0]
        assert seen.measurement.tolist() == [[0.3, 0.7], [0.1, 0.7], [0.1, 0.7]]
        offset = [np.cos(0.7), np.sin(0.7), 0.3, -0.2]
        np.testing.assert_array_equal(seen.offset, [[1, 0, 0, 0], offset, [1, 0, 0, 0]])
        root = seen.sqrt_information[0]
        np.testing.assert_allclose(root.T @ root, [[2, 0.5], [0.5, 3]], atol=1e-14)
        between = graph.sensor_edges
        assert between.ends.tolist() == [[0, 2], [2, 1]]
        identity = [1, 0, 0, 0]
        np.testing.assert_array_equal(between.offset_a, [offset, identity])
        np.testing.assert_array_equal(between.offset_b, [identity, identity])
        np.testing.assert_array_equal(between.measurement[0], [np.cos(2.8), np.sin(2.8), -1, 0.5])
        assert graph.bearings.measurement.tolist() == [[0.4], [3.1]]
        np.testing.assert_allclose(graph.bearings.sqrt_information[0], [[np.sqrt(5.5)]])
        prior = graph.pose_priors
        assert prior.index.tolist() == [1]
        np.testing.assert_array_equal(prior.measurement, [[np.cos(3.1), np.sin(3.1), 1.2, 0.3]])
        assert graph.position_priors.measurement.tolist() == [[1.2, 0.3]]
        assert graph.landmark_priors.index.tolist() == [1]

    def test_space(self, tmp_path: Path) -> None:
        graph = read_g2o(written(tmp_path, SPACE))
        assert graph.counts() == {
            "poses": 3,
            "edges": 2,
            "sensor edges": 2,
            "landmarks": 2,
            "sightings": 3,
            "pose priors": 2,
            "position priors": 1,
            "landmark priors": 1,
        }
        offset = [0.5, -0.5, 0.5, 0.5, 0.1, -0.2, 0.3]
        identity = [0, 0, 0, 1, 0, 0, 0]
        assert graph.sightings.offset.tolist() == [identity, offset, identity]
        assert graph.sensor_edges.offset_a.tolist() == [offset, offset]
        assert graph.sensor_edges.offset_b.tolist() == [identity, offset]
        assert graph.sensor_edges.measurement[0].tolist() == [0.6, 0, 0.8, 0, 0.2, 0.9, 0.4]
        assert graph.pose_priors.offset.tolist() == [offset, identity]
        assert graph.pose_priors.measurement[0].tolist() == [0, 0.6, 0, 0.8, 0.3, 0.2, 0.1]
        assert graph.position_priors.offset.tolist() == [identity]  # g2o does not use it
        assert graph.landmarks.fixed.tolist() == [False, True]

    @pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
    @pytest.mark.parametrize("suffix", [".g2o", ".g2o.bz2"])
    def test_round_trip(self, tmp_path: Path, text: str, suffix: str) -> None:
        graph = read_g2o(written(tmp_path, text))
        write_g2o(tmp_path / f"out{suffix}", graph)
        assert_graphs_equal(read_g2o(tmp_path / f"out{suffix}"), graph)

    def test_no_vertices_of_landmarks(self, tmp_path: Path) -> None:
        """Poses along edges, landmarks at the mean of where they are seen."""
        edges = [line for line in PLANE.splitlines() if "EDGE_SE2" in line or "PARAMS" in line]
        graph = read_g2o(written(tmp_path, "\n".join(edges)))
        assert graph.ids.tolist() == [7, 8, 10]
        assert graph.landmarks.ids.tolist() == [20, 21]
        both = [
            rotated([0.3, 0.7], graph.poses[2]),
            rotated([0.1, 0.7], graph.poses[0]),
        ]
        np.testing.assert_allclose(graph.landmarks.points[0], np.mean(both, axis=0), atol=1e-14)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("EDGE_SE2_XY 7 99 0 0 1 0 1", "the sighting names vertex 99"),
            ("EDGE_SE2_XY 20 21 0 0 1 0 1", "the sighting names vertex 20"),
            ("EDGE_PRIOR_XY 7 0 0 1 0 1", "the landmark prior names vertex 7"),
            (
                "EDGE_SE2_POINTXY_OFFSET 7 20 9 0 0 1 0 1",
                "the line names offset 9, which no PARAMS",
            ),
            (
                "EDGE_SE2_OFFSET 7 8 3 9 0 0 0 1 0 0 1 0 1",
                "the line names offset 9, which no PARAMS",
            ),
            ("EDGE_SE2_OFFSET 7 7 3 3 0 0 0 1 0 0 1 0 1", "the edge joins vertex 7 with itself"),
            ("EDGE_SE2_OFFSET 7 8 3 0 0 0 1 0 0 1 0 1", "an SE2 edge between sensors has 12 entr"),
            ("EDGE_SE2_XY 7 20 0 0 1 2 1", "the information matrix has, scaled to unit diagonal"),
            ("EDGE_SE2_XY 7 20 0 0 1 0", "an SE2 sighting has 6 entries after its tag; it must"),
            ("VERTEX_XY 20 0 0", "vertex 20 was declared before, in line 6"),
            ("VERTEX_XY 8 0 0", "vertex 8 is a pose and a landmark"),
            ("FIX 5", "FIX names vertex 5, which the file does not have"),
            (
                "PARAMS_SE2OFFSET 3 0.3 -0.2 0.71",
                "offset 3 was declared before, as something else, in line 1",
            ),
        ],
    )
    def test_wrong(self, tmp_path: Path, line: str, said: str) -> None:
        path = written(tmp_path, f"{PLANE}{line}\n")
        with pytest.raises(FileFormatError) as caught:
            read_g2o(path)
        assert str(caught.value).startswith(f"{path}, line 21: {said}")

    @pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
    @pytest.mark.parametrize("read", [read_g2o, read_pose_graph])
    def test_some_vertices_without_others(
        self, tmp_path: Path, text: str, read: Callable[[Path], PoseGraph]
    ) -> None:
        """A file declares all poses and landmarks, or nothing; the first line that does not fit."""
        lines = text.splitlines()
        for tags, wrong in (
            (("VERTEX_XY", "VERTEX_TRACKXYZ"), ("EDGE_SE2_XY", "EDGE_SE3_TRACKXYZ")),
            (("VERTEX_SE2", "VERTEX_SE3:QUAT"), ("EDGE_SE2", "EDGE_SE3:QUAT")),
        ):
            kept = [line for line in lines if line.split()[0] not in (*tags, "FIX")]
            first = next(row for row, line in enumerate(kept, 1) if line.split()[0] in wrong)
            with pytest.raises(FileFormatError) as caught:
                read(written(tmp_path, "\n".join(kept)))
            assert f"line {first}: the " in str(caught.value)
            assert "which the file does not declare; it must declare all" in str(caught.value)

    @pytest.mark.parametrize("tag", ["EDGE_BEARING_SE2_XY 10 5 0.1 1", "EDGE_PRIOR_XY 5 1 2 1 0 1"])
    def test_a_landmark_without_a_vertex(self, tmp_path: Path, tag: str) -> None:
        path = written(tmp_path, "\n".join([*LINES_SE2, tag]))
        with pytest.raises(FileFormatError, match=r"line 5: the .* names vertex 5, which the file"):
            read_g2o(path)

    def test_an_offset_that_is_declared_twice(self, tmp_path: Path) -> None:
        """The same offset once more does not matter, nor does one that no line names."""
        graph = read_g2o(written(tmp_path, PLANE))
        again = "PARAMS_SE2OFFSET  3 0.3 -0.2  0.7\nPARAMS_SE2OFFSET 9 0 0 0\n"
        again += f"PARAMS_SE2OFFSET 9 0 0 1\n{PLANE}"
        assert_graphs_equal(read_g2o(written(tmp_path, again)), graph)

    def test_ids_that_cannot_be_read_back(self, tmp_path: Path) -> None:
        graph = read_g2o(written(tmp_path, PLANE))
        cases: tuple[tuple[Any, str], ...] = (
            (np.array([10, -7, 8]), r"PoseGraph.ids\[1\] is -7; it must be 0 to 2\^63 - 1"),
            (np.array([10, 7, 2**63], np.uint64), r"PoseGraph.ids\[2\] is 9223372036854775808"),
            (np.array([10, 7, 7]), "PoseGraph.ids: 7 is there twice"),
            (np.array([10.0, 7.0, 8.0]), "PoseGraph.ids has dtype float64; it must be of integers"),
        )
        for wrong, said in cases:
            for write in (write_g2o, write_toro):
                with pytest.raises(ValueError, match=said):
                    write(tmp_path / "out", replace(graph, ids=wrong))
        places = replace(graph.landmarks, ids=graph.landmarks.ids - 21)
        with pytest.raises(ValueError, match=r"PoseGraph.landmarks.ids\[0\] is -1"):
            write_g2o(tmp_path / "out", replace(graph, landmarks=places))
        assert not (tmp_path / "out").exists()

    def test_an_offset_that_is_wrong_matters_only_if_it_is_used(self, tmp_path: Path) -> None:
        lines = f"VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0 0\nEDGE_SE2 0 1 0 0 0 {INFORMATION_SE2}\n"
        wrong = "PARAMS_SE2OFFSET 3 0 x 0\n"
        assert read_g2o(written(tmp_path, wrong + lines)).num_edges == 1
        with pytest.raises(FileFormatError, match="line 1: 'x' is not a number"):
            read_g2o(written(tmp_path, PLANE.replace("0.3 -0.2 0.7", "0 x 0", 1)))

    def test_lines_without_their_offset(self, tmp_path: Path) -> None:
        """Programs other than g2o often leave the id of the offset out."""
        graph = read_g2o(written(tmp_path, SPACE))
        short = SPACE.replace("EDGE_SE3_TRACKXYZ 1 10 0 ", "EDGE_SE3_TRACKXYZ 1 10 ")
        short = short.replace("EDGE_SE3_XYZ_PRIOR 1 5 ", "EDGE_SE3_XYZ_PRIOR 1 ")
        short = short.replace("EDGE_PRIOR_SE3 1 ", "EDGE_SE3_PRIOR 1 ")
        assert short.count(" 0 0.3 0.2 -0.5") == 0
        assert_graphs_equal(read_g2o(written(tmp_path, short)), graph, atol=0.0)
        wrong = SPACE.replace("EDGE_SE3_TRACKXYZ 1 10 0 ", "EDGE_SE3_TRACKXYZ 1 ")
        with pytest.raises(FileFormatError, match="has 10 entries after its tag; it must have 12"):
            read_g2o(written(tmp_path, wrong))

    def test_unseen_landmark(self, tmp_path: Path) -> None:
        text = f"EDGE_SE2 0 1 0 0 0 {INFORMATION_SE2}\nEDGE_BEARING_SE2_XY 0 9 0.5 1\n"
        with pytest.raises(FileFormatError, match="the place of vertex 9 has no sighting"):
            read_g2o(written(tmp_path, text))

    def test_what_cannot_be_written(self, tmp_path: Path) -> None:
        graph = read_g2o(written(tmp_path, PLANE))
        moved = replace(graph.bearings, offset=graph.sightings.offset[:2] * [1, 1, 2, 2] + 0.1)
        far = replace(graph.sightings, pose=np.array([0, 1, 7], np.int32))
        same = replace(graph.landmarks, ids=graph.ids[:2])
        for wrong, said in (
            (replace(graph, bearings=moved), "g2o has bearings from poses only"),
            (replace(graph, sightings=far), r"sightings\.pose\[2\] is 7; it must be 0 to 2"),
            (replace(graph, landmarks=same), "id 7 is a pose's and a landmark's"),
        ):
            with pytest.raises(ValueError, match=said):
                write_g2o(tmp_path / "out.g2o", wrong)
        assert not (tmp_path / "out.g2o").exists()


def rotated(point: list[float], pose: Any) -> Any:
    cosine, sine, x, y = pose
    return [x + cosine * point[0] - sine * point[1], y + sine * point[0] + cosine * point[1]]


class TestOrderOfInformation:
    """Numbers in the order of another program: the message names it instead of `clip`."""

    G2O = "500 0 0 400 0 3000"
    TORO = "500 0 400 3000 0 0"

    @pytest.mark.parametrize("read", [read_toro, read_pose_graph])
    def test_lines_of_toro_in_the_order_of_g2o(
        self, tmp_path: Path, read: Callable[[Path], PoseGraph]
    ) -> None:
        text = f"VERTEX2 0 0 0 0\nVERTEX2 1 1 0 0\nEDGE2 0 1 1 0 0 {self.G2O}\n"
        with pytest.raises(FileFormatError) as caught:
            read(written(tmp_path, text))
        said = str(caught.value)
        assert "line 3: the information matrix has zero on its diagonal" in said
        assert said.endswith("rename VERTEX2 to VERTEX_SE2 and EDGE2 to EDGE_SE2")
        assert "clip" not in said
        text = text.replace("VERTEX2", "VERTEX_SE2").replace("EDGE2", "EDGE_SE2")
        found = information(read_g2o(written(tmp_path, text)))
        np.testing.assert_allclose(found, [np.diag([500, 400, 3000])], rtol=1e-14)

    def test_lines_of_g2o_in_the_order_of_toro(self, tmp_path: Path) -> None:
        text = f"VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 1 0 0\nEDGE_SE2 0 1 1 0 0 {self.TORO}\n"
        with pytest.raises(FileFormatError, match="rename VERTEX_SE2 to VERTEX2 and EDGE_SE2 to E"):
            read_g2o(written(tmp_path, text))
        text = text.replace("VERTEX_SE2", "VERTEX2").replace("EDGE_SE2", "EDGE2")
        found = information(read_toro(written(tmp_path, text)))
        np.testing.assert_allclose(found, [np.diag([500, 400, 3000])], rtol=1e-14)

    @pytest.mark.parametrize("wrong", ["1 2 1 1 0 0", "-1 0 1 1 0 1"])
    def test_matrices_that_are_wrong_in_both(self, tmp_path: Path, wrong: str) -> None:
        text = f"EDGE2 0 1 1 0 0 {self.G2O}\nEDGE2 1 2 1 0 0 {wrong}\n"
        with pytest.raises(FileFormatError, match="indefinite='clip'"):
            read_toro(written(tmp_path, text))


class TestToro:
    """Orders of numbers, angles, and what the format has no lines for."""

    def test_plane(self, tmp_path: Path) -> None:
        graph = read_toro(written(tmp_path, TORO_PLANE))
        np.testing.assert_allclose(
            information(graph)[0], [[4, 1, 0.3], [1, 9, 0.2], [0.3, 0.2, 16]], atol=1e-13
        )
        assert graph.fixed.tolist() == [False, True]
        np.testing.assert_array_equal(graph.poses[0], [np.cos(0.5), np.sin(0.5), 1, 2])

    def test_space(self, tmp_path: Path) -> None:
        """Information is of the whole rotation vector, not half of it."""
        graph = read_toro(written(tmp_path, TORO_SPACE))
        found = information(graph)[0]
        assert found[0, 0] == pytest.approx(4.0)
        assert found[0, 3] == pytest.approx(2 * 0.2)
        assert found[3, 3] == pytest.approx(4 * 7.0)
        assert found[5, 5] == pytest.approx(4 * 9.0)
        # Rz(yaw) Ry(pitch) Rx(roll)
        turns = [
            quaternion_from_angle_axis(np.eye(3)[[axis]] * angle)
            for axis, angle in ((2, 0.3), (1, -0.2), (0, 0.1))
        ]
        quaternion = storage_from_euler(np.array([[1, 2, 3, 0.1, -0.2, 0.3]]))[0, :4]
        np.testing.assert_allclose(graph.poses[0], [*quaternion, 1, 2, 3], atol=1e-15)
        matrices = [matrix_of(turn[0]) for turn in turns]
        wanted = matrices[0] @ matrices[1] @ matrices[2]
        np.testing.assert_allclose(matrix_of(quaternion), wanted, atol=1e-15)

    @pytest.mark.parametrize("text", [TORO_PLANE, TORO_SPACE], ids=["plane", "space"])
    def test_round_trip(self, tmp_path: Path, text: str) -> None:
        graph = read_toro(written(tmp_path, text))
        write_toro(tmp_path / "out.graph", graph)
        assert_graphs_equal(read_toro(tmp_path / "out.graph"), graph)

    @pytest.mark.parametrize("name", ["smallGrid3D.g2o.bz2", "M3500.g2o.bz2"])
    def test_through_toro_and_back(self, tmp_path: Path, name: str) -> None:
        graph = read_g2o(DATA / name)
        write_toro(tmp_path / "out.graph.bz2", graph)
        found = read_pose_graph(tmp_path / "out.graph.bz2")
        signs = [
            np.sign((one[:, :4] * other[:, :4]).sum(axis=1))[:, None]
            for one, other in (
                (found.poses, graph.poses),
                (found.measurement, graph.measurement),
            )
        ]
        if graph.kind is PoseGraphKind.SE3:  # a quaternion and its negative are one rotation
            poses, measurement = found.poses.copy(), found.measurement.copy()
            poses[:, :4] *= signs[0]
            measurement[:, :4] *= signs[1]
            found = replace(found, poses=poses, measurement=measurement)
        assert_graphs_equal(found, graph, atol=1e-10)

    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(seed=st.integers(0, 2**32 - 1), pitch=st.sampled_from([None, 0.5, -0.5, 0.499999999]))
    def test_angles(self, seed: int, pitch: float | None) -> None:
        """Angles give the rotation back, also where the pitch is a quarter turn."""
        generator = np.random.default_rng(seed)
        written = generator.uniform(-np.pi, np.pi, (20, 6))
        if pitch is not None:
            written[:, 4] = pitch * np.pi
        poses = storage_from_euler(written)
        again = storage_from_euler(euler_from_storage(poses))
        signs = np.sign((poses[:, :4] * again[:, :4]).sum(axis=1))[:, None]
        np.testing.assert_allclose(signs * again[:, :4], poses[:, :4], rtol=0, atol=3e-15)

    def test_what_toro_has_no_lines_for(self, tmp_path: Path) -> None:
        graph = read_g2o(written(tmp_path, PLANE))
        with pytest.raises(ValueError, match="has no sensor edges, no landmarks, no sightings"):
            write_toro(tmp_path / "out.graph", graph)
        with pytest.raises(FileFormatError, match="lines of the kind 'EQUIV' are not read"):
            read_toro(written(tmp_path, f"{TORO_PLANE}EQUIV 0 1\n"))


def matrix_of(quaternion: Any) -> Any:
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


class TestGtsam:
    """ODOMETRY and LANDMARK lines, with covariances."""

    def test_lines(self, tmp_path: Path) -> None:
        graph = read_gtsam(written(tmp_path, GTSAM_TEXT))
        assert graph.counts() == {"poses": 3, "edges": 2, "landmarks": 1, "sightings": 2}
        assert graph.landmarks.ids.tolist() == [2]  # a pose has the id 2, too
        covariance = np.array([[1e-4, 1e-5, 0], [1e-5, 4e-6, 0], [0, 0, 4e-6]])
        np.testing.assert_allclose(information(graph)[1] @ covariance, np.eye(3), atol=1e-12)
        root = graph.sightings.sqrt_information[1]
        np.testing.assert_array_equal(root, np.triu(root))
        np.testing.assert_allclose(root.T @ root @ [[0.4, 0.1], [0.1, 0.3]], np.eye(2), atol=1e-14)
        assert graph.poses_from_edges

    def test_victoria_park(self) -> None:
        graph = read_pose_graph(DATA / "victoria_park.txt.bz2")
        assert graph.counts() == {
            "poses": 6969,
            "edges": 6968,
            "landmarks": 151,
            "sightings": 3640,
        }

    @pytest.mark.parametrize(
        ("covariance", "said"),
        [
            ("0 0 0 1 0 1", "has the diagonal entry 0"),
            ("1 0 0 -1 0 1", "has the diagonal entry -1"),
            ("1 2 0 1 0 1", "has, scaled to unit diagonal, an eigenvalue that is not above 0"),
        ],
    )
    def test_wrong_covariance(self, tmp_path: Path, covariance: str, said: str) -> None:
        path = written(tmp_path, f"ODOMETRY 0 1 0 0 0 {covariance}\n")
        with pytest.raises(FileFormatError, match=f"line 1: the covariance {said}; it must be pos"):
            read_gtsam(path)


def test_gtsam_reads_what_is_written(tmp_path: Path) -> None:
    """GTSAM's error of an edge is the logarithm, so that only small errors can be compared."""
    gtsam: Any = pytest.importorskip("gtsam")
    for text, in_space in ((PLANE, False), (SPACE, True)):
        graph = read_g2o(written(tmp_path, text))
        graph = _without_errors(graph)
        write_g2o(tmp_path / "out.g2o", graph)
        factors, values = gtsam.readG2o(str(tmp_path / "out.g2o"), in_space)
        assert factors.size() == graph.num_edges
        assert values.size() == graph.num_poses + graph.num_landmarks
        assert factors.error(values) < 1e-20


def _without_errors(graph: PoseGraph) -> PoseGraph:
    in_plane = graph.kind is PoseGraphKind.SE2
    compose, invert = (compose_se2, invert_se2) if in_plane else (compose_se3, invert_se3)
    edges = compose(invert(graph.poses[graph.index_a]), graph.poses[graph.index_b])
    nothing = PoseGraph(
        **{
            name: getattr(graph, name)
            for name in ("kind", "ids", "poses", "fixed", "index_a", "index_b")
        },
        measurement=edges,
        sqrt_information=graph.sqrt_information,
        poses_from_edges=False,
        landmarks=graph.landmarks,
    )
    return nothing


def test_formats_are_told_apart(tmp_path: Path) -> None:
    for text, kind in (
        (PLANE, PoseGraphKind.SE2),
        (TORO_SPACE, PoseGraphKind.SE3),
        (GTSAM_TEXT, PoseGraphKind.SE2),
    ):
        path = tmp_path / "graph.bz2"
        path.write_bytes(bz2.compress(text.encode()))
        assert read_pose_graph(path).kind is kind
