"""`optimize_open3d`: graphs of Open3D, or objects with the same attributes, against its results."""

import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.transform import Rotation

from caspar.errors import InputError, OptionError
from caspar.pose_graph import optimize_open3d

NUM_NODES, NUM_LOOPS, NUM_WRONG = 30, 25, 6
ODOMETRY = NUM_NODES - 1

OPEN3D_POSITION = [1.8184174873, -0.7997350361, -0.2360753968]
"""Of the last node of `wander(3)`, by Open3D 0.20 with tolerances of 1e-12."""
OPEN3D_CONFIDENCE = [0.9738790, 0.9477890, 0.9201438, 0.9049040, 0.9726715]
"""Of the last five edges."""


@dataclass
class Node:
    pose: Any


@dataclass
class Edge:
    source_node_id: int
    target_node_id: int
    transformation: Any
    information: Any
    uncertain: bool
    confidence: float = 1.0


@dataclass
class Graph:
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)


STAND_INS = SimpleNamespace(PoseGraph=Graph, PoseGraphNode=Node, PoseGraphEdge=Edge)


def option_of(**changes: Any) -> Any:
    values = {
        "max_correspondence_distance": 0.05,
        "edge_prune_threshold": 0.25,
        "preference_loop_closure": 2.0,
        "reference_node": 0,
    }
    return SimpleNamespace(**{**values, **changes})


def motion(turn: Any, step: Any) -> Any:
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_rotvec(turn).as_matrix()
    matrix[:3, 3] = step
    return matrix


def information_of(random: Any) -> Any:
    """Of 500 points p, as Open3D sums it: the rows of an error are [-p x | 1]."""
    points = random.uniform(-1.0, 1.0, (500, 3))
    rows = np.zeros((500, 3, 6))
    rows[:, :, :3] = -np.cross(points[:, None], np.eye(3)).transpose(0, 2, 1)
    rows[:, :, 3:] = np.eye(3)
    return np.einsum("nij,nik->jk", rows, rows)


def wander(seed: int, library: Any = STAND_INS) -> Any:
    """Two rounds with drift; of the loops that close, the first few are wrong."""
    random = np.random.default_rng(seed)
    angles = np.linspace(0.0, 4.0 * np.pi, NUM_NODES, endpoint=False)
    true = [
        motion(
            [0.1 * np.sin(angle), 0.2 * np.cos(angle), angle],
            [2.0 * np.cos(angle), 2.0 * np.sin(angle), 0.3 * np.sin(2.0 * angle)],
        )
        for angle in angles
    ]
    graph = library.PoseGraph()

    def add(source: int, target: int, uncertain: bool, spread: float) -> Any:
        noise = motion(0.005 * random.normal(size=3), 0.01 * random.normal(size=3))
        wrong = motion(0.7 * spread * random.normal(size=3), spread * random.normal(size=3))
        measured = np.linalg.inv(true[target]) @ true[source] @ noise @ wrong
        graph.edges.append(
            library.PoseGraphEdge(source, target, measured, information_of(random), uncertain)
        )
        return measured

    pose = true[0]
    graph.nodes.append(library.PoseGraphNode(pose))
    for node in range(ODOMETRY):
        pose = pose @ np.linalg.inv(add(node, node + 1, False, 0.0))
        graph.nodes.append(library.PoseGraphNode(pose))
    for number in range(NUM_LOOPS):
        source, step = int(random.integers(NUM_NODES)), int(random.integers(4, NUM_NODES - 4))
        add(source, (source + step) % NUM_NODES, True, 1.0 if number < NUM_WRONG else 0.0)
    return graph


def poses_of(graph: Any) -> Any:
    return np.stack([node.pose for node in graph.nodes])


def confidence_of(graph: Any) -> Any:
    return np.array([edge.confidence for edge in graph.edges])


def ends_of(graph: Any) -> Any:
    return [(edge.source_node_id, edge.target_node_id) for edge in graph.edges]


def squared_errors(graph: Any, has_sine: bool = False) -> Any:
    """Of each edge, with the rotation vector or with its sine, as Open3D has it."""
    found = []
    for edge in graph.edges:
        source, target = (
            graph.nodes[node].pose for node in (edge.source_node_id, edge.target_node_id)
        )
        delta = np.linalg.inv(edge.transformation) @ np.linalg.inv(target) @ source
        turn = Rotation.from_matrix(delta[:3, :3]).as_rotvec()
        if has_sine:
            turn = 0.5 * (delta - delta.T)[[2, 0, 1], [1, 2, 0]]
        error = np.concatenate([turn, delta[:3, 3]])
        found.append(error @ edge.information @ error)
    return np.array(found)


def line_process_weight(graph: Any, option: Any) -> float:
    mean = np.mean([edge.information[5, 5] for edge in graph.edges])
    return float(option.preference_loop_closure * option.max_correspondence_distance**2 * mean)


def test_wrong_loops_are_pruned_as_by_open3d() -> None:
    graph = wander(3)
    given = copy.deepcopy(graph)
    done = optimize_open3d(graph, option_of(), backend="cpu")
    assert done.pruned.tolist() == list(range(ODOMETRY, ODOMETRY + NUM_WRONG))
    kept = np.setdiff1d(np.arange(len(given.edges)), done.pruned)
    assert ends_of(graph) == [ends_of(given)[place] for place in kept]
    assert_array_equal(graph.nodes[0].pose, given.nodes[0].pose)
    assert_allclose(graph.nodes[-1].pose[:3, 3], OPEN3D_POSITION, atol=3e-6)
    assert_allclose(confidence_of(graph)[-5:], OPEN3D_CONFIDENCE, atol=2e-5)
    assert_array_equal(done.confidence[kept], confidence_of(graph))
    assert (done.confidence[done.pruned] < 0.1).all()
    assert (done.confidence[:ODOMETRY] == 1.0).all()


def test_the_loss_is_the_line_process() -> None:
    """The cost is Open3D's with the best confidence, and no other confidence lowers it."""
    graph, option = wander(1), option_of()
    done = optimize_open3d(graph, option, backend="cpu")
    assert len(done.results) == 2
    squared, confidence = squared_errors(graph), confidence_of(graph)
    weight = line_process_weight(graph, option)
    is_uncertain = np.array([edge.uncertain for edge in graph.edges])
    assert_allclose(confidence[is_uncertain], ((weight / (weight + squared)) ** 2)[is_uncertain])

    def cost(confidence: Any) -> Any:
        process = weight * (np.sqrt(confidence) - 1.0) ** 2
        return (confidence * squared + np.where(is_uncertain, process, 0.0)).sum()

    assert 2.0 * done.results[-1].final_cost == pytest.approx(cost(confidence), rel=1e-9)
    for factor in (0.99, 1.01):
        assert cost(np.where(is_uncertain, factor * confidence, 1.0)) > cost(confidence)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reference", [-1, 0, 7])
def test_against_open3d(seed: int, reference: int) -> None:
    """Without any difference but that of an angle from its sine."""
    open3d = pytest.importorskip("open3d", exc_type=ImportError)
    library = open3d.pipelines.registration
    option = library.GlobalOptimizationOption(**vars(option_of(reference_node=reference)))
    graph, wanted = wander(seed, library), wander(seed, library)
    given = poses_of(graph)
    done = optimize_open3d(graph, option, backend="cpu")
    tight = library.GlobalOptimizationConvergenceCriteria()
    tight.max_iteration = 1000
    tight.min_relative_increment = tight.min_relative_residual_increment = 1e-12
    tight.min_right_term = tight.min_residual = 1e-10
    method = library.GlobalOptimizationLevenbergMarquardt()
    library.global_optimization(wanted, method, tight, option)
    assert ends_of(graph) == ends_of(wanted)
    assert len(done.pruned) == NUM_WRONG
    assert_allclose(confidence_of(graph), confidence_of(wanted), atol=2e-5)
    assert_array_equal(poses_of(graph)[max(reference, 0)], given[max(reference, 0)])
    expected = poses_of(wanted)
    if reference == -1:  # Open3D moves the first node too
        expected = given[0] @ np.linalg.inv(expected[0]) @ expected
    assert_allclose(poses_of(graph), expected, atol=3e-6)
    # each is the better one by its own measure
    weight = line_process_weight(graph, option)
    for best, other, has_sine in ((graph, wanted, False), (wanted, graph, True)):
        costs = []
        for one in (best, other):
            squared = squared_errors(one, has_sine)
            is_uncertain = np.array([edge.uncertain for edge in one.edges])
            costs.append(np.where(is_uncertain, squared / (1 + squared / weight), squared).sum())
        assert costs[0] <= costs[1] < costs[0] * (1.0 + 1e-8)


def test_graphs_of_one_kind_of_edges() -> None:
    """Certain ones alone; uncertain ones alone; all of them pruned."""
    graph = wander(0)
    for edge in graph.edges:
        edge.uncertain = False
    graph.edges = graph.edges[:ODOMETRY] + graph.edges[ODOMETRY + NUM_WRONG :]
    done = optimize_open3d(graph, option_of(), backend="cpu")
    assert (len(done.results), len(done.pruned)) == (1, 0)
    assert 2.0 * done.results[0].final_cost == pytest.approx(squared_errors(graph).sum(), rel=1e-9)
    for edge in graph.edges:
        edge.uncertain = True
    done = optimize_open3d(graph, option_of(), backend="cpu")
    assert (len(done.results), len(done.pruned)) == (1, 0)
    done = optimize_open3d(graph, option_of(edge_prune_threshold=1.0), backend="cpu")
    assert (len(done.results), len(graph.edges)) == (1, 0)


def test_a_part_that_pruning_cuts_off_keeps_its_shape() -> None:
    """No edge says any more where it is, so its first node is held in the second solve."""
    graph = wander(2)
    graph.edges = [edge for edge in graph.edges[:ODOMETRY] if edge.source_node_id != 14]
    bridge = copy.deepcopy(graph.edges[0])
    bridge.source_node_id, bridge.target_node_id, bridge.uncertain = 3, 20, True
    graph.edges.append(bridge)
    given = poses_of(graph)
    # a confidence of 1 is not above the threshold
    option = option_of(reference_node=2, edge_prune_threshold=1.0)
    done = optimize_open3d(graph, option, backend="cpu")
    assert done.pruned.tolist() == [ODOMETRY - 1]
    assert len(done.results) == 2
    assert done.results[-1].status.is_success
    assert_array_equal(poses_of(graph)[2], given[2])
    assert np.abs(poses_of(graph)[15:] - given[15:]).max() > 0.1
    for part in (slice(0, 15), slice(15, None)):
        before, after = (
            np.linalg.inv(poses[part][0]) @ poses[part] for poses in (given, poses_of(graph))
        )
        assert_allclose(after, before, atol=1e-6)


def test_half_a_turn_is_wrong() -> None:
    """Its sine is 0, so Open3D would trust such a loop."""
    graph = wander(0)
    upside_down = graph.edges[-1].transformation @ motion([np.pi - 1e-3, 0.0, 0.0], np.zeros(3))
    graph.edges[-1].transformation = upside_down
    done = optimize_open3d(graph, option_of(), backend="cpu")
    assert done.pruned.tolist() == [
        *range(ODOMETRY, ODOMETRY + NUM_WRONG),
        len(done.confidence) - 1,
    ]


def test_bad_input_is_named() -> None:
    def changed(**values: Any) -> Any:
        graph = wander(0)
        for name, value in values.items():
            setattr(graph.edges[2], name, value)
        return graph

    lonely = wander(0)
    lonely.nodes.append(Node(np.eye(4)))
    scaled, flat = wander(0), wander(0)
    scaled.nodes[4].pose = np.diag([2.0, 1.0, 1.0, 1.0])
    flat.nodes[4].pose = np.eye(3)
    countless = wander(0)
    for edge in countless.edges:
        edge.information = np.diag([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    for graph, text in (
        (Graph(), "pose_graph has no nodes"),
        (Graph([Node(np.eye(4))]), "pose_graph has no edges"),
        (lonely, r"edges do not connect nodes\[30\] with nodes\[0\]"),
        (scaled, r"nodes\[4\].pose is no rotation and translation"),
        (flat, r"nodes\[4\].pose has shape \(3, 3\): it must be a finite matrix of shape \(4, 4\)"),
        (changed(transformation=-np.eye(4)), r"edges\[2\].transformation is no rotation"),
        (changed(transformation=np.full((4, 4), np.nan)), r"edges\[2\].transformation has"),
        (changed(information=-np.eye(6)), r"edges\[2\].information has the negative diagonal"),
        (changed(information=np.eye(3)), r"edges\[2\].information has shape \(3, 3\)"),
        (changed(target_node_id=30), r"edges\[2\] joins the nodes 2 and 30: they must be two of"),
        (changed(target_node_id=2), r"edges\[2\] joins the nodes 2 and 2"),
        (changed(confidence=0.5), r"edges\[2\].confidence: must be 1"),
        (countless, r"information\[5, 5\]"),
    ):
        with pytest.raises(InputError, match=text):
            optimize_open3d(graph, option_of(), backend="cpu")
    graph = wander(0)
    for change, allowed in (
        ({"max_correspondence_distance": 0.0}, "positive"),
        ({"edge_prune_threshold": 1.5}, "from 0 to 1"),
        ({"preference_loop_closure": np.nan}, "positive"),
        ({"reference_node": 30}, "-1 or a node from 0 to 29"),
        ({"reference_node": None}, "-1 or a node"),
    ):
        with pytest.raises(OptionError, match=rf"option.{next(iter(change))}=.*{allowed}"):
            optimize_open3d(graph, option_of(**change), backend="cpu")
    assert_array_equal(poses_of(graph), poses_of(wander(0)))
