"""Each loss against its formula in NumPy, and its derivatives against finite differences."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from caspar.errors import FactorError
from caspar.frontend.factors.loss import TracedLoss, trace_loss
from tests.solver.losses.loss_cases import FORMULAS, Floats, barron, loss_named

SQUARES = np.concatenate([[0.0], np.geomspace(1e-8, 1e4, 61)])
SCALES = (0.3, 1.0, 7.0)
ALPHAS = (-50.0, -2.0, -0.5, 0.3, 1.0, 1.7)


def defaults(loss: TracedLoss, scale: float, **values: float) -> dict[str, Any]:
    given = {one.name: one.default for one in loss.parameters}
    return {**given, "scale": scale, **values}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FORMULAS)
def test_values(name: str, scale: float) -> None:
    loss = trace_loss(loss_named(name), "factor f")
    rho = loss.on_numbers(SQUARES * scale**2, defaults(loss, scale))[0]
    assert_allclose(rho, scale**2 * FORMULAS[name](SQUARES), rtol=1e-10, atol=1e-15 * scale**2)


def central(values: Floats, step: Floats) -> Floats:
    found: Floats = (values[1] - values[0]) / step
    return found


@pytest.mark.parametrize("name", [*FORMULAS, "Barron"])
def test_derivatives(name: str) -> None:
    loss = trace_loss(loss_named(name), "factor f")
    values = defaults(loss, 0.7, **({"alpha": 0.6} if name == "Barron" else {}))
    square = np.geomspace(1e-2, 1e2, 40) * 0.7**2
    step = 1e-5 * square
    below, above = (loss.on_numbers(square + sign * step / 2, values) for sign in (-1, 1))
    _, slope, curvature = loss.on_numbers(square, values)
    assert_allclose(central(np.array([below[0], above[0]]), step), slope, rtol=1e-6, atol=1e-9)
    assert_allclose(central(np.array([below[1], above[1]]), step), curvature, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", [*FORMULAS, "Barron"])
def test_small_residuals_cost_what_they_cost_without_a_loss(name: str) -> None:
    if name == "Tolerant":
        return
    loss = trace_loss(loss_named(name), "factor f")
    values = defaults(loss, 2.0, **({"alpha": -1.0} if name == "Barron" else {}))
    square = np.array([0.0, 1e-30, 1e-12])
    rho, slope, _ = loss.on_numbers(square, values)
    assert_allclose(rho, square, rtol=1e-11)
    assert_allclose(slope, 1.0, rtol=1e-11)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_barron(alpha: float) -> None:
    loss = trace_loss(caspar.loss.Barron, "factor f")
    rho = loss.on_numbers(4.0 * SQUARES, {"scale": 2.0, "alpha": alpha})[0]
    assert_allclose(rho, 4.0 * barron(SQUARES, alpha), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("alpha", "limit"),
    [
        (2.0, lambda u: u),
        (0.0, lambda u: 2.0 * np.log1p(u / 2.0)),
        (-1e9, lambda u: 2.0 * -np.expm1(-u / 2.0)),
    ],
)
def test_limits_of_barron(alpha: float, limit: Any) -> None:
    loss = trace_loss(caspar.loss.Barron, "factor f")
    for near in (alpha, alpha + 1e-9, alpha - 1e-9):
        found = loss.on_numbers(SQUARES, {"scale": 1.0, "alpha": near})
        assert_allclose(found[0], limit(SQUARES), rtol=1e-5, atol=1e-9)
        assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("name", "levels_off"),
    [
        *(("L2", False), ("Huber", False), ("SoftL1", False), ("Tolerant", False)),
        *(("Cauchy", True), ("Arctan", True), ("Tukey", True), ("Welsch", True)),
        *(("GemanMcClure", True), ("Barron", True)),
    ],
)
def test_which_losses_level_off(name: str, levels_off: bool) -> None:
    assert trace_loss(loss_named(name), "factor f").levels_off is levels_off


class Fair(caspar.loss.Loss):
    """Of one's own; without the epsilon its derivatives would not be finite at 0."""

    def rho(self, s: Any, scale: Any) -> Any:
        ratio = sf.sqrt(s / scale**2 + sf.epsilon())
        return 2 * scale**2 * (ratio - sf.log(1 + ratio))


def test_own_loss() -> None:
    loss = trace_loss(Fair, "factor f")
    square = np.array([0.1, 1.0, 50.0])
    _, slope, _ = loss.on_numbers(square, {"scale": 2.0})
    assert_allclose(slope, 1.0 / (1.0 + np.sqrt(square) / 2.0), rtol=1e-9)
    assert trace_loss(Fair(), "factor f").key == loss.key


def made(rho: Any) -> type[caspar.loss.Loss]:
    return type("Mine", (caspar.loss.Loss,), {"rho": rho})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "expected a class of caspar.loss such as caspar.loss.Huber"),
        ("huber", "expected a class of caspar.loss"),
        (made(lambda self, s: s), "must have the arguments (s, scale)"),
        (made(lambda self, s, width: s), "must have the arguments (s, scale)"),
        (made(lambda self, s, scale: None), "rho returned NoneType; return one expression"),
        (made(lambda self, s, scale: 1 / 0), "rho failed on symbols: division by zero"),
        (made(lambda self, s, scale: s + 1), "rho is 1 at s = 0; it must be 0"),
        (made(lambda self, s, scale: -s), "rho decreases at s = 0; it must not"),
        (made(lambda self, s, scale: sf.log(s)), "rho or its slope is not finite at s = 0"),
        (
            made(lambda self, s, scale: scale * s / (1 + s / scale)),
            "rho does not scale with the residual",
        ),
        (made(lambda self, s, scale: s if s < scale else scale), "write sf.Piecewise"),
    ],
)
def test_what_is_no_loss(loss: Any, message: str) -> None:
    with pytest.raises(FactorError) as caught:
        trace_loss(loss, "factor f")
    assert str(caught.value).startswith("factor f")
    assert message in str(caught.value)


def test_an_abstract_loss() -> None:
    with pytest.raises(FactorError, match="abstract"):
        trace_loss(caspar.loss.Loss, "factor f")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("huber", "Huber"), ("cauchi", "Cauchy"), ("soft_l1", "SoftL1"), (caspar.loss, "Huber")],
)
def test_what_is_no_loss_is_refused_at_once(given: Any, meant: str) -> None:
    def residual(place: Annotated[sf.V2, caspar.TunableUnique]) -> sf.V2:
        return place

    message = rf"factor residual: loss=.* such as caspar\.loss\.{meant} \(L2, Arctan"
    with pytest.raises(FactorError, match=message):
        caspar.factor(residual).with_loss(given)
    with pytest.raises(FactorError, match=message):
        caspar.factor(loss=given)(residual)
