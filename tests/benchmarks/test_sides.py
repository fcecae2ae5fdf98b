"""What both sides are asked for is what they take, and keeps within its time."""

from benchmarks.caspar_side import VARIANTS, Variant
from benchmarks.problems import make
from benchmarks.reference.solve import LONG, LONG_PCG
from benchmarks.reference_side import within
from caspar.options import SolveOptions


def test_options_of_all_variants_are_options() -> None:
    for variant in VARIANTS:
        SolveOptions.from_mapping(variant.options)
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


def test_variant_is_left_out_where_the_problem_is_too_large() -> None:
    problem = make("growth 0.0005")
    assert len(problem.cameras) == problem.num_reduced == 40
    assert Variant("any").takes(problem)
    assert not Variant("dense", max_reduced=39).takes(problem)
    assert Variant("dense", max_reduced=40).takes(problem)
    assert not Variant("sparse", max_observations=499).takes(problem)


def test_reference_is_cut_to_the_time_there_is() -> None:
    # 20 PCG iterations of 7.7 ms and 46 ms around them: 200 ms
    assert within(LONG, 7.7, 46.0, 20.0).solver_iter_max == 100
    assert within(LONG, 0.09, 0.2, 20.0) == LONG
    # some iterations are always done
    assert within(LONG_PCG, 1000.0, 0.0, 1.0).solver_iter_max == 10
