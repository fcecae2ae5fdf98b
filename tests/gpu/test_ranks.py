"""One problem in two processes, each with a CUDA device of its own."""

import random
import time

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from tests.problems import EXAMPLES
from tests.solver.ranks import work
from tests.solver.ranks.processes import Started, values_of
from tests.solver.shards.sharing import skip_without

pytestmark = pytest.mark.gpu

ON_CUDA = [{work.TEST_BACKEND: "cuda"}] * 2

ENDS_S = 10.0
"""Within this time the other one ends when one fails."""


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    skip_without(2)


@pytest.mark.parametrize("how", ["first", "points", "ranges", "any"])
@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_bundle_adjustment_ends_at_the_same_minimum(how: str, precision: str) -> None:
    choices = {"precision": precision, "deterministic": True}
    found = values_of(2, work.solve, how, choices, {}, variables=ON_CUDA)
    wanted = caspar.Solver([snavely], backend="cpu", precision="float64").solve(work.bundle())
    for result in found:
        assert result.backend == "cuda"
        assert result.device.startswith("2 x ")
        assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
        for name, rows in found[0].values.items():
            np.testing.assert_array_equal(result.values[name], rows)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples(name: str) -> None:
    solver = caspar.Solver(EXAMPLES[name].factors, backend="cpu", precision="float64")
    wanted = solver.solve(EXAMPLES[name].arrays(), **work.SETTINGS)
    for result in values_of(2, work.example, name, "every", variables=ON_CUDA):
        assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(("call", "at"), [("try_step", 3), ("linearize", 1)])
def test_a_rank_without_memory_ends_the_other(failing: int, call: str, at: int) -> None:
    found = values_of(2, work.fails, failing, call, at, variables=ON_CUDA)
    other = found[1 - failing]
    kind, text, values, _ = other
    assert kind == "GroupError"
    assert f"rank {failing} of 2" in text
    assert np.isfinite(values["Cam"]).all()


def test_killed_ranks_end_the_other_at_any_moment() -> None:
    moments = random.Random(0)
    values_of(2, work.solve, "points", {"deterministic": True}, {}, variables=ON_CUDA)
    for _ in range(10):
        started = Started(2, work.forever, variables=ON_CUDA)
        started.joined()
        killed = moments.randrange(2)
        time.sleep(moments.uniform(0.0, 8.0))
        start = time.monotonic()
        started.processes[killed].kill()
        found = started.ended(ENDS_S)
        print(f"rank {killed} killed: the other ended after {time.monotonic() - start:.2f} s")
        other = found[1 - killed]
        assert other is not None
        assert other.error == "GroupError", (other.text, other.notes)
        assert f"rank {killed} of 2" in other.text
