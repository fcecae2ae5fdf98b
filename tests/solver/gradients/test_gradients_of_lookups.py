"""Gradients of problems that look values up, against the polynomials that tables interpolate."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

COUNT, SIZE = 40, 61


class Shift(sf.V2):
    """Where a picture lies in another one."""


class Linear(caspar.Grid, dims=2, channels=2):
    """Linear along each axis."""


class Cubic(caspar.Grid, dims=2, channels=2, method="cubic"):
    """Catmull-Rom splines."""


class Spline(caspar.Grid, dims=2, channels=2, method="bspline3"):
    """B-splines; well inside no border tells."""


class Bounded(caspar.Grid, dims=2, border="zero"):
    """Nothing outside."""


class Endless(caspar.Grid, dims=2):
    """The nearest sample outside."""


POWERS: dict[type[caspar.Grid], list[tuple[int, int]]] = {
    Linear: [(i, j) for i in range(2) for j in range(2)],
    Cubic: [(i, j) for i in range(3) for j in range(3)],
    Spline: [(0, 0), (1, 0), (0, 1), (1, 1), (3, 0), (0, 3), (2, 1), (1, 2), (3, 3)],
}
"""Monomials that are interpolated exactly."""


def monomials(kind: type[caspar.Grid], x: Any, y: Any) -> list[Any]:
    """Those of a class, of coordinates from the middle in units of ten samples."""
    u, v = (x - 30) / 10, (y - 30) / 10
    return [u**i * v**j for i, j in POWERS[kind]]


def by_table(kind: Any) -> Any:
    @caspar.factor
    def shown(
        shift: Annotated[Shift, caspar.TunableShared],
        pixel: Annotated[sf.V2, caspar.ConstSequential],
        value: Annotated[sf.V2, caspar.ConstSequential],
        picture: Annotated[kind, caspar.ConstUnique],
    ) -> sf.V2:
        x, y = shift + pixel
        return sf.V2(picture.at(x, y)) - value

    return caspar.Solver(shown.with_loss(caspar.loss.Huber), backend="cpu")


def by_polynomials(kind: Any) -> Any:
    vector: Any = sf.V4 if kind is Linear else sf.V9

    @caspar.factor
    def shown(
        shift: Annotated[Shift, caspar.TunableShared],
        pixel: Annotated[sf.V2, caspar.ConstSequential],
        value: Annotated[sf.V2, caspar.ConstSequential],
        first: Annotated[vector, caspar.ConstUnique],
        second: Annotated[vector, caspar.ConstUnique],
    ) -> sf.V2:
        terms = monomials(kind, *(shift + pixel))
        rows = [sum(a * b for a, b in zip(one, terms, strict=True)) for one in (first, second)]
        return sf.V2(*rows) - value

    return caspar.Solver(shown.with_loss(caspar.loss.Huber), backend="cpu")


@pytest.mark.parametrize("kind", [Linear, Cubic, Spline])
def test_gradients_are_those_of_the_polynomials(kind: type[caspar.Grid]) -> None:
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=(2, len(POWERS[kind])))
    y, x = np.mgrid[:SIZE, :SIZE]
    basis = np.stack(monomials(kind, x, y), axis=-1)  # (rows, columns, monomials)
    picture = basis @ coefficients.T
    true = np.array([[0.3, -0.7]])
    pixel = 30 + rng.uniform(-8, 8, (COUNT, 2))
    shown = np.stack(monomials(kind, *(true + pixel).T), axis=-1) @ coefficients.T
    own: dict[str, Any] = {
        "shift": np.zeros(COUNT, int),
        "pixel": pixel,
        "value": shown + rng.normal(0, 0.1, shown.shape),
        "weight": rng.uniform(0.5, 2.0, COUNT),
        "loss_scale": 0.15,
    }
    own["weight"][::9] = 0.0
    is_spline = kind is Spline
    table = kind.coefficients(picture) if is_spline else picture
    solver = by_polynomials(kind)
    polynomials = dict(zip(("first", "second"), coefficients, strict=True))
    arrays = {"Shift": true, "shown": {**own, **polynomials}}
    values = solver.solve(arrays, verbose=False).values
    cotangents = {"Shift": [[0.7, -1.3]]}
    wanted = solver.gradient({**arrays, **values}, cotangents)["shown"]
    given = {**values, "shown": {**own, "picture": table}}
    found = by_table(kind).gradient(given, cotangents)["shown"]
    for name in ("pixel", "value", "weight", "loss_scale"):
        assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-11)
    # a table that moves as a monomial does
    both = np.repeat(basis.transpose(2, 0, 1)[..., None], 2, axis=-1)
    moved = kind.coefficients(both) if is_spline else both
    by_monomials = np.einsum("krcd,rcd->dk", moved, found["picture"])
    assert_allclose(by_monomials[0], wanted["first"], rtol=1e-8, atol=1e-10)
    assert_allclose(by_monomials[1], wanted["second"], rtol=1e-8, atol=1e-10)


def at_the_border(kind: Any) -> Any:
    @caspar.factor
    def shown(
        shift: Annotated[Shift, caspar.TunableShared],
        pixel: Annotated[sf.V2, caspar.ConstSequential],
        value: Annotated[sf.Scalar, caspar.ConstSequential],
        picture: Annotated[kind, caspar.ConstIndexed],
    ) -> sf.V1:
        x, y = shift + pixel
        return sf.V1(picture.at(x, y) - value)

    return shown


def bordered() -> tuple[NDArray[Any], dict[str, Any]]:
    """Pixels inside and outside of three pictures, of which one is not looked at."""
    rng = np.random.default_rng(1)
    pictures = rng.normal(size=(3, 6, 8)) + np.mgrid[:6, :8].sum(axis=0)
    own = {
        "shift": np.zeros(COUNT, int),
        "pixel": rng.uniform([-3, -3], [10, 8], (COUNT, 2)),
        "value": rng.normal(size=COUNT),
        "picture": {"values": pictures, "index": 2 * rng.integers(0, 2, COUNT)},
    }
    return np.array([[0.1, 0.2]]), own


@pytest.mark.parametrize(("kind", "mode"), [(Bounded, "constant"), (Endless, "edge")])
@pytest.mark.parametrize("backend", ["cpu", "harness", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_samples_of_the_border_have_gradients(kind: Any, mode: Any, backend: str) -> None:
    if backend == "harness" and find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    chosen: Any = HarnessBackend() if backend == "harness" else backend
    solver = caspar.Solver(at_the_border(kind), backend=chosen)
    start, own = bordered()
    cotangents = {"Shift": [[1.0, -2.0]]}
    found = solver.gradient({"Shift": start, "shown": own}, cotangents)["shown"]
    # the same with 5 more samples on all sides
    width = ((0, 0), (5, 5), (5, 5))
    values = np.pad(own["picture"]["values"], width, mode)
    wide = {**own, "pixel": own["pixel"] + 5, "picture": {**own["picture"], "values": values}}
    wanted = solver.gradient({"Shift": start, "shown": wide}, cotangents)["shown"]
    assert_allclose(found["pixel"], wanted["pixel"], atol=1e-12)
    by_samples = wanted["picture"]
    if kind is Endless:  # what is outside is the nearest sample
        by_samples = by_samples.copy()
        for axis in (1, 2):
            size = by_samples.shape[axis] - 10
            inside, before, behind = (
                by_samples.take(range(*part), axis)
                for part in ((5, size + 5), (0, 5), (size + 5, size + 10))
            )
            inside[(slice(None),) * axis + (0,)] += before.sum(axis)
            inside[(slice(None),) * axis + (-1,)] += behind.sum(axis)
            by_samples = inside
    else:
        by_samples = by_samples[:, 5:-5, 5:-5]
    assert_allclose(found["picture"], by_samples, atol=1e-12)
    assert not found["picture"][1].any()
    assert found["picture"][[0, 2]].any()
