"""Functions of JAX as residuals in symbols: the same numbers, and kinds by shape."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.regression.caspar_fit import CasparFit, Form
from benchmarks.regression.problem import Array, Kind, NumericProblem, Problem

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
translate = pytest.importorskip("benchmarks.regression.translate")

TIMES = np.linspace(0.1, 2.0, 7)


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def decays(x: Any) -> Any:
    return x[0] * jnp.exp(-x[1] * TIMES) + jnp.where(x[2] > TIMES, x[2] ** 2, 1.0) - 1.5


def chain(x: Any) -> Any:
    inner = x[1:-1] ** 3 - 0.5 * x[:-2] - x[2:]
    return jnp.concatenate([jnp.array([x[0] - 1.0, x[-1] ** 2 - 4.0]), inner])


def products(x: Any) -> Any:
    matrix = x[:4].reshape(2, 2)
    x = jnp.asarray(x)
    total = jax.lax.fori_loop(0, 3, lambda i, so_far: so_far + x[i] * x[i + 1], 0.0)
    square = jnp.zeros(5).at[2].set(total).at[3].set(jnp.sin(x[4]) + 1.0)
    return jnp.concatenate([(matrix @ matrix).ravel(), square, jnp.sqrt(x[:2] ** 2 + 1.0)])


def translated(function: Callable[[Any], Any], count: int) -> Problem:
    kinds = translate.kinds_of(translate.trace(function, count), count)
    return Problem("translated", kinds, ((0.7,) * count,), 0.0)


@pytest.mark.parametrize(("function", "count"), [(decays, 3), (chain, 30), (products, 5)])
def test_numbers_and_derivatives_are_those_of_jax(
    function: Callable[[Any], Any], count: int
) -> None:
    problem = translated(function, count)
    numeric = NumericProblem(problem)
    for seed in range(3):
        at: Array = np.random.default_rng(seed).uniform(0.2, 1.8, count)
        rows, wanted = np.array(function(at)), np.array(jax.jacfwd(function)(at))
        np.testing.assert_allclose(numeric.sum_of_squares(at), rows @ rows, rtol=1e-12)
        jacobian, residuals = numeric.jacobian(at), numeric.residuals(at)
        np.testing.assert_allclose(jacobian.T @ residuals, wanted.T @ rows, atol=1e-11)
        np.testing.assert_allclose(jacobian.T @ jacobian, wanted.T @ wanted, atol=1e-11)
        fit = CasparFit(problem, Form.VECTOR, precision="float64").result(at, {})
        assert fit.initial_cost == pytest.approx(0.5 * rows @ rows, rel=1e-12)


def test_residuals_of_a_shape_are_one_kind() -> None:
    (data,) = translated(decays, 3).kinds
    assert data.data.shape[0] == len(TIMES)
    assert data.unknowns is None
    ends_and_inner = translated(chain, 30)
    assert sorted(len(kind.data) for kind in ends_and_inner.kinds) == [1, 1, 28]
    assert ends_and_inner.is_sparse


def test_equal_residuals_all_count() -> None:
    problem = translated(lambda x: jnp.stack([x[0] - 1.0, x[0] - 1.0, x[0]]), 1)
    fit = CasparFit(problem, Form.VECTOR).solve(np.array([0.3]), {})
    np.testing.assert_allclose(fit.parameters, [2.0 / 3.0])
    with pytest.raises(ValueError, match="has one instance"):
        Kind(lambda x, _: [x[0]], np.zeros((2, 0)))


def test_a_sum_of_squares_becomes_its_residuals() -> None:
    def objective(x: Any) -> Any:
        squares = 3.0 * jnp.sum((x - TIMES[:3]) ** 2) + (x[0] * x[1]) ** 4 / 2.0 + 7.0
        return jnp.atleast_1d(squares)

    rows = translate.squares_of(translate.trace(objective, 3)[0])
    numeric = NumericProblem(Problem("", translate.kinds_of(rows, 3), ((0.0,) * 3,), 0.0))
    at = np.array([0.3, -1.2, 2.0])
    expected = 3.0 * np.sum((at - TIMES[:3]) ** 2) + (at[0] * at[1]) ** 4 / 2.0
    assert numeric.sum_of_squares(at) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(translate.UntranslatableError, match="not a sum of squares"):
        translate.squares_of(translate.trace(lambda x: jnp.atleast_1d(x[0] ** 2 - x[1] ** 2), 2)[0])


def test_unknown_primitives_are_named() -> None:
    with pytest.raises(translate.UntranslatableError, match="primitive cumsum"):
        translate.trace(jnp.cumsum, 3)
