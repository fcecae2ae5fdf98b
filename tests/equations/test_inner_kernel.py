"""Steps of eliminated nodes alone, against the same written as a loop in NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.equations.factor_builder import SharedSums
from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.schur_kernels import DAMPING_GROWTH, SMALLEST_RAISED
from caspar.equations.solver_form import solver_form
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import NodeType, trace
from caspar.frontend.precision import TYPES
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision
from tests.covering import usual
from tests.solver.reference import levelled

Array = NDArray[np.float64]


class Base(sf.V3): ...


class Spot(sf.V2): ...


class Turn(sf.Rot2): ...


Shared, Sequential = caspar.TunableShared, caspar.ConstSequential


@caspar.factor
def bent(
    base: Annotated[Base, Shared],
    spot: Annotated[Spot, Shared],
    given: Annotated[sf.V3, Sequential],
) -> sf.V1:
    return sf.V1(
        given[0] * sf.sqrt(1 + spot[0] ** 2) + given[1] * spot[1] ** 2 + base[0] - given[2]
    )


@caspar.factor
def turned(
    base: Annotated[Base, Shared],
    turn: Annotated[Turn, Shared],
    given: Annotated[sf.V4, Sequential],
) -> sf.V2:
    start, end = sf.V2(given[0], given[1]), sf.V2(given[2], given[3])
    return turn * start + sf.V2(base[0], base[1]) - end


def bent_rows(base: Array, spot: Array, given: Array) -> tuple[Array, Array]:
    """Residual (n, rows) and Jacobian (n, rows, dim) by the spot."""
    length = np.sqrt(1.0 + spot[:, 0] ** 2)
    residual = given[:, 0] * length + given[:, 1] * spot[:, 1] ** 2 + base[:, 0] - given[:, 2]
    slopes = np.stack([given[:, 0] * spot[:, 0] / length, 2.0 * given[:, 1] * spot[:, 1]], axis=1)
    return residual[:, None], slopes[:, None, :]


def turned_rows(base: Array, turn: Array, given: Array) -> tuple[Array, Array]:
    cos, sin = turn.T
    x, y = given[:, :2].T
    moved = np.stack([cos * x - sin * y, sin * x + cos * y], axis=1)
    slopes = np.stack([-moved[:, 1], moved[:, 0]], axis=1)
    return moved + base[:, :2] - given[:, 2:], slopes[:, :, None]


def moved_spot(spot: Array, step: Array) -> Array:
    return spot + step


def moved_turn(turn: Array, step: Array) -> Array:
    angle = np.arctan2(turn[1], turn[0]) + step[0]
    return np.array([np.cos(angle), np.sin(angle)])


@dataclass(frozen=True)
class Case:
    """A factor, and the same in NumPy."""

    factor: caspar.Factor
    rows: Callable[[Array, Array, Array], tuple[Array, Array]]
    moved: Callable[[Array, Array], Array]
    start: Callable[[np.random.Generator, int], Array]
    num_given: int

    @property
    def node(self) -> NodeType:
        """The type that moves by itself."""
        node = trace(self.factor).nodes[1].node
        assert node is not None
        return node


def far_spots(rng: np.random.Generator, count: int) -> Array:
    """Where slopes nearly vanish: some full steps raise the cost."""
    return 0.3 * rng.normal(size=(count, 2))


def turns(rng: np.random.Generator, count: int) -> Array:
    angle = rng.uniform(-np.pi, np.pi, count)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


CASES = {
    "bent": Case(bent, bent_rows, moved_spot, far_spots, 3),
    "turned": Case(turned, turned_rows, moved_turn, turns, 4),
}
NUM_NODES = 40


def kernel_of(factor: caspar.Factor, num_steps: int) -> KernelSpec:
    traced = trace(factor)
    nodes = [argument.node for argument in traced.nodes if argument.node is not None]
    form = solver_form(
        [traced], nodes[1:], SharedSums.ORDERED, JacobianStorage.RECOMPUTED, num_steps
    )
    made = factor_kernels(traced, TYPES[Precision.FLOAT64], form.factors[traced.name])
    return made.kernels["inner"]


def looped(
    case: Case, node: Array, base: Array, given: Array, damping: float, num_steps: int
) -> tuple[Array, list[bool]]:
    """A node's steps, and which counted."""

    def state(at: Array) -> tuple[float, Array, Array]:
        rows, jacobian = case.rows(base, np.broadcast_to(at, (len(base), len(at))), given)
        flat = jacobian.reshape(-1, jacobian.shape[-1])
        return 0.5 * float((rows**2).sum()), flat.T @ rows.reshape(-1), flat.T @ flat

    cost, slope, block = state(node)
    taken = []
    for _ in range(num_steps):
        diagonal = levelled(case.node, np.diag(block)[None], damping)
        damped = block + damping * np.diag(diagonal[0])
        trial = case.moved(node, np.asarray(-np.linalg.solve(damped, slope), np.float64))
        after = state(trial)
        taken.append(after[0] < cost)
        if taken[-1]:
            node, (cost, slope, block) = trial, after
        else:
            damping = max(damping * DAMPING_GROWTH, SMALLEST_RAISED)
    return node, taken


def problem(case: Case, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(NUM_NODES), rng.integers(0, NUM_NODES, 3 * NUM_NODES)])
    owner = np.concatenate([owner, np.arange(NUM_NODES)])
    count = len(owner)
    given = rng.normal(size=(count, case.num_given))
    given[:, 0] = np.abs(given[:, 0]) + 0.1
    return {
        "owner": owner,
        "node": case.start(rng, NUM_NODES),
        "base": 0.1 * rng.normal(size=(count, 3)),
        "given": given,
    }


@pytest.mark.parametrize(
    ("name", "num_steps", "damping"),
    usual(
        [("bent", 1, 10.0), ("bent", 3, 1e-3), ("turned", 1, 1e-3), ("turned", 3, 1e-8)],
        CASES,
        [1, 3, 6],
        [1e-8, 1e-3, 10.0],
    ),
)
def test_steps_are_those_of_a_loop(name: str, num_steps: int, damping: float) -> None:
    case = CASES[name]
    drawn = problem(case, num_steps)
    found = evaluated(case, drawn, damping, num_steps)
    kinds: list[bool] = []
    for number in range(NUM_NODES):
        own = drawn["owner"] == number
        wanted, taken = looped(
            case, drawn["node"][number], drawn["base"][own], drawn["given"][own], damping, num_steps
        )
        kinds += taken
        # all items of a node agree
        assert_array_equal(found[own], np.broadcast_to(found[own][0], found[own].shape))
        assert_allclose(found[own][0], wanted, rtol=1e-6, atol=1e-8)
    assert any(kinds) or num_steps == 1
    if name == "bent" and damping < 1.0:
        assert not all(kinds)


def evaluated(case: Case, drawn: dict[str, Any], damping: float, num_steps: int) -> Array:
    spec = kernel_of(case.factor, num_steps)
    _, node, _ = (argument.name for argument in trace(case.factor).arguments)
    inputs = {
        "base__value": drawn["base"],
        f"{node}__value": drawn["node"][drawn["owner"]],
        "given__value": drawn["given"],
        "damping": np.array([[damping]]),
        "levelling": np.ones((1, 1)),
    }
    objects = {f"{node}__sum{number + 1}": drawn["owner"] for number in range(num_steps + 1)}
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, inputs, lengths, objects)[f"{node}__value"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_node_whose_cost_is_no_number_stays(bad: float) -> None:
    case = CASES["bent"]
    drawn = problem(case, 0)
    drawn["given"][5, 2] = bad
    found = evaluated(case, drawn, 1e-3, 3)
    own = drawn["owner"] == drawn["owner"][5]
    assert_array_equal(found[own], drawn["node"][drawn["owner"][own]])
    assert np.isfinite(found).all()


def test_a_node_at_its_minimum_stays() -> None:
    case = CASES["bent"]
    drawn = problem(case, 1)
    rows, _ = case.rows(drawn["base"], drawn["node"][drawn["owner"]], drawn["given"])
    drawn["given"][:, 2] += rows[:, 0]
    found = evaluated(case, drawn, 1e-3, 3)
    assert_allclose(found, drawn["node"][drawn["owner"]], atol=1e-12)
