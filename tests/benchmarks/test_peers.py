"""Peers run in processes of their own; what is missing is named."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from benchmarks.peers.launch import PEERS, Peer, PeerError, PeerHost, measure, peer_version
from benchmarks.peers.worker import flipped_pixels, from_looking_along_z, looking_along_z
from benchmarks.problems import Bundle, make

FAKE = Peer("fake", "tests.benchmarks.fake_worker", ("first",), 100, drops_points_behind=True)
HOST = PeerHost(seconds=0.125, runs=2)


@pytest.fixture(scope="module")
def problem() -> Bundle:
    return make("growth 0.0005")


def test_answer_becomes_measurement(problem: Bundle, tmp_path: Path) -> None:
    found = measure(FAKE, "first", problem, HOST, tmp_path)
    assert (found.solver, found.status, found.runs) == ("fake first", "first", 2)
    assert found.final_cost == problem.cost(problem.cameras, problem.points)
    assert found.solve_s == 0.125
    assert found.trace == ((0.0625, 7.0), (0.125, 6.0))
    assert found.setup is not None
    assert found.setup.anew_s == 0.25


def test_cost_that_is_another_gives_no_times(problem: Bundle, tmp_path: Path) -> None:
    found = measure(FAKE, "first", problem, HOST, tmp_path)
    assert not found.same_cost
    assert found.time_to(1e30) is None


def test_failure_names_its_last_line(problem: Bundle, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="RuntimeError: it did not converge"):
        measure(FAKE, "fails", problem, HOST, tmp_path)


def test_version_is_asked_for() -> None:
    assert peer_version(FAKE, HOST) == "1.2.3"


def test_missing_library_and_interpreter_are_named() -> None:
    missing = Peer("none", "benchmarks.peers.no_worker", (), 0, drops_points_behind=False)
    with pytest.raises(PeerError, match="no_worker"):
        peer_version(missing, HOST)
    with pytest.raises(PeerError, match="no/python"):
        peer_version(FAKE, PeerHost(python=Path("no/python")))


def test_every_peer_has_a_worker_and_a_setting() -> None:
    root = Path(__file__).parents[2]
    for peer in PEERS:
        assert (root / (peer.module.replace(".", "/") + ".py")).exists()
        assert len(peer.settings) > 0


def test_conventions_give_the_same_pixels(problem: Bundle) -> None:
    rotations, translations = looking_along_z(problem.cameras)
    cameras = problem.cameras[problem.camera_index]
    seen = rotations[problem.camera_index].apply(problem.points[problem.point_index])
    seen += translations[problem.camera_index]
    plane = seen[:, :2] / seen[:, 2:]
    square = (plane**2).sum(axis=1)
    radial = cameras[:, 7] * (1.0 + cameras[:, 8] * square + cameras[:, 9] * square**2)
    residual = radial[:, None] * plane - flipped_pixels(problem.pixels)
    expected = problem.cost(problem.cameras, problem.points)
    np.testing.assert_allclose(0.5 * (residual**2).sum(), expected, rtol=1e-12)


def test_conventions_have_an_inverse(problem: Bundle) -> None:
    cameras = problem.cameras
    back = from_looking_along_z(*looking_along_z(cameras), cameras[:, 7:])
    np.testing.assert_allclose(back[:, 4:], cameras[:, 4:], atol=1e-14)
    turn = Rotation.from_quat(back[:, :4]).inv() * Rotation.from_quat(cameras[:, :4])
    assert turn.magnitude().max() < 1e-12
