"""A drone with a camera and an inertial sensor keeps its last ten keyframes: a fixed-lag window.

Gyroscope and accelerometer are read 200 times a second, and the camera follows points at five
keyframes a second. Each keyframe is added to a `caspar.Problem` with its preintegrated readings and
its sights. A point is added once its sights tell where it is. The oldest keyframe is marginalised
with the points that it sees, so that a step takes as long after an hour as after a second. The
covariance says how far off the newest position is.

The flight, the readings and the pictures are simulated, with noise and with biases that drift. So
the true path is known: errors are compared with those of the inertial sensor alone, and with the
standard deviations that the window gives for them. Outliers are not simulated.

    python examples/inertial_window.py [--keyframes 120] [--picture IMAGE.png]
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.factors import ImuBias, ImuNoise, NavState

Array = NDArray[np.float64]

WINDOW = 10
"""Keyframes that are kept."""
STEP_S, READINGS = 0.005, 40
"""Time between two readings, and readings between two keyframes."""
GRAVITY = np.array([0.0, 0.0, -9.81])
NOISE = ImuNoise(gyroscope=2e-4, accelerometer=2e-3)
BIAS = np.array([0.004, -0.006, 0.005, 0.05, -0.08, 0.06])
"""At the start: gyroscope, rad/s, and accelerometer, m/s^2. Nobody knows it."""
DRIFT = np.repeat([2e-5, 2e-4], 3)
"""Standard deviation of its change from one keyframe to the next."""
FOCAL, PIXEL = 400.0, 0.5
"""Focal length, and standard deviation of a sight; pixels."""
MOST_SEEN = 60
"""Points that the camera follows at most."""
MIN_SIGHTS, MIN_PARALLAX = 3, 0.03
"""Sights of a point, and the largest angle between two of them (rad), before it is added."""


class Point(sf.V3):
    """A point that the camera follows, in metres."""


@caspar.factor
def sight(
    state: Annotated[NavState, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Where the camera sees a point, in standard deviations; it looks along x of the body."""
    x, y, z = state.pose.inverse() * point
    return (FOCAL * sf.V2(y / x, z / x) - pixel) / PIXEL


EACH = {"sigma": caspar.ConstSequential}
FACTORS = (
    sight,
    caspar.factors.imu(NavState, ImuBias, name="imu"),
    caspar.factors.between(ImuBias, name="drift", markers=EACH),
    caspar.factors.prior(NavState, name="start", markers=EACH),
    caspar.factors.prior(ImuBias, name="unbiased", markers=EACH),
)
START = np.repeat([0.01, 0.05, 0.05], 3)
"""Standard deviations of the first state: rotation, position, velocity."""
UNBIASED = np.repeat([0.01, 0.1], 3)
"""Of the first bias, which is taken for zero."""


# -- the flight ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flight:
    """What is simulated.

    Attributes:
        states: (n, 10) true ones at the keyframes, as `NavState` stores them.
        readings: (n - 1, READINGS, 6) gyroscope and accelerometer.
        numbers: By keyframe (k,) which points are seen.
        pixels: By keyframe (k, 2) where.
    """

    states: Array
    readings: Array
    numbers: list[NDArray[np.int64]]
    pixels: list[Array]


def fly(num_keyframes: int, rng: np.random.Generator) -> Flight:
    """A figure of eight in a hall, the camera ahead."""
    times = STEP_S * np.arange((num_keyframes - 1) * READINGS + 1)
    sizes, rates = np.array([12.0, 7.0, 1.5]), np.array([0.25, 0.5, 0.4])
    places, velocities = sizes * np.sin(np.outer(times, rates)), np.cos(np.outer(times, rates))
    velocities *= sizes * rates
    yaw = np.unwrap(np.arctan2(velocities[:, 1], velocities[:, 0]))
    lean = 0.15 * np.stack([np.sin(0.9 * times), np.cos(0.7 * times)], axis=1)
    turns = Rotation.from_euler("zyx", np.column_stack([yaw, lean]))
    steps = (turns[:-1].inv() * turns[1:]).as_rotvec()
    middle = turns[:-1] * Rotation.from_rotvec(steps / 2.0)
    force = middle.inv().apply(np.diff(velocities, axis=0) / STEP_S - GRAVITY)
    exact = np.concatenate([steps / STEP_S, force], axis=1).reshape(num_keyframes - 1, READINGS, 6)
    biases = BIAS + np.cumsum(DRIFT * rng.normal(size=(num_keyframes - 1, 1, 6)), axis=0)
    density = np.repeat([NOISE.gyroscope, NOISE.accelerometer], 3)
    readings = exact + biases + density / np.sqrt(STEP_S) * rng.normal(size=exact.shape)
    states = np.concatenate([turns.as_quat(), places, velocities], axis=1)[::READINGS]

    around = rng.uniform(0.0, 2.0 * np.pi, 1500)
    away = rng.uniform(16.0, 22.0, 1500)
    height = rng.uniform(-4.0, 4.0, 1500)
    points = np.column_stack([away * np.cos(around), away * np.sin(around), height])
    numbers: list[NDArray[np.int64]] = []
    pixels: list[Array] = []
    for state in states:
        x, y, z = Rotation.from_quat(state[:4]).inv().apply(points - state[4:7]).T
        seen = np.flatnonzero((x > 2.0) & (np.abs(y) < 0.8 * x) & (np.abs(z) < 0.6 * x))
        # those that were seen before are followed
        is_new = ~np.isin(seen, numbers[-1] if len(numbers) > 0 else [])
        seen = seen[np.argsort(is_new, kind="stable")][:MOST_SEEN]
        exact = FOCAL * np.column_stack([y[seen] / x[seen], z[seen] / x[seen]])
        numbers.append(seen)
        pixels.append(exact + PIXEL * rng.normal(size=exact.shape))
    return Flight(states, readings, numbers, pixels)


# -- the window ------------------------------------------------------------------------------------


def preintegrate(readings: Array, bias: Array) -> caspar.factors.Preintegration:
    """Sum up (n, READINGS, 6) readings by interval."""
    steps = np.full(readings.shape[:2], STEP_S)
    gyro, accel = readings[..., :3], readings[..., 3:]
    return caspar.factors.preintegrate_steps(gyro, accel, steps, NOISE, bias)


def place_of(states: Array, pixels: Array) -> Array | None:
    """(3,) the point next to all rays; None if they are nearly parallel, or it is behind."""
    rays = Rotation.from_quat(states[:, :4]).apply(np.insert(pixels / FOCAL, 0, 1.0, axis=1))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    if np.arccos(np.clip(rays @ rays[0], -1.0, 1.0)).max() < MIN_PARALLAX:
        return None
    across = np.eye(3) - rays[:, :, None] * rays[:, None, :]
    place = np.linalg.solve(across.sum(axis=0), (across @ states[:, 4:7, None]).sum(axis=0))[:, 0]
    return place if (((place - states[:, 4:7]) * rays).sum(axis=1) > 1.0).all() else None


@dataclass
class Window:
    """The last keyframes, and what they see.

    Attributes:
        problem: The nodes and factors.
        frames: Ids of the states.
        biases: Ids of the biases.
        points: The id of each point that was added, by its number.
        sights: By number of a point the frames that see it, and where.
    """

    problem: caspar.Problem
    frames: list[int]
    biases: list[int]
    points: dict[int, int] = field(default_factory=dict)
    sights: dict[int, list[tuple[int, Array]]] = field(default_factory=dict)

    def preintegrated(self, readings: Array) -> caspar.factors.Preintegration:
        """Sum up the readings since the last keyframe, less its bias."""
        (bias,) = self.problem.values_of("ImuBias", self.biases[-1:])
        return preintegrate(readings[None], bias)

    def add_keyframe(self, motion: caspar.factors.Preintegration) -> None:
        """Add a state where the readings lead from the last one, and a bias."""
        problem, last = self.problem, self.frames[-1:]
        state = motion.predict(problem.values_of("NavState", last)[0], GRAVITY)[-1:]
        self.frames += problem.add_nodes("NavState", state).tolist()
        self.biases += problem.add_nodes("ImuBias", motion.bias).tolist()
        ends = {"start": last, "end": self.frames[-1:], "bias": self.biases[-2:-1]}
        problem.add_factors("imu", {**ends, **motion.arrays(), "gravity": GRAVITY})
        drift = {"a": self.biases[-2:-1], "b": self.biases[-1:], "a_from_b": np.zeros((1, 6))}
        problem.add_factors("drift", {**drift, "sigma": DRIFT[None]})

    def see(self, numbers: NDArray[np.int64], pixels: Array) -> None:
        """Add the sights of the newest keyframe; a point comes with all of its sights."""
        new: list[tuple[int, int, Array]] = []
        for number, pixel in zip(numbers.tolist(), pixels, strict=True):
            seen = self.sights.setdefault(number, [])
            seen.append((self.frames[-1], pixel))
            if number in self.points:
                new.append((self.frames[-1], self.points[number], pixel))
            elif len(seen) >= MIN_SIGHTS:
                frames, places = zip(*seen, strict=True)
                place = place_of(self.problem.values_of("NavState", frames), np.array(places))
                if place is not None:
                    (self.points[number],) = self.problem.add_nodes("Point", place[None])
                    new += [(frame, self.points[number], where) for frame, where in seen]
        if len(new) > 0:
            states, points, where = zip(*new, strict=True)
            given = {"state": states, "point": points, "pixel": np.array(where)}
            self.problem.add_factors("sight", given)

    def forget_oldest(self) -> None:
        """Marginalise the oldest keyframe and the points that it sees."""
        oldest = self.frames.pop(0)
        gone = []
        for number, seen in list(self.sights.items()):
            if seen[0][0] == oldest and number in self.points:
                gone.append(self.points.pop(number))
                # if it is seen again, it is a new one
                del self.sights[number]
            elif seen[0][0] == oldest:
                del seen[0]
                if len(seen) == 0:
                    del self.sights[number]
        nodes = {"NavState": [oldest], "ImuBias": [self.biases.pop(0)], "Point": gone}
        self.problem.marginalize(nodes)


@dataclass(frozen=True)
class Estimate:
    """What the window said at each keyframe, when it was the newest one.

    Attributes:
        positions: (n, 3).
        sigmas: (n, 3) standard deviations of the positions.
        alone: (n, 3) positions by the inertial sensor alone.
        spent_ms: (n,) time for a keyframe, but for the preintegration.
    """

    positions: Array
    sigmas: Array
    alone: Array
    spent_ms: Array


def estimate(flight: Flight, rng: np.random.Generator) -> Estimate:
    """Follow a flight."""
    problem = caspar.Problem(FACTORS, backend="cpu", precision="float64")
    state = flight.states[:1].copy()
    turned = Rotation.from_quat(state[0, :4]) * Rotation.from_rotvec(START[:3] * rng.normal(size=3))
    state[0] = [*turned.as_quat(), *(state[0, 4:] + START[3:] * rng.normal(size=6))]
    frames = problem.add_nodes("NavState", state)
    biases = problem.add_nodes("ImuBias", np.zeros((1, 6)))
    problem.add_factors("start", {"value": frames, "expected": state, "sigma": START[None]})
    unbiased = {"value": biases, "expected": np.zeros((1, 6)), "sigma": UNBIASED[None]}
    problem.add_factors("unbiased", unbiased)
    window = Window(problem, frames.tolist(), biases.tolist())
    window.see(flight.numbers[0], flight.pixels[0])
    positions, sigmas, spent_ms = [state[0, 4:7]], [START[3:6]], [0.0]
    for readings, numbers, pixels in zip(
        flight.readings, flight.numbers[1:], flight.pixels[1:], strict=True
    ):
        motion = window.preintegrated(readings)
        start = time.perf_counter()
        window.add_keyframe(motion)
        window.see(numbers, pixels)
        problem.update(max_iterations=5, cost_tolerance=1e-4)
        newest = window.frames[-1:]
        (covariance,) = problem.covariance({"NavState": newest})["NavState"]
        positions.append(problem.values_of("NavState", newest)[0, 4:7])
        sigmas.append(np.sqrt(covariance.diagonal()[3:6]))
        if len(window.frames) > WINDOW:
            window.forget_oldest()
        spent_ms.append(1e3 * (time.perf_counter() - start))
    alone = preintegrate(flight.readings, np.zeros(6)).predict(state[0], GRAVITY)
    return Estimate(np.array(positions), np.array(sigmas), alone[:, 4:7], np.array(spent_ms))


def draw(flight: Flight, found: Estimate, picture: Path) -> None:
    """The paths from above, and the errors with two standard deviations."""
    true, times = flight.states[:, 4:7], STEP_S * READINGS * np.arange(len(flight.states))
    figure, (above, beside) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    above.plot(*true[:, :2].T, color="0.8", lw=5.0, label="true")
    above.plot(*found.alone[:, :2].T, "--", color="0.5", lw=1.0, label="inertial sensor alone")
    above.plot(*found.positions[:, :2].T, color="C0", lw=1.5, label="window")
    above.set(xlim=(-20.0, 20.0), ylim=(-14.0, 14.0), aspect="equal", xlabel="x, m", ylabel="y, m")
    above.legend(loc="lower left", fontsize="small")
    for axis in range(3):
        error, sigma = (found.positions - true)[:, axis], 2.0 * found.sigmas[:, axis]
        beside.fill_between(times, -sigma, sigma, color=f"C{axis}", alpha=0.15)
        beside.plot(times, error, color=f"C{axis}", lw=1.2, label="xyz"[axis])
    beside.set(xlabel="time, s", ylabel="error, m")
    beside.legend(fontsize="small")
    figure.savefig(picture)
    plt.close(figure)


def main(arguments: Sequence[str] = ()) -> tuple[Flight, Estimate]:
    """Fly, follow the flight, and print how well."""
    parser = argparse.ArgumentParser(prog="python examples/inertial_window.py")
    parser.add_argument("--keyframes", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--picture", type=Path, help="where paths and errors are drawn")
    chosen = parser.parse_args(arguments)
    rng = np.random.default_rng(chosen.seed)
    flight = fly(chosen.keyframes, rng)
    found = estimate(flight, rng)
    true = flight.states[:, 4:7]
    metres = np.linalg.norm(np.diff(true, axis=0), axis=1).sum()
    print(f"{chosen.keyframes} keyframes, {metres:.0f} m (simulated)")
    print("error of the position, m            root mean square   at the end")
    for name, places in (("inertial sensor alone", found.alone), ("window", found.positions)):
        errors = np.linalg.norm(places - true, axis=1)
        print(f"  {name:<33} {np.sqrt(np.mean(errors**2)):>14.2f} {errors[-1]:>12.2f}")
    ratio = np.sqrt(np.mean(((found.positions - true) / found.sigmas) ** 2))
    print(f"errors of the window, in its own standard deviations: {ratio:.2f} (root mean square)")
    later = found.spent_ms[2 * WINDOW :]  # the first ones compile
    print(f"a keyframe took {later.mean():.1f} ms on average, {later.max():.0f} ms at most")
    if chosen.picture is not None:
        draw(flight, found, chosen.picture)
    return flight, found


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
