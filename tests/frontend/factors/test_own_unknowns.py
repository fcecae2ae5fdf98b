"""`TunableSequential`: unknowns of single instances, eliminated from the residual."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

import caspar
from caspar.errors import FactorError, InputError
from tests.harness_backend import HarnessBackend


class Center(sf.V3):
    """Of a camera."""


class Curve(sf.V2):
    """Rate and phase."""


@caspar.factor
def sight(
    center: Annotated[Center, caspar.TunableUnique],
    ray: Annotated[sf.V3, caspar.ConstSequential],
    point: Annotated[sf.V3, caspar.ConstSequential],
    depth: Annotated[sf.Scalar, caspar.TunableSequential(lower=1.0, upper=4.0)],
) -> sf.V3:
    return point - center - depth * ray


@caspar.factor
def wave(
    curve: Annotated[Curve, caspar.TunableUnique],
    samples: Annotated[sf.V5, caspar.ConstSequential],
    level: Annotated[sf.V2, caspar.TunableSequential],
    slope: Annotated[sf.Scalar, caspar.TunableSequential],
) -> sf.V5:
    """Amplitude and mean of each instance, and a trend."""
    rows = [
        level[0] * sf.exp(-curve[0] * k) + level[1] + slope * sf.sin(curve[1] * k) - samples[k]
        for k in range(5)
    ]
    return sf.V5(*rows)


def _sights(num: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(num)
    rays = random.standard_normal((num, 3))
    rays /= np.linalg.norm(rays, axis=1)[:, None]
    depths = random.uniform(0.0, 6.0, num)
    points = np.array([1.0, -2.0, 0.5]) + depths[:, None] * rays
    points += 0.1 * random.standard_normal(points.shape)
    return {"Center": np.zeros((1, 3)), "sight": {"ray": rays, "point": points}}


@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
def test_a_bounded_scalar(precision: Any) -> None:
    """The optimum of all unknowns together, by SciPy with bounds."""
    given = _sights()
    rays, points = given["sight"]["ray"], given["sight"]["point"]

    def residual(all_of_it: Any) -> Any:
        return (points - all_of_it[:3] - all_of_it[3:, None] * rays).ravel()

    lower = np.concatenate([np.full(3, -np.inf), np.full(len(rays), 1.0)])
    upper = np.concatenate([np.full(3, np.inf), np.full(len(rays), 4.0)])
    start = np.concatenate([np.zeros(3), np.full(len(rays), 2.0)])
    best = least_squares(residual, start, bounds=(lower, upper), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    solver = caspar.Solver(sight, backend="cpu", precision=precision)
    result = solver.solve(given)
    accuracy = 1e-4 if precision == "float32" else 1e-6
    assert_allclose(result.values["Center"][0], best.x[:3], atol=accuracy)
    assert_allclose(result.final_cost, best.cost, rtol=accuracy)
    found = solver.evaluate({**given, **result.values})
    depths = found.unknowns("sight", "depth")
    assert depths.shape == (len(rays), 1)
    assert_allclose(depths[:, 0], best.x[3:], atol=10 * accuracy)
    assert depths.min() == 1.0
    assert depths.max() == 4.0
    assert_allclose(
        found.residuals("sight"), points - result.values["Center"] - depths * rays, atol=1e-5
    )


def test_cuda_text() -> None:
    """Run on the simulated GPU, as on the CPU."""
    given = _sights()
    wanted = caspar.Solver(sight, backend="cpu", precision="float64").solve(given)
    solver = caspar.Solver(sight, backend=HarnessBackend(), precision="float64")
    found = solver.solve(given)
    assert_allclose(found.values["Center"], wanted.values["Center"], atol=1e-9)
    depths = solver.evaluate({**given, **found.values}).unknowns("sight", "depth")
    assert depths.min() == 1.0
    assert depths.max() == 4.0


def test_several_of_them() -> None:
    """Two arguments, three scalars: those of a linear fit for each instance."""
    rate, turn = 0.4, 0.9
    levels = np.random.default_rng(3).standard_normal((30, 3))
    k = np.arange(5.0)
    basis = np.stack([np.exp(-rate * k), np.ones(5), np.sin(turn * k)])
    given = {"Curve": np.array([[0.6, 1.1]]), "wave": {"samples": levels @ basis}}
    solver = caspar.Solver(wave, backend="cpu", precision="float64")
    result = solver.solve(given)
    assert_allclose(result.values["Curve"], [[rate, turn]], atol=1e-7)
    found = solver.evaluate({**given, **result.values})
    assert_allclose(found.unknowns("wave", "level"), levels[:, :2], atol=1e-5)
    assert_allclose(found.unknowns("wave", "slope"), levels[:, 2:], atol=1e-5)


def test_weights_losses_and_covariance() -> None:
    """A loss does not move them; the covariance is the marginal one of the other unknowns."""
    given = _sights(200)
    given["sight"]["point"][::10] += 3.0
    given["sight"] |= {"loss_scale": 0.2, "weight": np.full(200, 4.0)}
    solver = caspar.Solver(sight.with_loss(caspar.loss.Cauchy), backend="cpu")
    result = solver.solve(given)
    assert_allclose(result.values["Center"][0], [1.0, -2.0, 0.5], atol=0.05)

    class Depth(sf.V1):
        """As a node of its own."""

    @caspar.factor
    def free(
        center: Annotated[Center, caspar.TunableUnique],
        depth: Annotated[Depth, caspar.TunableShared],
        ray: Annotated[sf.V3, caspar.ConstSequential],
        point: Annotated[sf.V3, caspar.ConstSequential],
    ) -> sf.V3:
        return point - center - depth[0] * ray

    @caspar.factor
    def owned(
        center: Annotated[Center, caspar.TunableUnique],
        ray: Annotated[sf.V3, caspar.ConstSequential],
        point: Annotated[sf.V3, caspar.ConstSequential],
        depth: Annotated[sf.Scalar, caspar.TunableSequential],
    ) -> sf.V3:
        return point - center - depth * ray

    plain = _sights(50)
    data = plain["sight"]
    first = caspar.Solver(free, backend="cpu", precision="float64")
    nodes = {"Center": plain["Center"], "Depth": np.ones((50, 1))}
    both = first.solve({**nodes, "free": {**data, "depth": np.arange(50)}})
    second = caspar.Solver(owned, backend="cpu", precision="float64")
    alone = second.solve({"Center": plain["Center"], "owned": data})
    assert_allclose(alone.values["Center"], both.values["Center"], atol=1e-9)
    wanted = first.covariance(both, {"Center": "all"})["Center"]
    assert_allclose(second.covariance(alone, {"Center": "all"})["Center"], wanted, rtol=1e-9)


def test_batches() -> None:
    """Each problem of a batch is a problem of its own."""
    problems = [_sights(60) for _ in range(3)]
    for number, one in enumerate(problems):
        one["sight"] = {name: rows[20 * number :][:20] for name, rows in one["sight"].items()}
    fits = caspar.BatchSolver(sight, backend="cpu", precision="float64").solve(
        {
            "Center": np.zeros((3, 3)),
            "sight": {
                name: np.stack([one["sight"][name] for one in problems])
                for name in ("ray", "point")
            },
        }
    )
    solver = caspar.Solver(sight, backend="cpu", precision="float64")
    for number, given in enumerate(problems):
        alone = solver.solve(given)
        assert_allclose(fits.values["Center"][number], alone.values["Center"][0], atol=1e-5)


def _refused(annotation: Any, residual: Any) -> str:
    def function(center: Any, ray: Any, own: Any) -> Any:
        return residual(center, ray, own)

    function.__annotations__ = {
        "center": Annotated[Center, caspar.TunableUnique],
        "ray": Annotated[sf.V3, caspar.ConstSequential],
        "own": annotation,
    }
    with pytest.raises(FactorError) as caught:
        caspar.Solver(caspar.factor(function), backend="cpu")
    return str(caught.value)


def test_what_is_refused() -> None:
    own = Annotated[sf.Scalar, caspar.TunableSequential]
    assert "linear in it, and row 0 is not" in _refused(own, lambda c, r, s: c - s**2 * r)
    assert "does not depend on own" in _refused(own, lambda c, r, s: c - r)
    assert "is zero whatever the other unknowns are" in _refused(
        own, lambda c, r, s: sf.V1(c[0] - s)
    )
    bounded = Annotated[sf.V2, caspar.TunableSequential(lower=0.0)]
    assert "there are 2" in _refused(bounded, lambda c, r, s: c - s[0] * r - s[1] * sf.V3(1, 0, 0))
    pose = Annotated[sf.Rot2, caspar.TunableSequential]
    assert "Rot2 is another type" in _refused(pose, lambda c, r, s: c - s.z.real * r)
    for bounds, text in (
        ({"lower": 1.0, "upper": 1.0}, "lower must be below upper"),
        ({"lower": float("nan")}, "must be a number"),
        ({"upper": "2"}, "must be a number"),
    ):
        with pytest.raises(FactorError, match=text):
            caspar.TunableSequential(**bounds)


def test_names_that_do_not_exist() -> None:
    solver = caspar.Solver(sight, backend="cpu")
    found = solver.evaluate(_sights())
    with pytest.raises(InputError, match="TunableSequential argument of factor sight"):
        found.unknowns("sight", "dept")
    with pytest.raises(InputError, match="factor"):
        found.unknowns("sights", "depth")
    given = _sights()
    given["sight"]["depth"] = np.ones((40, 1))
    with pytest.raises(
        InputError, match="factor sight: unknown name 'depth'; expected arguments: ray, point"
    ):
        solver.solve(given)


def test_a_constraint_has_none() -> None:
    @caspar.constraint(kind="zero")
    def on_ray(
        center: Annotated[Center, caspar.TunableUnique],
        ray: Annotated[sf.V3, caspar.ConstSequential],
        depth: Annotated[sf.Scalar, caspar.TunableSequential],
    ) -> sf.V3:
        return center - depth * ray

    with pytest.raises(FactorError, match="constraint on_ray, argument depth"):
        caspar.Solver([sight, on_ray], backend="cpu")


def test_beside_a_constraint() -> None:
    @caspar.constraint(kind="zero")
    def on_plane(center: Annotated[Center, caspar.TunableUnique]) -> sf.V1:
        return sf.V1(center[2])

    given = _sights()
    solver = caspar.Solver([sight, on_plane], backend="cpu")
    result = solver.solve(given)
    assert abs(result.values["Center"][0, 2]) <= 1e-8
    depths = solver.evaluate({**given, **result.values}).unknowns("sight", "depth")
    rays = given["sight"]["ray"]
    ways = given["sight"]["point"] - result.values["Center"]
    assert_allclose(depths[:, 0], np.clip(np.sum(rays * ways, axis=1), 1.0, 4.0), atol=1e-9)


def test_live_problems_and_gradients() -> None:
    class Place(sf.V3):
        """A camera of several."""

    @caspar.factor
    def seen(
        place: Annotated[Place, caspar.TunableShared],
        ray: Annotated[sf.V3, caspar.ConstSequential],
        point: Annotated[sf.V3, caspar.ConstSequential],
        depth: Annotated[sf.Scalar, caspar.TunableSequential(lower=1.0)],
    ) -> sf.V3:
        return point - place - depth * ray

    data = _sights(30)["sight"]
    problem = caspar.Problem([seen], backend="cpu")
    (place,) = problem.add_nodes("Place", np.zeros((1, 3)))
    problem.add_factors("seen", {"place": np.full(30, place), **data})
    problem.solve()
    solver = caspar.Solver(seen, backend="cpu", precision="float64")
    sights = {"place": np.zeros(30, int), **data}
    given = {"Place": np.zeros((1, 3)), "seen": sights}
    result = solver.solve(given)
    assert_allclose(problem.values["Place"], result.values["Place"], atol=1e-6)
    slope = solver.gradient(result, {"Place": [[1.0, 0.0, 0.0]]})["seen"]["point"]
    moved = data["point"].copy()
    moved[4, 1] += 1e-5
    other = solver.solve({**given, "seen": {**sights, "point": moved}})
    found = (other.values["Place"] - result.values["Place"])[0, 0] / 1e-5
    assert_allclose(slope[4, 1], found, atol=1e-5)
