"""The problems that are measured have the sizes and costs that they are said to have."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.prepare import Preparation
from benchmarks.problems import (
    GROWTH_MILLIONS,
    REAL,
    STAND_INS,
    Bundle,
    make,
    names,
    num_observations,
    side_by_side,
)
from benchmarks.synthetic import bal_size, make_like


def test_paper_sets_have_published_sizes() -> None:
    sizes = {name: bal_size(name) for name in STAND_INS}
    assert sizes["final-4585"].num_observations == 9_125_125
    assert sizes["final-13682"].num_observations == 28_987_644
    assert {name for name, size in sizes.items() if size.shape.value == "street"} == {
        "ladybug-1723"
    }
    assert len(names()) == len(REAL) + 6


@pytest.mark.parametrize("name", ["trafalgar-257", "ladybug-460"])
def test_stand_in_has_the_shape_of_real_data(name: str) -> None:
    made, size = make_like(name), bal_size(name)
    lengths = np.bincount(made.point_index)
    seen = np.bincount(made.camera_index, minlength=size.num_cameras)
    assert (len(made.cameras), len(lengths), len(made.pixels)) == (
        size.num_cameras,
        size.num_points,
        size.num_observations,
    )
    assert 0.44 <= float((lengths == 2).mean()) <= 0.52
    low, high = np.quantile(seen, [0.01, 0.99])
    assert 2.0 <= high / low <= 5.0


def test_real_files_have_their_initial_costs() -> None:
    ladybug = make("problem-49-7776")
    assert ladybug.cost(ladybug.cameras, ladybug.points) == pytest.approx(850912.461, abs=1e-3)
    assert ladybug.num_behind() == 31
    trafalgar = make("problem-21-11315")
    assert trafalgar.cost(trafalgar.cameras, trafalgar.points) == pytest.approx(4413239.314)
    assert trafalgar.num_behind() == 0


def test_problems_side_by_side_add_up() -> None:
    one, other = make("growth 0.0005"), make("growth 0.001")
    both = side_by_side("both", [one, other])

    def cost(problem: Bundle) -> float:
        return problem.cost(problem.cameras, problem.points)

    assert both.num_observations == 1_500
    assert cost(both) == pytest.approx(cost(one) + cost(other), rel=1e-12)


def test_growth_sizes_are_those_of_its_names() -> None:
    assert [num_observations(f"growth {one:g}") for one in GROWTH_MILLIONS] == [
        700_000,
        3_000_000,
        10_000_000,
        29_000_000,
        100_000_000,
    ]


def test_prepared_problem_is_the_one_that_is_made(tmp_path: Path) -> None:
    prepared = Preparation(["growth 0.0005", "problem-49-7776"], tmp_path)
    prepared.wait()
    taken, made = prepared.take("growth 0.0005"), make("growth 0.0005")
    np.testing.assert_array_equal(taken.pixels, made.pixels)
    np.testing.assert_array_equal(taken.point_index, made.point_index)
    assert prepared.take("problem-49-7776").optimum == REAL["problem-49-7776"]


def test_failed_preparation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"growth 0\.000001"):
        Preparation(["growth 0.000001"], tmp_path).wait()
