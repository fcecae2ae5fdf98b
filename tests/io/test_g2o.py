"""g2o text files: what is read, roots of the information, and poses from edges."""

import bz2
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from caspar.errors import FileFormatError, OptionError
from caspar.io import PoseGraph, PoseGraphKind, read_g2o, write_g2o
from caspar.io.rotations import (
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    quaternion_from_angle_axis,
)
from tests.io.g2o_files import (
    DATA,
    INFORMATION_SE2,
    INFORMATION_SE3,
    LINES_SE2,
    LINES_SE3,
    message_of,
    write_lines,
)


def read_lines(folder: Path, lines: list[str]) -> PoseGraph:
    """Read a graph from text lines."""
    return read_g2o(write_lines(folder, lines))


def errors(graph: PoseGraph) -> NDArray[np.float64]:
    """Return (num_edges, tangent_dim) errors as the documentation defines them."""
    first, second = graph.poses[graph.index_a], graph.poses[graph.index_b]
    if graph.kind is PoseGraphKind.SE2:
        predicted = compose_se2(invert_se2(first), second)
        delta = compose_se2(invert_se2(graph.measurement), predicted)
        angle = np.arctan2(delta[:, 1], delta[:, 0])
        return np.concatenate([delta[:, 2:], angle[:, None]], axis=1)
    predicted = compose_se3(invert_se3(first), second)
    delta = compose_se3(invert_se3(graph.measurement), predicted)
    sign = np.where(delta[:, 3:4] < 0.0, -1.0, 1.0)
    return np.concatenate([delta[:, 4:], sign * delta[:, :3]], axis=1)


def chi2(graph: PoseGraph) -> float:
    """Return the sum of squared whitened errors."""
    whitened = np.einsum("nij,nj->ni", graph.sqrt_information, errors(graph))
    return float(np.sum(whitened**2))


class TestReading:
    """Files that are right."""

    def test_se2(self, tmp_path: Path) -> None:
        """Every number of a plane graph arrives where the documentation says."""
        graph = read_lines(tmp_path, LINES_SE2)
        assert graph.kind is PoseGraphKind.SE2
        assert (graph.num_poses, graph.num_edges) == (2, 1)
        np.testing.assert_array_equal(graph.ids, [10, 7])
        np.testing.assert_array_equal(graph.fixed, [True, False])
        np.testing.assert_array_equal(graph.index_a, [0])
        np.testing.assert_array_equal(graph.index_b, [1])
        np.testing.assert_array_equal(
            graph.poses,
            [[np.cos(0.5), np.sin(0.5), 1, 2], [np.cos(-3.0), np.sin(-3.0), -1, 0]],
        )
        np.testing.assert_array_equal(graph.measurement, [[np.cos(1.5), np.sin(1.5), 3, 4]])
        root = graph.sqrt_information[0]
        np.testing.assert_allclose(root.T @ root, [[4, 1, 0], [1, 9, 0], [0, 0, 16]], atol=1e-14)
        assert not graph.poses_from_edges

    def test_se3(self, tmp_path: Path) -> None:
        """Every number of a space graph arrives where the documentation says."""
        graph = read_lines(tmp_path, LINES_SE3)
        assert graph.kind is PoseGraphKind.SE3
        np.testing.assert_array_equal(
            graph.poses, [[0, 0, 0, 1, 1, 2, 3], [0.5, -0.5, 0.5, 0.5, 4, 5, 6]]
        )
        np.testing.assert_allclose(
            graph.measurement, [[0, 0.6, 0, 0.8, 7, 8, 9]], rtol=1e-15, atol=0
        )
        np.testing.assert_array_equal(graph.sqrt_information[0], np.diag([1.0, 1, 1, 2, 2, 2]))
        np.testing.assert_array_equal(graph.fixed, [False, False])

    def test_dtypes(self, tmp_path: Path) -> None:
        """Arrays have the documented dtypes and shapes."""
        graph = read_lines(tmp_path, LINES_SE3)
        for name, dtype, shape in (
            ("ids", np.int64, (2,)),
            ("poses", np.float64, (2, 7)),
            ("fixed", np.bool_, (2,)),
            ("index_a", np.int32, (1,)),
            ("index_b", np.int32, (1,)),
            ("measurement", np.float64, (1, 7)),
            ("sqrt_information", np.float64, (1, 6, 6)),
        ):
            array = getattr(graph, name)
            assert array.dtype == dtype
            assert array.shape == shape
            assert array.flags.c_contiguous
        with pytest.raises(FrozenInstanceError):
            graph.kind = PoseGraphKind.SE2  # type: ignore[misc]
        assert repr(graph) == "PoseGraph(SE3, 2 poses, 1 edges)"

    @pytest.mark.parametrize(
        ("name", "kind", "sizes", "expected", "tolerance"),
        [
            ("smallGrid3D.g2o.bz2", PoseGraphKind.SE3, (125, 297), 115_958, 0.5),
            ("M3500.g2o.bz2", PoseGraphKind.SE2, (3500, 5453), 2.56667e6, 5.0),
        ],
    )
    def test_published(
        self,
        name: str,
        kind: PoseGraphKind,
        sizes: tuple[int, int],
        expected: float,
        tolerance: float,
    ) -> None:
        """The initial chi2 of published graphs is what g2o prints."""
        graph = read_g2o(DATA / name)
        assert graph.kind is kind
        assert (graph.num_poses, graph.num_edges) == sizes
        assert chi2(graph) == pytest.approx(expected, abs=tolerance)
        assert not graph.fixed.any()
        assert not graph.poses_from_edges

    def test_packed(self, tmp_path: Path) -> None:
        """A packed file gives the same graph."""
        text = "\n".join(LINES_SE3).encode()
        (tmp_path / "graph.g2o.bz2").write_bytes(bz2.compress(text))
        graph = read_g2o(str(tmp_path / "graph.g2o.bz2"))
        np.testing.assert_array_equal(graph.poses, read_lines(tmp_path, LINES_SE3).poses)

    def test_order_of_lines_does_not_matter(self, tmp_path: Path) -> None:
        """Edges and FIX may come before the vertices they name; blanks and comments pass."""
        lines = ["# comment", "", "PARAMS_SE3OFFSET 0 0 0 0 0 0 0 1", *reversed(LINES_SE2), "  "]
        graph = read_lines(tmp_path, lines)
        np.testing.assert_array_equal(graph.ids, [7, 10])
        np.testing.assert_array_equal(graph.fixed, [False, True])
        assert (graph.index_a[0], graph.index_b[0]) == (1, 0)

    def test_fix_several(self, tmp_path: Path) -> None:
        """A FIX line may name several vertices."""
        assert read_lines(tmp_path, [*LINES_SE2, "FIX 7 10 7"]).fixed.all()

    def test_large_ids(self, tmp_path: Path) -> None:
        """Ids that pack a letter and a number into 64 bits are kept exactly."""
        names = [(ord("x") << 56) + number for number in (0, 1)]
        graph = read_lines(
            tmp_path,
            [
                *(f"VERTEX_SE2 {name} 0 0 0" for name in names),
                f"EDGE_SE2 {names[1]} {names[0]} 0 0 0 {INFORMATION_SE2}",
            ],
        )
        assert graph.ids.tolist() == names
        assert (graph.index_a[0], graph.index_b[0]) == (1, 0)

    def test_vertices_only(self, tmp_path: Path) -> None:
        """A graph without edges has empty arrays of the right shapes."""
        graph = read_lines(tmp_path, LINES_SE3[:2])
        assert graph.num_edges == 0
        assert graph.measurement.shape == (0, 7)
        assert graph.sqrt_information.shape == (0, 6, 6)

    def test_quaternions_become_unit(self, tmp_path: Path) -> None:
        """Rounded quaternions are scaled to unit length, sign kept."""
        graph = read_lines(tmp_path, ["VERTEX_SE3:QUAT 0 0 0 0 0 -0.6001 0 -0.8"])
        np.testing.assert_allclose(np.linalg.norm(graph.poses[0, :4]), 1.0, rtol=1e-15)
        np.testing.assert_allclose(graph.poses[0, :4], [0, -0.6, 0, -0.8], atol=1e-4)


class TestInformation:
    """Square roots of the information."""

    @staticmethod
    def read(folder: Path, *matrices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Write one edge per matrix and return the square roots that are read."""
        dim = matrices[0].shape[0]
        start = "EDGE_SE2 0 1 0 0 0" if dim == 3 else "EDGE_SE3:QUAT 0 1 0 0 0 0 0 0 1"
        triangles = (matrix[np.triu_indices(dim)].tolist() for matrix in matrices)
        lines = [f"{start} {' '.join(map(repr, triangle))}" for triangle in triangles]
        return read_lines(folder, lines).sqrt_information

    @settings(derandomize=True, deadline=None, max_examples=30)
    @given(seed=st.integers(0, 2**32 - 1), dim=st.sampled_from([3, 6]))
    def test_positive_definite(
        self, tmp_path_factory: pytest.TempPathFactory, seed: int, dim: int
    ) -> None:
        """The root is upper triangular with a positive diagonal, and its square is right."""
        factors = np.random.default_rng(seed).normal(size=(3, dim, dim))
        matrices = factors @ factors.transpose(0, 2, 1) + 1e-3 * np.eye(dim)
        roots = self.read(tmp_path_factory.mktemp("information"), *matrices)
        np.testing.assert_array_equal(roots, np.triu(roots))
        assert np.all(np.diagonal(roots, axis1=1, axis2=2) > 0.0)
        np.testing.assert_allclose(roots.transpose(0, 2, 1) @ roots, matrices, atol=1e-12)

    @pytest.mark.parametrize("dim", [3, 6])
    def test_singular(self, tmp_path: Path, dim: int) -> None:
        """Singular information (a direction that is not measured) has a root, too."""
        factor = np.random.default_rng(0).normal(size=(dim, dim - 1))
        unmeasured = np.diag([1.0] * (dim - 1) + [0.0])
        matrices = [factor @ factor.T, unmeasured, np.zeros((dim, dim)), np.eye(dim)]
        roots = self.read(tmp_path, *matrices)
        np.testing.assert_array_equal(roots, np.triu(roots))
        assert np.all(np.diagonal(roots, axis1=1, axis2=2) >= 0.0)
        np.testing.assert_allclose(roots.transpose(0, 2, 1) @ roots, matrices, atol=1e-13)

    def test_rounded_below_zero(self, tmp_path: Path) -> None:
        """An eigenvalue below zero by no more than the text's rounding counts as zero."""
        matrix = np.array([[1.0, 1.0000001, 0.0], [1.0000001, 1.0, 0.0], [0.0, 0.0, 1.0]])
        root = self.read(tmp_path, matrix)[0]
        np.testing.assert_allclose(root.T @ root, matrix, atol=2e-7)

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("1 2 0 1 0 1", "has, scaled to unit diagonal, the negative eigenvalue -1"),
            ("-1 0 0 -1 0 -1", "has the negative diagonal entry -1"),
            ("1 0 0 1 0 -1", "has the negative diagonal entry -1"),
            ("1e12 0 0 1e12 0 -1e5", "has the negative diagonal entry -100000"),
            ("1e12 0 5e8 1e12 0 100", "has, scaled to unit diagonal, the negative eigenvalue -49"),
            ("0 1 0 0 0 1", "has zero on its diagonal in row 1, but other entries in that row"),
        ],
    )
    def test_indefinite(self, tmp_path: Path, text: str, fault: str) -> None:
        """A matrix that is no inverse covariance, however small what is negative of it."""
        good = f"EDGE_SE2 0 1 0 0 0 {INFORMATION_SE2}"
        lines = [good, "", f"EDGE_SE2 0 1 0 0 0 {text}", good]
        message = message_of(tmp_path, lines)
        assert f"line 3: the information matrix {fault}; it must be positive" in message
        assert "read_g2o(..., indefinite='clip') reads the file nevertheless" in message
        message = message_of(tmp_path, [*lines, lines[2]])
        assert "positive semidefinite (1 more have such a fault)." in message

    def test_clipped(self, tmp_path: Path) -> None:
        """Public files may have negative eigenvalues: SE-Sync's `cubicle` has."""
        texts = ["1e12 0 0 1e12 0 -1e5", "4 12 0 9 0 1e-9", INFORMATION_SE2]
        lines = [f"EDGE_SE2 0 1 0 0 0 {text}" for text in texts]
        graph = read_g2o(write_lines(tmp_path, lines), indefinite="clip")
        roots = graph.sqrt_information
        information = roots.transpose(0, 2, 1) @ roots
        np.testing.assert_allclose(information[0], np.diag([1e12, 1e12, 0.0]))
        # correlations 1 and 2 have the eigenvalues 3 and -1; of the first is left 3/2 (1 1; 1 1)
        scale = np.diag([2.0, 3.0, 10**-4.5])
        wanted = scale @ [[1.5, 1.5, 0.0], [1.5, 1.5, 0.0], [0.0, 0.0, 1.0]] @ scale
        np.testing.assert_allclose(information[1], wanted, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(roots[2], read_lines(tmp_path, lines[2:]).sqrt_information[0])

    def test_unknown_choice(self, tmp_path: Path) -> None:
        """Only two words are known."""
        path = write_lines(tmp_path, LINES_SE2)
        with pytest.raises(OptionError, match="indefinite='ignore': it must be 'error' or 'clip'"):
            read_g2o(path, indefinite="ignore")  # type: ignore[arg-type]


class TestChaining:
    """Poses for files that have edges only."""

    @pytest.mark.parametrize("name", ["smallGrid3D.g2o.bz2", "M3500.g2o.bz2"])
    def test_agrees_with_a_tree_of_edges(self, tmp_path: Path, name: str) -> None:
        """Of a connected graph, all but (edges - poses + 1) measurements are met exactly."""
        text = bz2.decompress((DATA / name).read_bytes()).decode()
        lines = [line for line in text.splitlines() if line.startswith("EDGE")]
        graph = read_lines(tmp_path, lines)
        assert graph.poses_from_edges
        np.testing.assert_array_equal(graph.ids, np.arange(graph.num_poses))
        identity = {4: [1, 0, 0, 0], 7: [0, 0, 0, 1, 0, 0, 0]}[graph.poses.shape[1]]
        np.testing.assert_array_equal(graph.poses[0], identity)
        is_met = np.abs(errors(graph)).max(axis=1) < 1e-9
        assert is_met.sum() >= graph.num_poses - 1
        assert chi2(graph) < chi2(read_g2o(DATA / name))

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(
        seed=st.integers(0, 2**32 - 1),
        num_poses=st.integers(2, 40),
        kind=st.sampled_from(PoseGraphKind),
    )
    def test_exact_measurements(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        seed: int,
        num_poses: int,
        kind: PoseGraphKind,
    ) -> None:
        """Exact measurements along any tree, in any direction and order, give the poses."""
        generator = np.random.default_rng(seed)
        ids = np.sort(generator.choice(10_000, num_poses, replace=False))
        translations = generator.normal(size=(num_poses, 3))
        angles = generator.normal(size=(num_poses, 3))
        if kind is PoseGraphKind.SE2:
            cosines, sines = np.cos(angles[:, :1]), np.sin(angles[:, :1])
            poses = np.concatenate([cosines, sines, translations[:, :2]], axis=1)
            compose, invert = compose_se2, invert_se2
        else:
            poses = np.concatenate([quaternion_from_angle_axis(angles), translations], axis=1)
            compose, invert = compose_se3, invert_se3
        lines = []
        for node in range(1, num_poses):
            ends = [int(generator.integers(node)), node]
            generator.shuffle(ends)
            relative = compose(invert(poses[ends[0]]), poses[ends[1]])
            if kind is PoseGraphKind.SE2:
                numbers = [*relative[2:], np.arctan2(relative[1], relative[0])]
                information = INFORMATION_SE2
            else:
                numbers = [*relative[4:], *relative[:4]]
                information = INFORMATION_SE3
            text = " ".join(repr(float(number)) for number in numbers)
            names = f"{ids[ends[0]]} {ids[ends[1]]}"
            lines.append(f"EDGE_{kind.value} {names} {text} {information}")
        generator.shuffle(lines)
        graph = read_lines(tmp_path_factory.mktemp("chain"), [*lines, f"FIX {ids[0]}"])
        np.testing.assert_array_equal(graph.ids, ids)
        assert graph.fixed.tolist() == [True] + [False] * (num_poses - 1)
        assert np.abs(errors(graph)).max() < 1e-12
        expected = compose(invert(poses[:1]), poses)
        if kind is PoseGraphKind.SE3:
            dots = np.sum(expected[:, :4] * graph.poses[:, :4], axis=1, keepdims=True)
            expected[:, :4] *= np.sign(dots)
        np.testing.assert_allclose(graph.poses, expected, rtol=0, atol=1e-11)

    def test_fewest_edges(self, tmp_path: Path) -> None:
        """A pose comes from the way with the fewest edges, of equals the earlier in the file."""
        lines = [
            f"EDGE_SE2 {first} {second} {x} 0 0 {INFORMATION_SE2}"
            for first, second, x in ((0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 0, -10), (0, 3, 20))
        ]
        graph = read_lines(tmp_path, lines)
        np.testing.assert_array_equal(graph.poses[:, 2], [0, 1, 2, 10])

    def test_not_connected(self, tmp_path: Path) -> None:
        """Poses that no edges connect cannot be chained."""
        lines = [f"EDGE_SE2 {a} {b} 0 0 0 {INFORMATION_SE2}" for a, b in ((3, 4), (8, 9))]
        message = message_of(tmp_path, lines)
        assert "its edges do not connect vertex 8 with vertex 3" in message


class TestWriting:
    """`write_g2o`, and what it refuses."""

    @pytest.mark.parametrize("name", ["smallGrid3D.g2o.bz2", "M3500.g2o.bz2"])
    @pytest.mark.parametrize("suffix", [".g2o", ".g2o.gz"])
    def test_round_trip(self, tmp_path: Path, name: str, suffix: str) -> None:
        graph = read_g2o(DATA / name)
        path = tmp_path / f"written{suffix}"
        write_g2o(path, graph)
        again = read_g2o(path)
        assert again.kind is graph.kind
        for exact in ("ids", "fixed", "index_a", "index_b"):
            np.testing.assert_array_equal(getattr(again, exact), getattr(graph, exact))
        np.testing.assert_allclose(again.poses, graph.poses, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(again.measurement, graph.measurement, rtol=1e-14, atol=1e-14)
        size = np.abs(graph.sqrt_information).max()
        np.testing.assert_allclose(
            again.sqrt_information, graph.sqrt_information, rtol=0, atol=1e-13 * size
        )
        assert chi2(again) == pytest.approx(chi2(graph), rel=1e-12)

    def test_lines(self, tmp_path: Path) -> None:
        """Every number stands where g2o reads it; information comes back from its root."""
        write_g2o(tmp_path / "out.g2o", read_lines(tmp_path, LINES_SE2))
        lines = (tmp_path / "out.g2o").read_text().splitlines()
        wanted = [*LINES_SE2[:2], LINES_SE2[3], LINES_SE2[2]]  # FIX at the end
        assert [line.split()[:2] for line in lines] == [line.split()[:2] for line in wanted]
        for written, line in zip(lines, wanted, strict=True):
            numbers, expected = (
                np.array(text.split()[1:], dtype=float) for text in (written, line)
            )
            np.testing.assert_allclose(numbers, expected, rtol=1e-15, atol=1e-15)

    def test_refused(self, tmp_path: Path) -> None:
        graph = read_lines(tmp_path, LINES_SE2)
        for changes, message in (
            ({"poses": np.full((2, 4), np.nan)}, r"PoseGraph\.poses\[0\] is not finite"),
            ({"index_b": np.array([2], np.int32)}, r"index_b\[0\] is 2; it must be 0 to 1"),
        ):
            with pytest.raises(ValueError, match=message):
                write_g2o(tmp_path / "out.g2o", replace(graph, **changes))
        assert not (tmp_path / "out.g2o").exists()


class TestUnknownLines:
    """Kinds of lines that are not read."""

    LINES = (*LINES_SE2, "VERTEX_CAM 3 1 2", "EDGE_SE2_XY_CALIB 10 3 1 2 1 0 1", "VERTEX_CAM 4 1 2")

    def test_skipped_and_named(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path, list(self.LINES))
        with pytest.warns(UserWarning, match="were passed over: 2 VERTEX_CAM, 1 EDGE_SE2_XY_CALIB"):
            graph = read_g2o(path, unknown="skip")
        assert graph.skipped == {"VERTEX_CAM": 2, "EDGE_SE2_XY_CALIB": 1}
        assert (graph.num_poses, graph.num_edges) == (2, 1)

    def test_refused_by_default(self, tmp_path: Path) -> None:
        assert "lines of the kind 'VERTEX_CAM' are not read" in message_of(tmp_path, [*self.LINES])
        path = write_lines(tmp_path, list(self.LINES))
        with pytest.raises(OptionError, match="unknown='keep': it must be 'error' or 'skip'"):
            read_g2o(path, unknown="keep")  # type: ignore[arg-type]

    def test_many_kinds_are_no_graph(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path, [*LINES_SE2, *(f"KIND_{number} 1" for number in range(101))])
        with pytest.raises(FileFormatError, match="lines of the kind 'KIND_100' are not read"):
            read_g2o(path, unknown="skip")
        path = write_lines(tmp_path, [*LINES_SE2, "3.5 1 2"])
        with pytest.raises(FileFormatError, match=r"lines of the kind '3\.5' are not read"):
            read_g2o(path, unknown="skip")
