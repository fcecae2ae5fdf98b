"""Live ranges say which instruction writes and reads what; pressure peaks where predicted."""

import pytest

from caspar.inspect.pictures.draw_program import LiveRange, live_ranges, pressure
from caspar.ir.dtype import DType
from caspar.ir.text import parse_program
from caspar.options import Precision
from tests.inspect.cases import scheduled
from tests.ir.random_graphs import random_graph
from tests.support_problems import Way, distinct_specs, most_unlike

PROGRAM = """\
program float32 registers=3 predicates=1
  r0, r1, r2 = read x[0]
  r0 = add r0, r1
  p0 = lt r0, 0.5
  r0 = select p0, r0, r1
  store y[0] r0
"""


def test_ranges_of_a_small_program() -> None:
    assert live_ranges(parse_program(PROGRAM)) == (
        LiveRange("r0", 0, (1,)),
        LiveRange("r1", 0, (1, 3)),
        LiveRange("r2", 0, ()),
        LiveRange("r0", 1, (2, 3)),
        LiveRange("p0", 2, (3,)),
        LiveRange("r0", 3, (4,)),
    )


def test_pressure_counts_what_is_live_and_what_is_never_read() -> None:
    assert pressure(parse_program(PROGRAM)) == (3, 2, 2, 1, 0)


def test_pressure_of_no_instructions() -> None:
    assert pressure(parse_program("program float32 registers=0 predicates=0\n")) == ()


@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_the_predicted_one(seed: int) -> None:
    program = scheduled(random_graph(seed, 60, DType.FLOAT32)).program
    assert max(pressure(program)) == program.num_registers


@pytest.mark.parametrize(("problem", "way"), most_unlike())
def test_the_peak_of_solver_kernels_is_the_predicted_one(problem: str, way: Way) -> None:
    for spec in distinct_specs(Precision.MIXED)[problem, way]:
        program = scheduled(spec.graph).program
        assert max(pressure(program)) == program.num_registers


def test_no_two_ranges_share_a_register() -> None:
    for seed in range(5):
        program = scheduled(random_graph(seed, 60, DType.FLOAT32)).program
        last_end: dict[str, int] = {}
        for entry in live_ranges(program):
            assert entry.made >= last_end.get(entry.register, 0)
            last_end[entry.register] = entry.end
