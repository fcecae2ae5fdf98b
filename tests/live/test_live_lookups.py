"""Live problems whose factors look values up, against solves of the same arrays."""

import copy
import pickle
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.errors import InputError

COUNT = 12
TRUE = np.array([[12.3, 9.7], [14.1, 8.2], [10.6, 11.3]])


class Shift(sf.V2):
    """Where a picture lies in another one."""


class Smooth(caspar.Grid, dims=2, method="cubic"):
    """Pictures without kinks."""


class Bias(caspar.Grid, dims=1, channels=2):
    """A measured curve of two numbers."""


@caspar.factor
def aligned(
    shift: Annotated[Shift, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.Scalar, caspar.ConstSequential],
    picture: Annotated[Smooth, caspar.ConstIndexed],
    bias: Annotated[Bias, caspar.ConstUnique],
) -> sf.V1:
    """A pixel of a picture shows what another picture shows there, but for a bias."""
    x, y = shift + pixel
    gain, offset = bias.at(pixel[0] + 6)
    return sf.V1(gain * picture.at(x, y) + offset - intensity)


BIAS = np.stack([1 + 0.01 * np.arange(13), 0.02 * np.arange(13)], axis=1)


def picture(number: int) -> NDArray[Any]:
    y, x = np.mgrid[:22, :28]
    shown: NDArray[Any] = np.sin(x / (5 + number)) + np.cos(y / 4 + number)
    return shown


def seen(shift: NDArray[Any], node: Any, pictures: Any, seed: int) -> dict[str, Any]:
    """Instances of a node in some pictures."""
    rng = np.random.default_rng(seed)
    own = {
        "shift": np.zeros(COUNT, int),
        "pixel": rng.uniform(-6, 6, (COUNT, 2)),
        "intensity": np.zeros(COUNT),
        "picture": {"values": pictures, "index": rng.integers(0, len(pictures), COUNT)},
        "bias": BIAS,
    }
    evaluation = caspar.Solver(aligned, backend="cpu", precision="float64").evaluate(
        {"Shift": shift[None], "aligned": own}
    )
    noise = rng.normal(0, 0.01, COUNT)
    intensity = np.asarray(evaluation.residuals("aligned"))[:, 0] + noise
    return {**own, "shift": np.full(COUNT, node), "intensity": intensity}


def solved(problem: caspar.Problem) -> NDArray[Any]:
    """The same by a solver, from the arrays of the problem."""
    solver = caspar.Solver(aligned, backend="cpu", precision="float64")
    values: NDArray[Any] = solver.solve(problem.arrays(), verbose=False).values["Shift"]
    return values


def filled() -> tuple[caspar.Problem, Any, list[Any]]:
    """Three nodes, of which each is seen in two of three pictures."""
    problem = caspar.Problem(aligned, backend="cpu")
    ids = problem.add_nodes("Shift", TRUE + 0.4)
    handles = []
    for number, (node, shift) in enumerate(zip(ids, TRUE, strict=True)):
        pictures = np.stack([picture(number), picture((number + 1) % 3)])
        handles.append(problem.add_factors("aligned", seen(shift, node, pictures, number)))
        problem.update()
    return problem, ids, handles


def test_updates_follow_the_tables_that_come() -> None:
    problem, _, _ = filled()
    arrays = problem.arrays()["aligned"]
    # each picture came twice and is kept once
    assert arrays["picture"]["values"].shape == (3, 22, 28)
    assert_array_equal(arrays["bias"], BIAS)
    wanted = solved(problem)
    problem.update(max_iterations=20)
    assert_allclose(problem.values["Shift"], wanted, atol=1e-4)
    assert_allclose(problem.values["Shift"], TRUE, atol=0.05)
    copied = pickle.loads(pickle.dumps(problem))
    problem.solve()
    assert_allclose(problem.values["Shift"], wanted, atol=1e-8)
    copied.update(max_iterations=20)
    assert_allclose(copied.values["Shift"], wanted, atol=1e-4)


def test_tables_go_with_the_last_instance_that_names_them() -> None:
    problem, ids, handles = filled()
    first = problem.arrays()["aligned"]["picture"]
    in_first = first["index"][: 2 * COUNT] == 0
    both = np.concatenate(handles[:2])
    last = problem.arrays()["aligned"]["picture"]["index"][2 * COUNT :] == 0
    problem.remove_factors("aligned", np.concatenate([both[in_first], handles[2][last]]))
    kept = problem.arrays()["aligned"]["picture"]
    assert kept["values"].shape == (2, 22, 28)
    remaining = first["index"] != 0
    assert_array_equal(kept["values"][kept["index"]], first["values"][first["index"][remaining]])
    problem.update(max_iterations=20)
    assert_allclose(problem.values["Shift"], solved(problem), atol=1e-4)
    problem.remove_factors("aligned", problem.handles("aligned"))
    assert problem.arrays()["aligned"]["picture"]["values"].shape[0] <= 1
    problem.add_factors("aligned", seen(TRUE[0], ids[0], picture(5)[None, :20, :20], 7))
    problem.update(max_iterations=20)
    assert_allclose(problem.values["Shift"][0], TRUE[0], atol=0.05)


def test_other_tables_are_set() -> None:
    problem, _, handles = filled()
    problem.update(max_iterations=20)
    new = seen(TRUE[1], 0, picture(7)[None], 9)
    changed = {name: new[name] for name in ("pixel", "intensity", "picture")}
    problem.set_arguments("aligned", handles[1], changed)
    every = problem.handles("aligned")
    finer = np.stack([np.interp(np.arange(13), np.arange(13), one) for one in BIAS.T], 1)[:12]
    problem.set_arguments("aligned", every, {"bias": finer})
    wanted = solved(problem)
    assert problem.arrays()["aligned"]["bias"].shape == (12, 2)
    problem.update(max_iterations=20)
    assert_allclose(problem.values["Shift"], wanted, atol=1e-4)


def test_errors_leave_the_problem_as_it_was() -> None:
    problem, ids, handles = filled()
    before = copy.deepcopy(problem.arrays())
    own = seen(TRUE[0], ids[0], picture(0)[None], 3)
    other_size = {**own, "picture": {**own["picture"], "values": np.zeros((1, 5, 6))}}
    with pytest.raises(InputError, match=r"tables of \(5, 6\) samples; .* have \(22, 28\)"):
        problem.add_factors("aligned", other_size)
    with pytest.raises(InputError, match=r"argument bias: .*have another table; .*ConstIndexed"):
        problem.add_factors("aligned", {**own, "bias": BIAS + 1})
    with pytest.raises(InputError, match=r"argument picture: tables of \(5, 6\)"):
        problem.set_arguments(
            "aligned", handles[0], {"picture": other_size["picture"], "weight": np.ones(COUNT)}
        )
    after = problem.arrays()
    assert_array_equal(after["aligned"]["picture"]["index"], before["aligned"]["picture"]["index"])
    assert_array_equal(after["aligned"]["bias"], before["aligned"]["bias"])
    problem.update()


def test_a_problem_without_instances_has_arrays() -> None:
    problem = caspar.Problem(aligned, backend="cpu")
    problem.add_nodes("Shift", TRUE)
    with pytest.raises(InputError, match="no factor has instances"):
        problem.solve()


class Known(caspar.Grid, dims=2, border="refuse"):
    """Pictures of which nothing outside is known."""


@caspar.factor
def seen_inside(
    shift: Annotated[Shift, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    picture: Annotated[Known, caspar.ConstUnique],
) -> sf.V1:
    """What is seen is zero."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y))


def test_instances_that_are_left_out_are_told() -> None:
    near = caspar.factors.prior(Shift, noise="unit", name="near")
    problem = caspar.Problem([seen_inside, near])
    (node,) = problem.add_nodes("Shift", [[1.0, 1.0]])
    assert problem.refused("seen_inside").shape == (0,)
    pixel = np.array([[0.0, 0.0], [30.0, 0.0], [5.0, 4.0], [0.0, -4.0]])
    own = {"shift": np.full(4, node), "pixel": pixel, "picture": 1e-3 * picture(0)}
    handles = problem.add_factors("seen_inside", own)
    problem.add_factors("near", {"value": [node], "expected": [[1.0, 1.0]]})
    assert_array_equal(problem.refused("seen_inside"), [False, True, False, True])
    assert not problem.refused("near").any()
    problem.update()
    result = problem.solve()
    assert any("2 of 4 instances look up outside" in remark for remark in result.remarks)
    problem.remove_factors("seen_inside", handles[:2])
    assert_array_equal(problem.refused("seen_inside"), [False, True])
