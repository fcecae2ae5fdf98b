"""What the model of costs says of a few structures, and what `auto` makes of it."""

from collections.abc import Sequence
from typing import Any

import pytest

import caspar
from benchmarks.linear_choice.cases import calibration, split_snavely
from caspar.bundle_adjustment import snavely
from caspar.solver.limits import Limits
from caspar.solver.linear.explicit.explicit import (
    COUPLED_ITERATIONS,
    USUAL_ITERATIONS,
    expected_iterations,
    factorizing_s,
    forming_s,
    iteration_s,
    reduced_size,
    setup_s,
)
from tests.solver.bundles import arrays_of, read
from tests.solver.solving import Unhurried

FILE = "problem-21-11315"


def split(arrays: dict[str, Any]) -> dict[str, Any]:
    """Each camera in three nodes."""
    cameras, seen = arrays["Cam"], arrays["snavely"]
    return {
        "Pose": cameras[:, :7].copy(),
        "Focal": cameras[:, 7:8].copy(),
        "Distortion": cameras[:, 8:].copy(),
        "Point": arrays["Point"],
        "split_snavely": {
            **{name: seen["cam"] for name in ("pose", "focal", "distortion")},
            "point": seen["point"],
            "pixel": seen["pixel"],
        },
    }


def chosen(factors: Sequence[caspar.Factor], arrays: dict[str, Any], **options: Any) -> str:
    """The linear solver that `auto` takes."""
    made = caspar.Solver(factors, **{"backend": "cpu", **options})
    return made.prepare(arrays).linear_solver


def test_a_plan_in_seconds() -> None:
    arrays = arrays_of(read(FILE))
    num_observations = len(arrays["snavely"]["cam"])
    with caspar.Solver([snavely], backend="cpu").system(arrays) as system:
        plan = system.plan
        assert reduced_size(plan) == 189
        assert expected_iterations(plan) == USUAL_ITERATIONS
        # the Jacobian of an observation has 2 by 9 + 3 scalars; tiles of points have holes
        least = 2e-5 + 0.65e-9 * num_observations * 24
        assert least <= iteration_s(plan) < 1.1 * least
        assert factorizing_s(plan) == pytest.approx(189**3 / 3 / 3e10)
        more = forming_s(plan, 1_000_000) - forming_s(plan, 0)
        assert more == pytest.approx(1_000_000 * (1e-8 + 4e-10 * 81 + 2e-7 / 10))
        assert setup_s(plan, 1_000_000) == pytest.approx(0.2)
    with caspar.Solver([split_snavely], backend="cpu").system(split(arrays)) as system:
        assert expected_iterations(system.plan) == COUPLED_ITERATIONS


def test_cameras_in_three_nodes_are_factorised() -> None:
    """What couples a camera's pose to its lens is not in the blocks that precondition PCG."""
    arrays = arrays_of(read(FILE))
    assert chosen([split_snavely], split(arrays)) == "schur_dense"
    never = Limits(max_matrix_by_cost=1)
    assert chosen([split_snavely], split(arrays), limits=never) == "schur_pcg"
    few_pairs = Limits(max_pairs_quick_pcg=10)
    assert chosen([split_snavely], split(arrays), limits=few_pairs) == "schur_pcg"


def test_a_device_iterates_quickly() -> None:
    """An iteration takes 10 us there, a factorisation of 189 unknowns more than 200."""
    arrays = arrays_of(read(FILE))
    assert chosen([snavely], arrays, backend=Unhurried()) == "schur_pcg"


def test_many_cameras_are_left_to_pcg() -> None:
    assert chosen([snavely], arrays_of(read("problem-49-7776"))) == "schur_pcg"


def test_a_calibration_eliminates_nothing() -> None:
    case = calibration("small", 54)
    solver = caspar.Solver(case.factors, backend="cpu")
    prepared = solver.prepare(case.arrays)
    assert prepared.eliminated == ()
    assert prepared.linear_solver == "sparse"
    result = solver.solve(case.arrays)
    usual = caspar.Solver(case.factors, backend="cpu", linear_solver="schur_pcg")
    assert result.status.is_success
    assert result.final_cost == pytest.approx(usual.solve(case.arrays).final_cost, rel=1e-5)
    # with few corners a picture, or by choice, it is as it was
    few = calibration("few corners", 3)
    assert caspar.Solver(case.factors, backend="cpu").prepare(few.arrays).eliminated == ("View",)
    pinned = caspar.Solver(case.factors, backend="cpu", eliminate=("View",))
    assert pinned.prepare(case.arrays).eliminated == ("View",)
    limited = caspar.Solver(case.factors, backend="cpu", limits=Limits(max_dense_for_sparse=10))
    assert limited.prepare(case.arrays).eliminated == ("View",)
