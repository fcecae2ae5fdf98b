"""Residuals of the library against formulas in NumPy and SciPy, written independently."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.spatial.transform import Rotation

import caspar
from tests.factors.evaluating import residuals

Array = NDArray[Any]

factors = caspar.factors
N = 5


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(4)


def poses3(random: np.random.Generator) -> Array:
    turns = Rotation.from_rotvec(random.normal(size=(N, 3)))
    return np.concatenate([turns.as_quat(), random.normal(size=(N, 3))], axis=1)


def poses2(random: np.random.Generator) -> Array:
    angles = random.uniform(-3.0, 3.0, N)
    return np.column_stack([np.cos(angles), np.sin(angles), random.normal(size=(N, 2))])


def matrices(poses: Array) -> Array:
    """(n, d + 1, d + 1) homogeneous matrices."""
    dim = 2 if poses.shape[1] == 4 else 3
    made = np.tile(np.eye(dim + 1), (len(poses), 1, 1))
    if dim == 2:
        cosine, sine = poses[:, 0], poses[:, 1]
        made[:, :2, :2] = np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)
    else:
        made[:, :3, :3] = Rotation.from_quat(poses[:, :4]).as_matrix()
    made[:, :dim, dim] = poses[:, -dim:]
    return made


def moved(poses: Array, points: Array) -> Array:
    """(n, d) points of the outer axes."""
    ones = np.ones((len(points), 1))
    transformed = matrices(poses) @ np.concatenate([points, ones], axis=1)[:, :, None]
    places: Array = transformed[:, :-1, 0]
    return places


def inverse(poses: Array) -> Array:
    """(n, d + 1, d + 1) inverse homogeneous matrices."""
    return np.linalg.inv(matrices(poses))


def errors(differences: Array) -> Array:
    """Rotation vector and translation of (n, 4, 4) matrices."""
    turns = Rotation.from_matrix(differences[:, :3, :3]).as_rotvec()
    return np.concatenate([turns, differences[:, :3, 3]], axis=1)


def found(factor: caspar.Factor, **values: Any) -> Array:
    return residuals(factor, values, N)[0]


class TestWhitening:
    def test_sigma(self, random: np.random.Generator) -> None:
        value, expected = random.normal(size=(2, N, 3))
        sigma = np.array([0.1, 2.0, 5.0])
        rows = found(factors.prior(sf.V3), value=value, expected=expected, sigma=sigma)
        assert_allclose(rows, (value - expected) / sigma)

    def test_sqrt_information(self, random: np.random.Generator) -> None:
        value, expected = random.normal(size=(2, N, 3))
        roots = random.normal(size=(N, 3, 3))
        factor = factors.prior(sf.V3, noise="sqrt_information")
        rows = found(factor, value=value, expected=expected, sqrt_information=roots)
        assert_allclose(rows, np.einsum("nij,nj->ni", roots, value - expected))

    def test_sqrt_information_of_a_covariance(self, random: np.random.Generator) -> None:
        roots = random.normal(size=(N, 4, 4))
        covariance = roots @ roots.transpose(0, 2, 1)
        whitening = factors.sqrt_information(covariance)
        assert_allclose(whitening, np.tril(whitening))
        product = whitening @ covariance @ whitening.transpose(0, 2, 1)
        assert_allclose(product, np.tile(np.eye(4), (N, 1, 1)), atol=1e-8)

    @pytest.mark.parametrize("dim", [3, 6])
    def test_rotation_first(self, random: np.random.Generator, dim: int) -> None:
        """The same chi2 as g2o's error, to first order: half angles, translation first."""
        roots = random.normal(size=(N, dim, dim))
        turn = dim - (2 if dim == 3 else 3)
        error = random.normal(size=(N, dim))
        turns, shifts = error[:, :turn], error[:, turn:]
        half = 1.0 if dim == 3 else 0.5
        g2o = np.concatenate([shifts, half * turns], axis=1)
        ours = factors.rotation_first(roots)
        assert_allclose(np.einsum("nij,nj->ni", ours, error), np.einsum("nij,nj->ni", roots, g2o))


class TestPoses:
    @pytest.mark.parametrize("kind", [sf.Rot3, sf.Rot2, sf.Unit3, sf.V7])
    def test_prior_is_the_step(self, random: np.random.Generator, kind: Any) -> None:
        """Zero at the expected value; a small step gives itself."""
        if kind is sf.V7:
            values = random.normal(size=(2, N, 7))
            wanted = values[1] - values[0]
        elif kind is sf.Unit3:
            values = random.normal(size=(2, N, 3))
            values /= np.linalg.norm(values, axis=2)[:, :, None]
            rows = found(factors.prior(kind, noise="unit"), value=values[1], expected=values[0])
            angles = np.arccos((values[0] * values[1]).sum(axis=1))
            assert_allclose(np.linalg.norm(rows, axis=1), angles)
            return
        elif kind is sf.Rot3:
            turns = Rotation.from_rotvec(random.normal(size=(2 * N, 3)))
            values = turns.as_quat().reshape(2, N, 4)
            wanted = (turns[:N].inv() * turns[N:]).as_rotvec()
        else:
            angles = random.uniform(-1.5, 1.5, (2, N))
            values = np.stack([np.cos(angles), np.sin(angles)], axis=2)
            wanted = (angles[1] - angles[0])[:, None]
        rows = found(factors.prior(kind, noise="unit"), value=values[1], expected=values[0])
        assert_allclose(rows, wanted, rtol=1e-9)

    def test_prior_of_a_dataclass(self, random: np.random.Generator) -> None:
        states = [
            np.concatenate([poses3(random), random.normal(size=(N, 3))], axis=1) for _ in "ab"
        ]
        rows = found(
            factors.prior(factors.NavState, noise="unit"), value=states[1], expected=states[0]
        )
        pose = found(factors.prior(noise="unit"), value=states[1][:, :7], expected=states[0][:, :7])
        assert_allclose(rows, np.concatenate([pose, (states[1] - states[0])[:, 7:]], axis=1))

    def test_between_vectors(self, random: np.random.Generator) -> None:
        a, b, measured = random.normal(size=(3, N, 2))
        rows = found(factors.between(sf.V2, noise="unit"), a=a, b=b, a_from_b=measured)
        assert_allclose(rows, b - a - measured)

    def test_between_rotations(self, random: np.random.Generator) -> None:
        a, b, measured = (Rotation.from_rotvec(random.normal(size=(N, 3))) for _ in "abm")
        rows = found(
            factors.between(sf.Rot3, noise="unit"),
            **{"a": a.as_quat(), "b": b.as_quat(), "a_from_b": measured.as_quat()},
        )
        assert_allclose(rows, (measured.inv() * a.inv() * b).as_rotvec(), rtol=1e-9)

    def test_hand_eye(self, random: np.random.Generator) -> None:
        x, a, b = (poses3(random) for _ in "xab")
        rows = found(factors.hand_eye(noise="unit"), x=x, a=a, b=b)
        X, A, B = map(matrices, (x, a, b))
        assert_allclose(rows, errors(np.linalg.inv(X @ B) @ A @ X), rtol=1e-8, atol=1e-10)

    def test_robot_world_hand_eye(self, random: np.random.Generator) -> None:
        x, y, a, b = (poses3(random) for _ in "xyab")
        rows = found(factors.robot_world_hand_eye(noise="unit"), x=x, y=y, a=a, b=b)
        X, Y, A, B = map(matrices, (x, y, a, b))
        assert_allclose(rows, errors(np.linalg.inv(Y @ B) @ A @ X), rtol=1e-8, atol=1e-10)


class TestRanging:
    @pytest.mark.parametrize("dim", [2, 3])
    def test_landmark(self, random: np.random.Generator, dim: int) -> None:
        pose = poses2(random) if dim == 2 else poses3(random)
        point, seen = random.normal(size=(2, N, dim))
        kinds = (sf.Pose2, sf.V2) if dim == 2 else (sf.Pose3, sf.V3)
        rows = found(factors.landmark(*kinds, noise="unit"), pose=pose, point=point, seen=seen)
        local = inverse(pose) @ np.concatenate([point, np.ones((N, 1))], axis=1)[:, :, None]
        assert_allclose(rows, local[:, :dim, 0] - seen, atol=1e-12)

    def test_range_of_two_poses(self, random: np.random.Generator) -> None:
        a, b = poses3(random), poses3(random)
        rows = found(
            factors.range(sf.Pose3, sf.Pose3, noise="unit"), a=a, b=b, distance=np.ones((N, 1))
        )
        assert_allclose(rows[:, 0], np.linalg.norm(a[:, 4:] - b[:, 4:], axis=1) - 1.0)

    def test_bearing_range_in_space(self, random: np.random.Generator) -> None:
        pose, point = poses3(random), random.normal(size=(N, 3))
        direction = random.normal(size=(N, 3))
        direction /= np.linalg.norm(direction, axis=1)[:, None]
        values = {"pose": pose, "point": point, "direction": direction}
        rows = found(factors.bearing_range(noise="unit"), distance=np.full((N, 1), 0.5), **values)
        assert_allclose(rows[:, :2], found(factors.bearing(noise="unit"), **values))
        size = np.linalg.norm(point - pose[:, 4:], axis=1)
        assert_allclose(rows[:, 2], size - 0.5)
        local = np.einsum("nji,nj->ni", matrices(pose)[:, :3, :3], point - pose[:, 4:])
        angle = np.arccos((local * direction).sum(axis=1) / size)
        assert_allclose(np.linalg.norm(rows[:, :2], axis=1), angle)


class TestRegistration:
    @pytest.mark.parametrize("dim", [2, 3])
    def test_points_and_planes(self, random: np.random.Generator, dim: int) -> None:
        pose = poses2(random) if dim == 2 else poses3(random)
        kind = sf.Pose2 if dim == 2 else sf.Pose3
        source, target, normal = random.normal(size=(3, N, dim))
        apart = moved(pose, source) - target
        values = {"target_from_source": pose, "source": source, "target": target}
        assert_allclose(found(factors.point_to_point(kind, noise="unit"), **values), apart)
        rows = found(factors.point_to_plane(kind, noise="unit"), normal=normal, **values)
        assert_allclose(rows[:, 0], (normal * apart).sum(axis=1))

    @pytest.mark.parametrize("dim", [2, 3])
    @pytest.mark.parametrize("has_two", [False, True])
    def test_planes(self, random: np.random.Generator, dim: int, has_two: bool) -> None:
        kind = sf.Pose2 if dim == 2 else sf.Pose3
        poses = [poses2(random) if dim == 2 else poses3(random) for _ in "ab"]
        source, target = random.normal(size=(2, N, dim))
        roots = random.normal(size=(2, N, dim, dim))
        of_source, of_target = roots @ roots.transpose(0, 1, 3, 2)
        values: dict[str, Any] = {
            **{"source": source, "target": target},
            **{"source_covariance": of_source, "target_covariance": of_target},
        }
        transform = matrices(poses[0])
        if has_two:
            values |= {"world_from_source": poses[0], "world_from_target": poses[1]}
            transform = inverse(poses[1]) @ transform
        else:
            values["target_from_source"] = poses[0]
        factor = factors.plane_to_plane(kind, kind if has_two else None)
        turn = transform[:, :dim, :dim]
        apart = np.einsum("nij,nj->ni", turn, source) + transform[:, :dim, dim] - target
        covariance = of_target + turn @ of_source @ turn.transpose(0, 2, 1)
        wanted = np.einsum("ni,nij,nj->n", apart, np.linalg.inv(covariance), apart)
        assert_allclose((found(factor, **values) ** 2).sum(axis=1), wanted, rtol=1e-8)

    def test_two_scans_with_poses(self, random: np.random.Generator) -> None:
        a, b = poses3(random), poses3(random)
        source, target = random.normal(size=(2, N, 3))
        rows = found(
            factors.point_to_point(sf.Pose3, sf.Pose3, noise="unit"),
            **{"world_from_source": a, "world_from_target": b},
            **{"source": source, "target": target},
        )
        transform = inverse(b) @ matrices(a)
        homogeneous = np.concatenate([source, np.ones((N, 1))], axis=1)[:, :, None]
        assert_allclose(rows, (transform @ homogeneous)[:, :3, 0] - target, atol=1e-12)

    def test_covariances_of_planes(self, random: np.random.Generator) -> None:
        normals = random.normal(size=(N, 3))
        normals /= np.linalg.norm(normals, axis=1)[:, None]
        made = factors.plane_covariances(normals, 0.01)
        assert_allclose(np.linalg.eigvalsh(made), np.tile([0.01, 1.0, 1.0], (N, 1)))
        assert_allclose(np.einsum("nij,nj->ni", made, normals), 0.01 * normals)


class TestNavigation:
    def test_gps_in_the_plane(self, random: np.random.Generator) -> None:
        pose, position = poses2(random), random.normal(size=(N, 2))
        arm = np.array([0.3, -0.1])
        rows = found(
            factors.gps_position(sf.Pose2, noise="unit"),
            **{"world_from_body": pose, "position": position, "lever_arm": arm},
        )
        assert_allclose(rows, moved(pose, np.tile(arm, (N, 1))) - position)

    def test_velocity(self, random: np.random.Generator) -> None:
        pose, (velocity, measured) = poses3(random), random.normal(size=(2, N, 3))
        turned = Rotation.from_quat(pose[:, :4]).inv().apply(velocity)
        rows = found(
            factors.velocity(noise="unit"),
            **{"world_from_body": pose, "velocity": velocity, "measured": measured},
        )
        assert_allclose(rows, turned - measured)
        state = factors.NavState
        joint = factors.velocity(
            factors.part(state, "pose", "state"),
            factors.part(state, "velocity", "state"),
            noise="unit",
        )
        states = np.concatenate([pose, velocity], axis=1)
        assert_allclose(found(joint, state=states, measured=measured), rows)

    def test_constant_velocity(self, random: np.random.Generator) -> None:
        a, b, velocity = poses3(random), poses3(random), random.normal(size=(N, 3))
        rows = found(
            factors.constant_velocity(noise="unit"),
            **{"a": a, "b": b, "velocity": velocity, "duration": np.full((N, 1), 0.2)},
        )
        assert_allclose(rows, b[:, 4:] - a[:, 4:] - 0.2 * velocity)

    def test_gravity_of_rotations(self, random: np.random.Generator) -> None:
        """A turn about the reference is not seen; another one is, by its angle."""
        turns = Rotation.from_rotvec([[0.0, 0.0, 1.0], [0.2, 0.0, 0.0]])
        values = {
            "world_from_body": turns.as_quat(),
            "direction": np.array([0.0, 0.0, 1.0]),
            "reference": np.array([0.0, 0.0, 9.81]),
        }
        rows, _ = residuals(factors.gravity(sf.Rot3, noise="unit"), values, 2)
        assert_allclose(np.linalg.norm(rows, axis=1), [0.0, 0.2], atol=1e-12)


class TestSatellites:
    def test_doppler_is_the_rate_of_the_distance(self, random: np.random.Generator) -> None:
        receiver, satellite = 4e6 * random.normal(size=(N, 3)), 2e7 * random.normal(size=(N, 3))
        velocity, flight = 30.0 * random.normal(size=(N, 3)), 3e3 * random.normal(size=(N, 3))
        drift, rate = random.normal(size=(2, N, 1))
        rows = found(
            factors.doppler(noise="unit"),
            **{"receiver": receiver, "velocity": velocity, "clock_drift": drift},
            **{"satellite": satellite, "satellite_velocity": flight, "range_rate": rate},
        )
        line, step = satellite - receiver, 0.5 * (flight - velocity)
        later, before = (np.linalg.norm(line + sign * step, axis=1) for sign in (1.0, -1.0))
        assert_allclose(rows[:, 0], later - before + (drift - rate)[:, 0], atol=1e-4)

    def test_turn_of_the_earth(self, random: np.random.Generator) -> None:
        """As much as the satellite's position turns about the axis while the signal travels."""
        receiver = np.array([4.1e6, 0.6e6, 4.8e6])
        satellite = np.array([1.2e7, 1.5e7, 1.8e7]) + 1e5 * random.normal(size=(N, 3))
        time = np.linalg.norm(satellite - receiver, axis=1) / 299_792_458.0
        turned = np.stack(
            [
                expm(7.2921151467e-5 * t * np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0]])) @ place
                for t, place in zip(time, satellite, strict=True)
            ]
        )
        rows = found(
            factors.pseudorange(noise="unit"),
            **{"receiver": receiver, "clock": np.zeros(1), "satellite": satellite},
            pseudorange=np.zeros((N, 1)),
        )
        assert_allclose(rows[:, 0], np.linalg.norm(turned - receiver, axis=1), atol=1e-3)


LENS = np.array([500.0, 480.0, 320.0, 240.0])


def pinhole(points: Array) -> Array:
    pixels: Array = LENS[:2] * points[:, :2] / points[:, 2:] + LENS[2:]
    return pixels


@dataclass
class Rig:
    """A pose with a calibration beside it."""

    body_from_cam: sf.Pose3
    lens: sf.V4


class TestVision:
    def test_rig(self, random: np.random.Generator) -> None:
        body, cam = poses3(random), poses3(random)
        seen = random.normal(size=(N, 3)) * 0.3 + [0.0, 0.0, 3.0]
        point = np.linalg.inv(matrices(cam) @ matrices(body))
        point = (point @ np.concatenate([seen, np.ones((N, 1))], axis=1)[:, :, None])[:, :3, 0]
        pixel = random.normal(size=(N, 2))
        values = {"rig_from_world": body, "cam_from_rig": cam, "point": point, "lens": LENS}
        factor = factors.reprojection("PINHOLE", rig=sf.Pose3, noise="unit")
        assert_allclose(found(factor, pixel=pixel, **values), pinhole(seen) - pixel, rtol=1e-9)

    def test_calibration_from_a_part_of_a_node(self, random: np.random.Generator) -> None:
        seen = random.normal(size=(N, 3)) * 0.3 + [0.0, 0.0, 3.0]
        cam = poses3(random)
        point = moved(cam, seen)
        factor = factors.reprojection(
            "PINHOLE",
            factors.part(Rig, lambda rig: rig.body_from_cam.inverse(), "camera"),
            lens=factors.part(Rig, "lens", "camera"),
            noise="unit",
        )
        rows = found(
            factor,
            camera=np.concatenate([cam, np.tile(LENS, (N, 1))], axis=1),
            point=point,
            pixel=np.zeros((N, 2)),
        )
        assert_allclose(rows, pinhole(seen), rtol=1e-9)

    @pytest.mark.parametrize("depth", [4.0, np.inf])
    def test_inverse_depth(self, random: np.random.Generator, depth: float) -> None:
        anchor = poses3(random)
        near = Rotation.from_rotvec(0.1 * random.normal(size=(N, 3)))
        near *= Rotation.from_quat(anchor[:, :4])
        cam = np.concatenate([near.as_quat(), anchor[:, 4:] + 0.2], axis=1)
        direction = np.column_stack([random.normal(size=(N, 2)) * 0.2, np.ones(N)])
        rows = found(
            factors.inverse_depth_reprojection("PINHOLE", noise="unit"),
            **{"anchor_from_world": anchor, "cam_from_world": cam, "direction": direction},
            **{"inverse_depth": np.full((N, 1), 1.0 / depth), "lens": LENS},
            pixel=np.zeros((N, 2)),
        )
        transform = matrices(cam) @ inverse(anchor)
        far = np.column_stack([direction, np.full(N, 1.0 / depth)])
        assert_allclose(rows, pinhole((transform @ far[:, :, None])[:, :3, 0]), rtol=1e-9)

    def test_lines(self, random: np.random.Generator) -> None:
        cam = poses3(random)
        seen = random.normal(size=(2, N, 3)) * 0.5 + [0.0, 0.0, 4.0]
        ends = [
            (inverse(cam) @ np.concatenate([one, np.ones((N, 1))], axis=1)[:, :, None])[:, :3, 0]
            for one in seen
        ]
        segment = np.concatenate([pinhole(seen[0]), pinhole(seen[1])], axis=1)
        segment += random.normal(size=(N, 4))
        rows = found(
            factors.line_reprojection(noise="unit"),
            **{"cam_from_world": cam, "line": factors.lines_through(*ends), "segment": segment},
            lens=LENS,
        )
        first, second = pinhole(seen[0]), pinhole(seen[1])
        along = second - first
        across = np.stack([-along[:, 1], along[:, 0]], axis=1)
        across /= np.linalg.norm(across, axis=1)[:, None]
        wanted = [((segment[:, i : i + 2] - first) * across).sum(axis=1) for i in (0, 2)]
        sign = np.sign(rows[:, 0] * wanted[0])[:, None]
        assert_allclose(sign * rows, np.stack(wanted, axis=1), rtol=1e-7, atol=1e-7)

    def test_a_line_through_the_origin(self) -> None:
        storage = factors.lines_through(np.zeros((1, 3)), np.array([[0.0, 0.0, 2.0]]))
        line = factors.Line(
            sf.Rot3.from_storage(list(storage[0, :4])), sf.Rot2.from_storage(list(storage[0, 4:]))
        )
        moment, direction = line.pluecker()
        assert_allclose(np.array(moment, float), 0.0, atol=1e-12)
        assert_allclose(abs(np.array(direction, float)), [0.0, 0.0, 1.0], atol=1e-12)

    def test_homography(self, random: np.random.Generator) -> None:
        H = np.eye(3) + 0.1 * random.normal(size=(N, 3, 3))
        H /= H[:, 2:, 2:]
        a, b = random.normal(size=(2, N, 2))
        rows = found(
            factors.homography(noise="unit"),
            **{"b_from_a": H.reshape(N, 9)[:, :8], "pixel_a": a, "pixel_b": b},
        )
        x = np.einsum("nij,nj->ni", H, np.column_stack([a, np.ones(N)]))
        assert_allclose(rows, x[:, :2] / x[:, 2:] - b)
