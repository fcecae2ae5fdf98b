"""Pose graphs: errors, factors, what is held, where a solve starts, what it reaches."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import InputError, OptionError
from caspar.io import PoseGraph, read_g2o, read_pose_graph, write_g2o
from caspar.io.graphs.pose_graph import SensorEdges, no_sensor_edges
from caspar.io.rotations import compose_se2, compose_se3, invert_se2, invert_se3
from caspar.pose_graph import chi2, chi2_by_kind, problem, solve, start_poses
from caspar.pose_graph.problem import connected_parts
from caspar.pose_graph.start import InitializeName, can_grow, part_of
from examples import landmark_map
from tests.io.g2o_files import DATA
from tests.io.graph_files import PLANE, SPACE

G2O_CHI2 = {
    "edge": 343.87204032614727,
    "sighting": 50.150352899849906,
    "bearing": 57.498569254177426,
    "pose_prior": 23.00116814971892,
    "position_prior": 20.94999999999999,
}
"""Of `PLANE` without offsets, by g2o's own edges (g2o-python 0.0.12)."""


def graph_of(folder: Path, text: str) -> PoseGraph:
    path = folder / "graph.g2o"
    path.write_text(text)
    return read_g2o(path)


def test_chi2_is_that_of_g2o(tmp_path: Path) -> None:
    lines = [line for line in PLANE.splitlines() if "OFFSET" not in line]
    found = chi2_by_kind(graph_of(tmp_path, "\n".join(lines)))
    assert found.pop("landmark_prior") == pytest.approx(67.8, rel=1e-14)
    assert found == pytest.approx(G2O_CHI2, rel=1e-13)
    assert chi2(read_g2o(DATA / "M3500.g2o.bz2")) == pytest.approx(2.56667e6, rel=2e-6)


@pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
def test_factors_are_the_errors(tmp_path: Path, text: str) -> None:
    """Every factor, against NumPy: the cost of each is half of its chi2."""
    graph = graph_of(tmp_path, text)
    task = problem(graph)
    solver = caspar.Solver(task.factors, backend="cpu", precision="float64")
    wanted = chi2_by_kind(graph)
    assert {factor.name for factor in task.factors} == set(wanted)
    found = solver.evaluate(task.arrays).costs
    assert {name: 2.0 * cost for name, cost in found.items()} == pytest.approx(wanted, rel=1e-12)


class TestHeld:
    """What is held: FIX, and the first pose of a part that nothing ties."""

    def test_free_graph(self) -> None:
        graph = read_g2o(DATA / "M3500.g2o.bz2")
        task = problem(graph)
        assert task.first.tolist() == [0]
        assert np.flatnonzero(task.fixed["Pose"]).tolist() == [0]
        assert not problem(graph, fix_first=False).fixed["Pose"].any()

    def test_tied_graph(self, tmp_path: Path) -> None:
        graph = graph_of(tmp_path, PLANE)
        task = problem(graph)
        assert len(task.first) == 0
        assert task.fixed["Pose"].tolist() == [True, False, False]
        assert task.fixed["Landmark"].tolist() == [True, False]
        free = replace(graph, fixed=np.zeros(3, bool))
        assert len(problem(free).first) == 0  # there are priors
        assert problem(free, fix_first=True).first.tolist() == [0]

    def test_parts(self) -> None:
        """Two graphs that nothing joins, one of them held by its file."""
        graph = read_g2o(DATA / "smallGrid3D.g2o.bz2")
        count = graph.num_poses
        both = replace(
            graph,
            ids=np.concatenate([graph.ids, graph.ids + count]),
            poses=np.concatenate([graph.poses, graph.poses]),
            fixed=np.arange(2 * count) == count + 3,
            index_a=np.concatenate([graph.index_a, graph.index_a + count]).astype(np.int32),
            index_b=np.concatenate([graph.index_b, graph.index_b + count]).astype(np.int32),
            measurement=np.concatenate([graph.measurement] * 2),
            sqrt_information=np.concatenate([graph.sqrt_information] * 2),
        )
        task = problem(both)
        assert task.first.tolist() == [0]
        assert np.flatnonzero(task.fixed["Pose"]).tolist() == [0, count + 3]

    def test_nothing_to_solve(self, tmp_path: Path) -> None:
        graph = graph_of(tmp_path, "VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0 0\n")
        with pytest.raises(InputError, match="2 poses, 0 edges\\) has no measurements"):
            solve(graph)


class TestStart:
    """Where a solve starts."""

    def test_far_poses_give_way_to_the_chordal_estimate(self) -> None:
        graph = read_g2o(DATA / "smallGrid3D.g2o.bz2")
        start = start_poses(graph)
        assert start.choice.value == "chordal"
        assert start.file_chi2 == pytest.approx(115_958, abs=0.5)
        assert start.chi2 < 1200.0
        again = start_poses(start.graph)
        assert again.choice.value == "file"
        np.testing.assert_array_equal(again.graph.poses, start.graph.poses)

    @pytest.mark.parametrize("choice", ["file", "tree", "chordal", "grow"])
    def test_all_reach_the_optimum(self, choice: InitializeName) -> None:
        graph = read_g2o(DATA / "smallGrid3D.g2o.bz2")
        summary = solve(graph, initialize=choice, backend="cpu")
        assert summary.start.choice.value == choice
        assert summary.chi2 == pytest.approx(458.15378429, rel=1e-9)  # from four starts
        assert summary.result.final_cost == pytest.approx(0.5 * summary.chi2, rel=1e-12)
        np.testing.assert_array_equal(summary.graph.poses[0], graph.poses[0])
        assert summary.held_first == (0,)
        said = str(summary)
        assert said.startswith("PoseGraph(SE3, 125 poses, 297 edges)\nstart: ")
        assert "-> 458.15378\n\nstatus" in said

    def test_tree_keeps_what_is_held(self) -> None:
        graph = read_g2o(DATA / "M3500.g2o.bz2")
        fixed = np.zeros(graph.num_poses, bool)
        fixed[[100, 2000]] = True
        start = start_poses(replace(graph, fixed=fixed), "tree")
        np.testing.assert_array_equal(start.graph.poses[fixed], graph.poses[fixed])
        held = problem(start.graph)
        assert np.flatnonzero(held.fixed["Pose"]).tolist() == [100, 2000]

    def test_wrong(self, tmp_path: Path) -> None:
        graph = graph_of(tmp_path, PLANE)
        with pytest.raises(OptionError, match="initialize='spectral': must be one of 'auto'"):
            start_poses(graph, "spectral")  # type: ignore[arg-type]
        apart = replace(graph, index_a=graph.index_a[:1], index_b=graph.index_b[:1])
        apart = replace(
            apart,
            measurement=graph.measurement[:1],
            sqrt_information=graph.sqrt_information[:1],
            sensor_edges=no_sensor_edges(4, 3),
        )
        with pytest.raises(InputError, match="initialize='tree': edges do not connect all poses"):
            start_poses(apart, "tree")
        assert not can_grow(apart)
        with pytest.raises(InputError, match="initialize='grow': pose 8 has no edge"):
            solve(apart, initialize="grow")


class TestSensorEdges:
    """Motions between sensors at offsets of poses."""

    @pytest.mark.parametrize(
        "name",
        ["smallGrid3D.g2o.bz2", pytest.param("M3500.g2o.bz2", marks=pytest.mark.reliability)],
    )
    def test_the_optimum_is_that_of_plain_edges(self, name: str, tmp_path: Path) -> None:
        """Measurements that agree with some poses lead back to them, by such edges alone."""
        graph = solve(read_g2o(DATA / name), backend="cpu").graph
        rng = np.random.default_rng(37)
        between = _between_sensors(graph, rng)
        moved = replace(
            graph,
            poses=np.array(graph.poses[rng.permutation(graph.num_poses)]),
            fixed=np.arange(graph.num_poses) == 0,
            index_a=graph.index_a[:0],
            index_b=graph.index_b[:0],
            measurement=graph.measurement[:0],
            sqrt_information=graph.sqrt_information[:0],
            sensor_edges=between,
        )
        moved.poses[0] = graph.poses[0]
        write_g2o(tmp_path / "graph.g2o", moved)
        summary = solve(read_g2o(tmp_path / "graph.g2o"), backend="cpu")
        assert summary.start.choice.value == "chordal"
        assert summary.chi2 < 1e-12 * summary.start.file_chi2
        places = slice(-graph.kind.dim, None)
        wanted = graph.poses[:, places]
        np.testing.assert_allclose(summary.graph.poses[:, places], wanted, atol=1e-6)

    def test_offsets_of_identity_are_plain_edges(self) -> None:
        graph = read_g2o(DATA / "M3500.g2o.bz2")
        identity = np.tile([1.0, 0.0, 0.0, 0.0], (graph.num_edges, 1))
        ends = (graph.index_a, graph.index_b)
        edges = SensorEdges(*ends, identity, identity, graph.measurement, graph.sqrt_information)
        both = chi2_by_kind(replace(graph, sensor_edges=edges))
        assert both["sensor_edge"] == pytest.approx(both["edge"], rel=1e-14)

    def test_parts_and_what_is_tied(self, tmp_path: Path) -> None:
        graph = graph_of(tmp_path, PLANE)
        part, _, _ = part_of(graph, np.array([True, False, True]))
        assert part.sensor_edges.ends.tolist() == [[0, 1]]
        alone = replace(
            part,
            index_a=part.index_a[:0],
            index_b=part.index_b[:0],
            measurement=part.measurement[:0],
            sqrt_information=part.sqrt_information[:0],
        )
        assert connected_parts(alone)[1][:2].tolist() == [0, 0]
        assert can_grow(graph)


def _between_sensors(graph: PoseGraph, rng: np.random.Generator) -> SensorEdges:
    """What sensors at two random offsets measure, at the edges of a graph."""
    in_plane = graph.kind.dim == 2
    compose, invert = (compose_se2, invert_se2) if in_plane else (compose_se3, invert_se3)
    offsets = graph.measurement[:2].copy()
    offsets[:, -graph.kind.dim :] = rng.normal(size=(2, graph.kind.dim))
    sides = []
    for ends in (graph.index_a, graph.index_b):
        chosen = offsets[rng.integers(0, 2, graph.num_edges)]
        sides.append((chosen, compose(graph.poses[ends], chosen)))
    measured = compose(invert(sides[0][1]), sides[1][1])
    roots = graph.sqrt_information
    return SensorEdges(graph.index_a, graph.index_b, sides[0][0], sides[1][0], measured, roots)


def test_landmarks_from_dead_reckoning() -> None:
    """Victoria Park: `auto` grows it."""
    summary = solve(read_pose_graph(DATA / "victoria_park.txt.bz2"), backend="cpu")
    assert summary.start.choice.value == "grow"
    assert summary.result.status.is_success
    # as from stages of 100 and of 500 poses
    assert summary.chi2 == pytest.approx(6184.12025, rel=1e-7)
    places = summary.graph.landmarks.points
    assert np.ptp(places, axis=0) == pytest.approx([290.0, 280.0], abs=25.0)


@pytest.mark.reliability
def test_example_of_a_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything at once ends in a wrong minimum, growing in the right one."""
    summary = landmark_map.main([str(tmp_path / "map.png")])
    assert summary.chi2 == pytest.approx(6184.12025, rel=1e-7)
    printed = capsys.readouterr().out
    at_once = re.search(r"all at once: ([\d,.]+) after", printed)
    assert at_once is not None
    assert float(at_once[1].replace(",", "")) > 10.0 * summary.chi2
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_parts_of_a_graph(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, PLANE)
    part, rows, landmark_rows = part_of(graph, np.array([True, True, False]))
    assert rows.tolist() == [0, 1]
    assert landmark_rows.tolist() == [0, 1]  # the second by bearings
    assert part.counts() == {
        "poses": 2,
        "edges": 1,
        "landmarks": 2,
        "sightings": 2,
        "bearings": 2,
        "pose priors": 1,
        "position priors": 1,
        "landmark priors": 1,
    }
    alone, _, landmark_rows = part_of(graph, np.array([False, False, True]))
    assert landmark_rows.tolist() == [1]
    assert alone.sightings.landmark.tolist() == [0]
    assert alone.landmark_priors.index.tolist() == [0]
    assert chi2_by_kind(alone)["sighting"] < chi2_by_kind(graph)["sighting"]


@pytest.mark.parametrize(
    "text",
    [PLANE, pytest.param(SPACE, marks=pytest.mark.reliability)],
    ids=["plane", "space"],
)
def test_solved_graphs_can_be_written(tmp_path: Path, text: str) -> None:
    graph = graph_of(tmp_path, text)
    summary = solve(graph, backend="cpu", loss=caspar.loss.Huber, loss_scale=2.0)
    assert summary.result.final_cost < summary.result.initial_cost
    write_g2o(tmp_path / "solved.g2o", summary.graph)
    again = read_g2o(tmp_path / "solved.g2o")
    assert chi2(again) == pytest.approx(summary.chi2, rel=1e-9)
    np.testing.assert_array_equal(again.poses[0], graph.poses[0])  # held by FIX
    held: Any = graph.landmarks.fixed
    np.testing.assert_array_equal(again.landmarks.points[held], graph.landmarks.points[held])


def test_losses_spare_wrong_loops() -> None:
    """A few wrong edges hardly move the rest."""
    graph = read_g2o(DATA / "smallGrid3D.g2o.bz2")
    best = solve(graph, backend="cpu").graph
    index = np.array([[3, 90], [10, 60], [40, 100]], np.int32)
    wrong = replace(
        best,
        index_a=np.concatenate([best.index_a, index[:, 0]]),
        index_b=np.concatenate([best.index_b, index[:, 1]]),
        measurement=np.concatenate([best.measurement, best.measurement[:3]]),
        sqrt_information=np.concatenate([best.sqrt_information, best.sqrt_information[:3]]),
    )
    moved = [
        np.abs(found.graph.poses - best.poses).max()
        for found in (
            solve(wrong, backend="cpu", initialize="file"),
            solve(
                wrong,
                backend="cpu",
                initialize="file",
                loss=caspar.loss.GemanMcClure,
                loss_scale=3.0,
            ),
        )
    ]
    assert moved[1] < 0.2 * moved[0]


@pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
def test_factors_of_ones_own(tmp_path: Path, text: str) -> None:
    """They take the node types of the problem; a prior says where the graph is."""
    graph = graph_of(tmp_path, text)
    task = problem(graph)
    assert repr(task).startswith("Problem(factors: edge")
    assert len(repr(task)) < 200
    assert "edge(a, b, measured, sqrt_information)" in repr(list(task.factors))
    assert list(task.node_types) == ["Pose", "Landmark"]
    prior = caspar.factors.prior(task.node_types["Pose"])
    moved = graph.poses.copy()
    moved[:, -2:] += 5.0
    known = {"value": [0, 1], "expected": moved[:2], "sigma": [1e-4] * graph.kind.tangent_dim}
    solver = caspar.Solver([*task.factors, prior], backend="cpu", precision="float64")
    found = solver.solve({**task.arrays, "prior": known})
    np.testing.assert_allclose(found.values["Pose"][:2], moved[:2], atol=0.05)
