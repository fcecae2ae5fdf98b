"""Problems of ten kinds whose gradients are compared with finite differences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar import bundle_adjustment, factors
from tests.solver.gradients.polishing import Arrays, Parts, Reference

Rows = NDArray[np.float64]
Units = dict[tuple[str, ...], slice]


class Curve(sf.V3):
    """Height, rate and floor of a decay."""


class Spot(sf.V5):
    """Height, place (2), width and background of a spot in a picture."""


class Lens(sf.V5):
    """Focal length, centre (2) and two coefficients of distortion."""


class Place(sf.V2):
    """A place in the plane."""


class Other(sf.V2):
    """Two numbers."""


class Level(sf.V1):
    """A number of a chain."""


@caspar.factor
def decay(
    curve: Annotated[Curve, caspar.TunableUnique],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V1, caspar.ConstSequential],
    sigma: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V1:
    """A sample of a decay."""
    return sf.V1((curve[0] * sf.exp(-curve[1] * x[0]) + curve[2] - y[0]) / sigma[0])


@caspar.factor
def spot(
    spot: Annotated[Spot, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstIndexed],
    brightness: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """A pixel of a picture with a spot."""
    height, x, y, width, floor = spot
    square = (pixel[0] - x) ** 2 + (pixel[1] - y) ** 2
    return sf.V1(height * sf.exp(-square / (2 * width**2)) + floor - brightness[0])


@caspar.factor
def corner(
    lens: Annotated[Lens, caspar.TunableUnique],
    view: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[sf.V3, caspar.ConstIndexed],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A corner of a chessboard in a picture."""
    seen = view * point
    plane = sf.V2(seen[0] / seen[2], seen[1] / seen[2])
    square = plane.squared_norm()
    focal, cx, cy, k1, k2 = lens
    return focal * (1 + k1 * square + k2 * square**2) * plane + sf.V2(cx, cy) - pixel


@caspar.factor
def plane_distance(
    pose: Annotated[sf.Pose3, caspar.TunableUnique],
    source: Annotated[sf.V3, caspar.ConstSequential],
    target: Annotated[sf.V3, caspar.ConstSequential],
    normal: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V1:
    """The distance of a moved point from a plane."""
    return sf.V1(normal.dot(pose * source - target))


@caspar.factor
def distance(
    place: Annotated[Place, caspar.TunableShared],
    beacon: Annotated[sf.V2, caspar.ConstIndexed],
    measured: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """A measured distance from a beacon."""
    return sf.V1((place - beacon).norm(epsilon=1e-12) - measured[0])


@caspar.factor
def motion(
    places: Annotated[caspar.Pair[Place], caspar.TunablePair],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A step from a place to the next one."""
    first, second = places
    return second - first - measured


@caspar.factor
def hand(
    hand: Annotated[sf.Pose3, caspar.TunableUnique],
    robot: Annotated[sf.Pose3, caspar.ConstSequential],
    camera: Annotated[sf.Pose3, caspar.ConstSequential],
) -> sf.V6:
    """Hand-eye calibration: A X = X B."""
    error = (hand * camera).inverse() * (robot * hand)
    return sf.V6(*error.R.to_tangent(), *error.t)


@caspar.factor
def growth(
    levels: Annotated[caspar.Pair[Level], caspar.TunablePair],
    rate: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V1:
    """Logistic growth from one level to the next."""
    now, then = levels
    return sf.V1(then[0] - now[0] - rate[0] * now[0] * (1 - now[0]))


@caspar.factor
def observed(
    level: Annotated[Level, caspar.TunableShared],
    measured: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """A measurement of a level."""
    return sf.V1(sf.log(1 + level[0] ** 2) - measured[0])


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        name: Of it.
        factors: Its factors.
        arrays: As for `Solver.solve`.
        parts: By node type, what its storage consists of.
        fixed: As for `Solver.solve`.
        units: By factor and argument, the columns that have unit length.
        step: Of finite differences, relative to the arguments.
    """

    name: str
    factors: Sequence[caspar.Factor]
    arrays: Arrays
    parts: dict[str, Parts]
    fixed: dict[str, Any] | None = None
    units: Units = field(default_factory=dict)
    step: float = 1e-3

    @property
    def reference(self) -> Reference:
        """What polishes its solves."""
        return Reference(self.factors, self.parts, self.fixed)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _poses(rng: np.random.Generator, count: int, angle: float, size: float) -> Rows:
    rotations = Rotation.from_rotvec(angle * rng.normal(size=(count, 3))).as_quat()
    return np.concatenate([rotations, size * rng.normal(size=(count, 3))], axis=1)


def curve_fit() -> Case:
    """A decay with noise, samples weighted."""
    rng = _rng(1)
    x = np.linspace(0.0, 5.0, 15)
    y = 3.0 * np.exp(-0.7 * x) + 0.5 + 0.1 * rng.normal(size=15)
    weight = rng.uniform(0.5, 2.0, 15)
    given = {"x": x[:, None], "y": y[:, None], "sigma": np.array([0.2]), "weight": weight}
    arrays = {"Curve": np.array([[2.5, 0.6, 0.4]]), "decay": given}
    return Case("curve", [decay], arrays, {"Curve": [3]})


def spots() -> Case:
    """Two spots on the same pixels, Cauchy's loss with a scale for all."""
    rng = _rng(2)
    pixels = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
    truth = np.array([[4.0, 2.4, 2.7, 1.3, 0.5], [3.0, 3.1, 2.2, 1.6, 0.3]])
    index = np.tile(np.arange(36), 2)
    node = np.repeat([0, 1], 36)
    square = ((pixels[index] - truth[node][:, 1:3]) ** 2).sum(axis=1)
    value = truth[node, 0] * np.exp(-square / (2 * truth[node, 3] ** 2)) + truth[node, 4]
    given = {
        "spot": node,
        "pixel": {"values": pixels, "index": index},
        "brightness": value + 0.2 * rng.normal(size=72),
        "loss_scale": 0.5,
    }
    arrays = {"Spot": truth * 1.05, "spot": given}
    return Case("spots", [spot.with_loss(caspar.loss.Cauchy)], arrays, {"Spot": [5]})


def calibration() -> Case:
    """A lens and three views of a chessboard."""
    rng = _rng(3)
    points = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), [0.0]), axis=-1).reshape(-1, 3)
    points = 0.3 * (points - points.mean(axis=0))
    views = _poses(rng, 3, 0.35, 0.1)
    views[:, 6] += 2.5
    lens = np.array([600.0, 320.0, 240.0, -0.1, 0.02])
    view, index = np.repeat(np.arange(3), 12), np.tile(np.arange(12), 3)
    seen = Rotation.from_quat(views[view, :4]).apply(points[index]) + views[view, 4:]
    plane = seen[:, :2] / seen[:, 2:]
    square = (plane**2).sum(axis=1, keepdims=True)
    pixel = lens[0] * (1 + lens[3] * square + lens[4] * square**2) * plane + lens[1:3]
    given = {
        "view": view,
        "point": {"values": points, "index": index},
        "pixel": pixel + 0.5 * rng.normal(size=pixel.shape),
    }
    arrays = {"Lens": lens[None], "Pose3": views, "corner": given}
    parts: dict[str, Parts] = {"Lens": [5], "Pose3": ["rotation", 3]}
    return Case("calibration", [corner], arrays, parts, step=1e-5)


def bundle() -> Case:
    """Three cameras and fourteen points, which are eliminated in a solve; two cameras are held."""
    rng = _rng(4)
    points = rng.uniform(-1.0, 1.0, (14, 3))
    cams = np.concatenate([_poses(rng, 3, 0.1, 0.3), np.tile([500.0, -0.05, 0.01], (3, 1))], axis=1)
    cams[:, 6] -= 4.0
    cam, point = (one.ravel() for one in np.meshgrid(np.arange(3), np.arange(14)))
    seen = Rotation.from_quat(cams[cam, :4]).apply(points[point]) + cams[cam, 4:7]
    plane = -seen[:, :2] / seen[:, 2:]
    square = (plane**2).sum(axis=1, keepdims=True)
    k1, k2 = cams[cam, 8:9], cams[cam, 9:10]
    pixel = cams[cam, 7:8] * (1 + k1 * square + k2 * square**2) * plane
    given = {"cam": cam, "point": point, "pixel": pixel + rng.normal(size=pixel.shape)}
    arrays = {"Cam": cams, "Point": points, "snavely": given}
    parts: dict[str, Parts] = {"Cam": ["rotation", 3, 3], "Point": [3]}
    return Case("bundle", [bundle_adjustment.snavely], arrays, parts, {"Cam": [0, 1]})


def registration() -> Case:
    """A cloud on planes, Huber's loss, a scale for each point."""
    rng = _rng(5)
    source = rng.uniform(-1.0, 1.0, (30, 3))
    normal = rng.normal(size=(30, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    pose = _poses(rng, 1, 0.2, 0.1)
    target = Rotation.from_quat(pose[0, :4]).apply(source) + pose[0, 4:]
    given = {
        "source": source,
        "target": target + 0.1 * rng.normal(size=(30, 3)),
        "normal": normal,
        "loss_scale": rng.uniform(0.05, 0.2, 30),
    }
    arrays = {"Pose3": pose, "plane_distance": given}
    robust = plane_distance.with_loss(caspar.loss.Huber)
    return Case("registration", [robust], arrays, {"Pose3": ["rotation", 3]})


def ranging() -> Case:
    """A walk between beacons: pairs of places, a robust distance, one place held."""
    rng = _rng(6)
    beacons = np.array([[-3.0, -3.0], [3.0, -3.0], [0.0, 4.0]])
    places = np.cumsum(rng.normal(size=(6, 2)) * 0.6, axis=0)
    place, beacon = (one.ravel() for one in np.meshgrid(np.arange(6), np.arange(3)))
    far = np.linalg.norm(places[place] - beacons[beacon], axis=1)
    arrays = {
        "Place": places,
        "distance": {
            "place": place,
            "beacon": {"values": beacons, "index": beacon},
            "measured": far + 0.2 * rng.normal(size=18),
            "loss_scale": 0.4,
        },
        "motion": {
            "measured": np.diff(places, axis=0) + 0.1 * rng.normal(size=(5, 2)),
            "weight": rng.uniform(1.0, 4.0, 5),
        },
    }
    robust = distance.with_loss(caspar.loss.Cauchy)
    return Case("ranging", [robust, motion], arrays, {"Place": [2]}, {"Place": [2]})


def hand_eye() -> Case:
    """The pose of a camera on a robot's hand."""
    rng = _rng(7)
    robot, truth = _poses(rng, 8, 0.8, 0.5), _poses(rng, 1, 0.3, 0.2)
    turn, hand_turn = Rotation.from_quat(robot[:, :4]), Rotation.from_quat(truth[:, :4])
    moved = turn.apply(np.tile(truth[:, 4:], (8, 1))) + robot[:, 4:]
    shift = hand_turn.inv().apply(moved - truth[:, 4:])
    noise = Rotation.from_rotvec(0.05 * rng.normal(size=(8, 3)))
    turned = (hand_turn.inv() * turn * hand_turn * noise).as_quat()
    camera = np.concatenate([turned, shift + 0.05 * rng.normal(size=(8, 3))], axis=1)
    arrays = {"Pose3": truth, "hand": {"robot": robot, "camera": camera}}
    units: Units = {("hand", "robot"): slice(0, 4), ("hand", "camera"): slice(0, 4)}
    return Case("hand_eye", [hand], arrays, {"Pose3": ["rotation", 3]}, None, units)


def _chain(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.concatenate([np.arange(count - 1), [0, 1]])
    return first, np.concatenate([np.arange(1, count), [count - 1, count - 2]])


def graph() -> Case:
    """A pose graph in space, edges weighted, the first pose held by a prior."""
    rng = _rng(8)
    poses = _poses(rng, 6, 0.5, 1.0)
    a, b = _chain(6)
    turn = Rotation.from_quat(poses[:, :4])
    relative = turn[a].inv() * turn[b] * Rotation.from_rotvec(0.1 * rng.normal(size=(7, 3)))
    shift = turn[a].inv().apply(poses[b, 4:] - poses[a, 4:]) + 0.1 * rng.normal(size=(7, 3))
    measured = np.concatenate([relative.as_quat(), shift], axis=1)
    arrays: Arrays = {
        "Pose3": poses,
        "between": {"a": a, "b": b, "a_from_b": measured, "sigma": np.full(6, 0.2)},
        "prior": {"value": [0], "expected": poses[:1] * 1.0, "sigma": np.full(6, 0.1)},
    }
    arrays["between"]["weight"] = rng.uniform(0.5, 2.0, 7)
    chosen = [factors.between(sf.Pose3), factors.prior(sf.Pose3)]
    units: Units = {("between", "a_from_b"): slice(0, 4), ("prior", "expected"): slice(0, 4)}
    return Case("graph", chosen, arrays, {"Pose3": ["rotation", 3]}, None, units)


def plane_graph() -> Case:
    """A pose graph in the plane, the first pose held, robust edges."""
    rng = _rng(9)
    angle = rng.normal(size=7)
    poses = np.stack([np.cos(angle), np.sin(angle), *rng.normal(size=(2, 7))], axis=1)
    a, b = _chain(7)
    turned = angle[b] - angle[a] + 0.1 * rng.normal(size=8)
    shift = poses[b, 2:] - poses[a, 2:]
    c, s = np.cos(angle[a]), np.sin(angle[a])
    shift = np.stack([c * shift[:, 0] + s * shift[:, 1], c * shift[:, 1] - s * shift[:, 0]], axis=1)
    shift += 0.1 * rng.normal(size=(8, 2))
    measured = np.concatenate([np.stack([np.cos(turned), np.sin(turned)], axis=1), shift], axis=1)
    arrays: Arrays = {
        "Pose2": poses,
        "between": {"a": a, "b": b, "a_from_b": measured, "sigma": np.full(3, 0.2)},
    }
    arrays["between"]["loss_scale"] = 1.3
    chosen = [factors.between(sf.Pose2).with_loss(caspar.loss.Cauchy)]
    units: Units = {("between", "a_from_b"): slice(0, 2)}
    return Case("plane_graph", chosen, arrays, {"Pose2": ["turn", 2]}, {"Pose2": [0]}, units)


def chain() -> Case:
    """Logistic growth, seen through a logarithm: pairs of levels, a rate for all."""
    rng = _rng(10)
    level = [0.1]
    for _ in range(9):
        level.append(level[-1] + 0.9 * level[-1] * (1 - level[-1]))
    values = np.array(level)[:, None]
    arrays = {
        "Level": values,
        "growth": {"rate": np.array([0.9]), "weight": np.full(9, 25.0)},
        "observed": {
            "level": np.arange(10),
            "measured": np.log(1 + values**2) + 0.05 * rng.normal(size=(10, 1)),
            "weight": np.full(10, 100.0),
        },
    }
    return Case("chain", [growth, observed], arrays, {"Level": [1]})


def random_case(rng: np.random.Generator, count: int, dim: int, loss: Any) -> Case:
    """A polynomial and a wave of two node types, one of which has a part that is held.

    Args:
        rng: Chooses numbers.
        count: Instances.
        dim: Numbers of the first node type.
        loss: Of the factor; None: it has none.
    """
    made = {2: Place, 3: Curve}[dim]
    few = rng.normal(size=(dim, 3)).round(2)

    def mixed(
        one: Annotated[made, caspar.TunableShared],  # type: ignore[valid-type]
        other: Annotated[Other, caspar.TunableShared],
        data: Annotated[sf.V3, caspar.ConstSequential],
    ) -> sf.V2:
        terms = [float(few[k, 0]) * one[k] + 0.2 * sf.sin(one[k] * data[1]) for k in range(dim)]  # type: ignore[index]
        wave = sf.cos(float(few[0, 1]) * other[0] + data[2])
        return sf.V2(sum(terms) + wave - data[0], other[1] * one[0] + other[0] - data[2])  # type: ignore[index]

    def near(
        one: Annotated[made, caspar.TunableShared],  # type: ignore[valid-type]
        expected: Annotated[made, caspar.ConstSequential],  # type: ignore[valid-type]
    ) -> made:  # type: ignore[valid-type]
        return 2.0 * (one - expected)  # type: ignore[operator, no-any-return]

    def close(
        other: Annotated[Other, caspar.TunableShared], at: Annotated[Other, caspar.ConstUnique]
    ) -> sf.V2:
        return 2.0 * (other - at)

    chosen = caspar.factor(mixed) if loss is None else caspar.factor(mixed).with_loss(loss)
    given: Arrays = {
        "one": rng.integers(0, 3, count),
        "other": rng.integers(0, 2, count),
        "data": rng.normal(size=(count, 3)),
        "weight": rng.uniform(0.2, 1.0, count),
    }
    if loss is not None:
        given["loss_scale"] = float(rng.uniform(0.8, 1.6))
    arrays: Arrays = {
        made.__name__: rng.normal(size=(3, dim)),
        "Other": rng.normal(size=(2, 2)),
        "mixed": given,
        "near": {"one": np.arange(3), "expected": rng.normal(size=(3, dim))},
        "close": {"other": np.arange(2), "at": rng.normal(size=2)},
    }
    fixed = {"Other": [1]}
    parts: dict[str, Parts] = {made.__name__: [dim], "Other": [2]}
    all_factors = [chosen, caspar.factor(near), caspar.factor(close)]
    return Case("random", all_factors, arrays, parts, fixed)


CASES = {
    make.__name__: make
    for make in (
        *(curve_fit, spots, calibration, bundle, registration),
        *(ranging, hand_eye, graph, plane_graph, chain),
    )
}
