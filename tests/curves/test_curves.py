"""`caspar.curves`: functions and models of other libraries, fitted to many data sets at once."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import curve_fit

import caspar
from caspar.curves import Curve
from caspar.curves.numpy_symbols import UFUNCS, NumpySymbol, expression_of
from caspar.errors import FactorError, InputError

X = np.linspace(-4.0, 4.0, 50)
START = {"height": 2.0, "center": 0.0, "width": 1.0, "floor": 0.0}


def peak(x: Any, height: Any, center: Any, width: Any, floor: Any = 0.0) -> Any:
    return height * np.exp(-0.5 * ((x - center) / width) ** 2) + floor


def _peaks(num: int) -> Any:
    random = np.random.default_rng(0)
    true = random.uniform([1.0, -1.0, 0.5, 0.0], [5.0, 1.0, 2.0, 1.0], (num, 4))
    clean = peak(X, *(column[:, None] for column in true.T))
    return clean + 0.02 * random.normal(size=clean.shape)


def _rows(fits: Any) -> Any:
    return np.stack(list(fits.values.values()), axis=1)


def test_each_row_as_scipy_fits_it() -> None:
    y = _peaks(6)
    sigma = np.random.default_rng(1).uniform(0.01, 0.05, X.shape)
    curve = Curve.from_function(peak)
    assert curve.names == ("height", "center", "width", "floor")
    for absolute in (False, True):
        fits = curve.fit(X, y, START, sigma=sigma, absolute_sigma=absolute, backend="cpu")
        assert fits.result.is_success.all()
        for row, values in enumerate(y):
            found, covariance = curve_fit(
                peak, X, values, list(START.values()), sigma, absolute_sigma=absolute
            )
            assert_allclose(_rows(fits)[row], found, atol=1e-6)
            assert_allclose(fits.covariance[row], covariance, rtol=1e-3, atol=1e-9)
            assert_allclose(fits.stderr["width"][row], np.sqrt(covariance[2, 2]), rtol=1e-3)
    assert "6" in str(fits)
    assert_allclose(curve(X, **START), peak(X, *START.values()))


def test_data_sets_of_their_own_and_missing_samples() -> None:
    x = X + np.array([[-0.2], [0.1], [0.15]])
    y = peak(x, 2.0, 0.3, 0.8, 0.1)
    y[1, ::3] = np.nan
    fits = Curve.from_function(peak).fit(x, y, {**START, "height": [1.0, 2.0, 3.0]}, backend="cpu")
    assert_allclose(_rows(fits), np.tile([2.0, 0.3, 0.8, 0.1], (3, 1)), atol=1e-7)
    one = Curve.from_function(peak).fit(x[0], y[0], START, backend="cpu")
    assert_allclose(one.values["center"], [0.3], atol=1e-7)


def test_bounds_held_parameters_and_losses() -> None:
    y = _peaks(4)
    curve = Curve.from_function(
        peak, start={**START, "width": 0.8}, bounds={"width": (0.0, 0.9)}, held=frozenset({"floor"})
    )
    fits = curve.fit(X, y, backend="cpu")
    assert (fits.values["floor"] == 0.0).all()
    assert (fits.values["width"] <= 0.9).all()
    assert (fits.stderr["floor"] == 0.0).all()
    y[:, 7] += 5.0
    robust = Curve.from_function(peak, start=START, loss=caspar.loss.Cauchy)
    plain = Curve.from_function(peak, start=START).fit(X, y, backend="cpu")
    good = robust.fit(X, y, loss_scale=0.05, backend="cpu")
    assert (np.abs(good.values["floor"] - plain.values["floor"]) > 1e-3).any()


def test_formulas() -> None:
    curve = Curve.from_expression("S * exp(-t / tau) + c", "t")
    assert curve.names == ("S", "c", "tau")
    t = np.linspace(0.0, 3.0, 30)
    y = 2.0 * np.exp(-t / 0.7) + 0.5
    fits = curve.fit(t, y, {"S": 1.0, "c": 0.0, "tau": 1.0}, backend="cpu")
    assert_allclose(_rows(fits), [[2.0, 0.5, 0.7]], atol=1e-7)
    with pytest.raises(InputError, match="no variable 'x'"):
        Curve.from_expression("a + b")
    with pytest.raises(InputError, match="is no formula"):
        Curve.from_expression("a +* x")


def _pieces(x: Any, a: Any, b: Any) -> Any:
    low = np.where((x < 0.0) & (x > -2.0), a * np.square(x), np.clip(x, 0.2, b))
    return (
        low + np.select([x > 3.0], [np.log1p(a)], np.hypot(a, b)) + max(a, 0.1) + np.zeros_like(x)
    )


def test_what_functions_may_use() -> None:
    """As they are in NumPy."""
    curve = Curve.from_function(_pieces)
    solver = caspar.Solver(curve.factor, backend="cpu", precision="float64")
    found = solver.evaluate(
        {
            "Parameters": [[0.7, 1.3]],
            "curve": {"x": X[:, None], "y": np.zeros((len(X), 1))},
        }
    ).residuals("curve")
    assert_allclose(found[:, 0], _pieces(X, 0.7, 1.3), rtol=1e-12)


def test_each_function_of_numpy() -> None:
    conditions = (np.logical_and, np.logical_or, np.bitwise_and, np.bitwise_or)
    comparisons = (np.less, np.less_equal, np.greater, np.greater_equal)
    for ufunc in UFUNCS.keys() - {*conditions, *comparisons}:
        values = (0.6, 0.3)[: ufunc.nin]
        found = expression_of(ufunc(*map(NumpySymbol, values)))
        assert_allclose(float(found), ufunc(*values), rtol=1e-13, err_msg=ufunc.__name__)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, a: a if x > 0 else 0.0, "np.where in place of if"),
        (lambda x, a: __import__("math").exp(a * x), "without math"),
        (lambda x, a: np.sort(x) * a, "np.sort has no symbolic form"),
        (lambda x, a: np.sum(x) * a, "np.sum has no symbolic form"),
        (lambda x, a: np.array([1.0, 2.0]) * x + a, r"an array of shape \(2,\) meets x"),
        (lambda x, a: np.asarray(x) + a, "without"),
    ],
)
def test_what_they_may_not(function: Any, text: str) -> None:
    with pytest.raises(FactorError, match=text):
        Curve.from_function(function).fit(X, X, {"a": 1.0}, backend="cpu")


def test_bad_input_is_named() -> None:
    curve = Curve.from_function(peak)
    y = np.zeros((2, len(X)))
    for change, text in (
        ({"start": {}}, "parameter 'height' has no start value"),
        ({"start": {**START, "hight": 1.0}}, "no parameter 'hight'"),
        ({"start": {**START, "width": [1.0, 2.0, 3.0]}}, r"start of 'width' has shape \(3,\)"),
        ({"x": X[:5]}, r"x has shape \(5,\) and y \(2, 50\)"),
        ({"sigma": np.ones(3)}, r"sigma has shape \(3,\)"),
        ({"sigma": 0.0}, "must be positive"),
    ):
        given: dict[str, Any] = {"x": X, "y": y, "start": START, "backend": "cpu", **change}
        with pytest.raises(InputError, match=text):
            curve.fit(**given)
    with pytest.raises(InputError, match="bounds: the curve has no parameter 'w'"):
        Curve.from_function(peak, bounds={"w": (0.0, 1.0)})
    with pytest.raises(FactorError, match="no parameters"):
        Curve.from_function(lambda x: x)


def test_models_of_lmfit() -> None:
    lmfit = pytest.importorskip("lmfit")
    model = lmfit.models.GaussianModel(prefix="g_") + lmfit.models.LinearModel()
    parameters = model.make_params(g_amplitude=3, g_center=0, g_sigma=1, slope=0, intercept=0)
    parameters["slope"].vary = False
    y = _peaks(4)
    fits = Curve.from_lmfit(model, parameters).fit(X, y, backend="cpu")
    for row, values in enumerate(y):
        found = model.fit(values, parameters, x=X)
        for name in fits.values:
            assert_allclose(fits.values[name][row], found.params[name].value, atol=1e-5)
            assert_allclose(fits.stderr[name][row], found.params[name].stderr or 0.0, rtol=1e-2)
    for kind in ("Lorentzian", "PseudoVoigt", "Moffat", "DampedOscillator", "Exponential"):
        caspar.Solver(Curve.from_lmfit(getattr(lmfit.models, f"{kind}Model")()).factor)
    formula = lmfit.models.ExpressionModel("a * exp(-x / b)")
    assert Curve.from_lmfit(formula, formula.make_params(a=1, b=2)).names == ("a", "b")
    parameters["g_sigma"].expr = "g_center + 1"
    with pytest.raises(InputError, match="parameter 'g_sigma' is 'g_center"):
        Curve.from_lmfit(model, parameters)


def test_models_of_astropy() -> None:
    modeling = pytest.importorskip("astropy.modeling")
    model = modeling.models.Gaussian1D(2.0, 0.0, 1.0) + modeling.models.Const1D(0.1)
    y = _peaks(4)
    fits = Curve.from_astropy(model).fit(X, y, backend="cpu")
    for row, values in enumerate(y):
        found = modeling.fitting.LevMarLSQFitter()(model, X, values)
        assert_allclose(_rows(fits)[row], found.parameters, atol=1e-5)
    for one in (
        modeling.models.Trapezoid1D(),
        modeling.models.BrokenPowerLaw1D(x_break=2.0),
        modeling.models.Gaussian1D() | modeling.models.Linear1D(),
    ):
        curve = Curve.from_astropy(one)
        solver = caspar.Solver(curve.factor, backend="cpu", precision="float64")
        x = np.linspace(0.5, 4.0, 30)
        data = {"x": x[:, None], "y": np.zeros((30, 1))}
        found = solver.evaluate({"Parameters": [one.parameters], "curve": data})
        assert_allclose(found.residuals("curve")[:, 0], one(x), rtol=1e-10, atol=1e-12)
    model.mean_0.tied = lambda _: 1.0
    with pytest.raises(InputError, match="'mean_0' is tied"):
        Curve.from_astropy(model)
    with pytest.raises(InputError, match="one model of one input"):
        Curve.from_astropy(modeling.models.Gaussian2D())
