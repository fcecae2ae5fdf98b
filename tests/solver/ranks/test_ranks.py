"""One problem in several processes: the same minimum, and what ends all of them."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.bundle_adjustment import snavely
from caspar.distributed import Ranks
from tests.covering import alternating
from tests.problems import EXAMPLES
from tests.solver.bundles import cost_of, part_of, read
from tests.solver.ranks import work
from tests.solver.ranks.processes import Started, values_of
from tests.solver.shards.sharing import assert_same_minimum, scattered

ROOT = Path(__file__).parents[3]

ENDS_S = 10.0
"""Within this time all others end when one fails."""


def _alone(**options: Any) -> caspar.SolveResult:
    solver = caspar.Solver([snavely], backend="cpu", precision="float64", linear_solver="schur_pcg")
    return solver.solve(work.bundle(), **options)


@pytest.mark.parametrize(
    ("size", "how"),
    [
        *[(2, "first"), (3, "points"), (2, "ranges"), (2, "any")],
        *(
            pytest.param(*one, marks=pytest.mark.reliability)
            for one in [(3, "first"), (2, "points")]
        ),
    ],
)
def test_bundle_adjustment_ends_at_the_same_minimum(size: int, how: str) -> None:
    found = values_of(size, work.solve, how, {}, work.SETTINGS)
    wanted = _alone(**work.SETTINGS)
    for result in found:
        assert result.status.is_success
        assert result.initial_cost == pytest.approx(wanted.initial_cost, rel=1e-12)
        assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-9)
        assert result.device.startswith(f"{size} x ")
        assert result.problem == wanted.problem
        for name, rows in found[0].values.items():
            assert_array_equal(result.values[name], rows)
    values = found[-1].values
    cost = cost_of(part_of(read("problem-21-11315"), 120), values["Cam"], values["Point"])
    assert cost == pytest.approx(wanted.final_cost, rel=1e-9)
    remarks = found[0].remarks
    assert (how == "any") == any("touched by factors of several ranks" in one for one in remarks)


def test_points_that_are_divided_in_the_order_of_tiles() -> None:
    found = values_of(3, work.solve_scattered)
    one = caspar.Solver([snavely], backend="cpu", precision="float64", linear_solver="schur_pcg")
    wanted = one.solve(scattered(), **work.SETTINGS)
    for result in found:
        assert result.device.startswith("3 x ")
        assert_same_minimum(result, wanted, 1e-9, 1e-3)


def test_a_rank_may_have_no_factors() -> None:
    for result in values_of(3, work.solve, "few", {}, {}):
        assert result.final_cost == pytest.approx(_alone().final_cost, rel=1e-6)
        assert result.device.startswith("2 x ")


def test_mixed_precision_and_losses() -> None:
    choices = {"precision": "mixed"}
    for result in values_of(2, work.solve, "points", choices, {}):
        assert result.final_cost == pytest.approx(_alone().final_cost, rel=1e-6)


@pytest.mark.parametrize(("name", "how"), alternating(EXAMPLES, ["first", "every"]))
def test_examples(name: str, how: str) -> None:
    solver = caspar.Solver(EXAMPLES[name].factors, backend="cpu", precision="float64")
    wanted = solver.solve(EXAMPLES[name].arrays(), **work.SETTINGS)
    for result in values_of(2, work.example, name, how):
        assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-8, abs=1e-20)


def test_only_the_first_rank_gets_all_values() -> None:
    options = {"results": "first"}
    first, second = values_of(2, work.solve, "points", {}, {}, options=options)
    assert [*first.values] == ["Cam", "Point"]
    assert [*second.values] == ["Cam"]
    assert_array_equal(first.values["Cam"], second.values["Cam"])


def test_residuals_are_those_that_a_rank_has_passed() -> None:
    found = values_of(2, work.residuals, "points")
    points = np.asarray(work.bundle()["snavely"]["point"])
    wanted = _alone().residuals("snavely")
    for rank, rows in enumerate(found):
        assert_allclose(rows, wanted[points % 2 == rank], atol=1e-3)


@pytest.mark.parametrize("how", ["first", "points"])
def test_a_small_problem_is_solved_by_rank_0(how: str) -> None:
    (first, device, table), (second, _, nothing) = values_of(2, work.small, how)
    assert device == first.device == caspar.Solver([snavely], backend="cpu").backend.device
    assert any("Rank 0 solved this problem, not 2 ranks" in one for one in first.remarks)
    assert first.remarks == second.remarks
    assert table is not None
    assert nothing is None
    assert second.final_cost == pytest.approx(_alone().final_cost, rel=1e-6)


def test_what_ranks_do_not_do() -> None:
    for found in values_of(2, work.refused):
        assert [one.partition(":")[0] for one in found] == [*["UnsuitedError"] * 3, "OptionError"]
        assert "needs all factors in one process" in found[0]


def test_the_example(tmp_path: Path) -> None:
    """By the variables of torchrun."""
    command = [sys.executable, "examples/several_processes.py", "--points", "200"]
    started = []
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        variables |= {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": tmp_path.name}
        variables |= {"PYTHONPATH": str(ROOT)}
        started.append(
            subprocess.Popen(
                [*command, "--backend", "cpu"],
                env={**os.environ, **variables},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        printed = [process.communicate(timeout=300.0)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for rank, (process, told) in enumerate(zip(started, printed, strict=True)):
        assert process.returncode == 0
        assert f"rank {rank} of 2: cost" in told
        assert "2 x " in told
        assert ("iterations" in told) == (rank == 0)


# -- stopping --------------------------------------------------------------------------------------


def test_a_callback_of_rank_0_stops_all() -> None:
    (status, number, seen), other = values_of(2, work.stops, "callback")
    assert (status, number, seen) == ("STOPPED", 2, [1, 2])
    assert other == ("STOPPED", 2, [])


def test_a_callback_that_raises_ends_all() -> None:
    first, second = Started(2, work.stops, "raise").ended()
    assert first is not None
    assert second is not None
    assert (first.error, first.text) == ("ValueError", "of the callback")
    assert second.error == "GroupError"
    assert "rank 0 of 2" in second.text
    assert "ValueError: of the callback" in second.text
    assert second.value["Cam"].shape == work.bundle()["Cam"].shape


def test_an_interrupt_on_any_rank_ends_all_with_a_result() -> None:
    for status, _, _ in values_of(2, work.stops, "interrupt"):
        assert status == "INTERRUPTED"


# -- faults ----------------------------------------------------------------------------------------


def _short(ranks: Ranks, arrays: work.Arrays) -> work.Arrays | None:
    if ranks.rank != 1:
        return arrays
    own = arrays["snavely"]
    return {**arrays, "snavely": {**own, "pixel": own["pixel"][:-1]}}


def _other_nodes(ranks: Ranks, arrays: work.Arrays) -> work.Arrays | None:
    return arrays if ranks.rank != 1 else {**arrays, "Point": arrays["Point"] + 1.0}


def _nothing(ranks: Ranks, arrays: work.Arrays) -> work.Arrays | None:
    return arrays if ranks.rank != 0 else None


def _weights_on_one(ranks: Ranks, arrays: work.Arrays) -> work.Arrays | None:
    if ranks.rank != 1:
        return arrays
    own = arrays["snavely"]
    return {**arrays, "snavely": {**own, "weight": np.ones(len(own["cam"]))}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_short, "factor snavely: arguments differ in length"),
        (_other_nodes, "node type Point: rank 1 of 2"),
        (_nothing, "rank 0 does and the others pass None; these passed some: 1"),
        (_weights_on_one, "pass weight and loss_scale on all ranks or on none"),
    ],
)
def test_what_one_rank_passes_wrongly_is_an_error_on_all(wrong: Any, message: str) -> None:
    for rank, (raised, again) in enumerate(values_of(2, work.wrong_input, wrong)):
        assert message in raised, f"rank {rank}"
        is_own = wrong is not _short or rank == 1
        assert raised.startswith("InputError" if is_own else "GroupError: rank 1 of 2")
        assert again == "CONVERGED_COST"


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(("call", "at"), [("try_step", 3), ("accept", 2), ("linearize", 1)])
def test_a_rank_without_memory_ends_all(failing: int, call: str, at: int) -> None:
    found = values_of(2, work.fails, failing, call, at)
    for rank, (kind, text, values, is_well_again) in enumerate(found):
        assert is_well_again
        if rank == failing:
            assert kind == "OutOfMemoryError"
            continue
        assert kind == "GroupError"
        assert f"rank {failing} of 2" in text
        assert "MemoryError" in text
        assert "of this test" in text
        assert values["Cam"].shape == work.bundle()["Cam"].shape
        assert np.isfinite(values["Point"]).all()


def test_killed_ranks_end_all_others_at_any_moment() -> None:
    moments = random.Random(0)
    _alone()  # compiled
    for _ in range(10):
        started = Started(2, work.forever)
        started.joined()
        killed = moments.randrange(2)
        time.sleep(moments.uniform(0.0, 0.6))
        start = time.monotonic()
        started.processes[killed].kill()
        found = started.ended(ENDS_S)
        assert time.monotonic() - start < ENDS_S
        assert found[killed] is None
        other = found[1 - killed]
        assert other is not None
        assert other.error == "GroupError", (other.text, other.notes)
        assert f"rank {killed} of 2" in other.text
        assert "its process has ended" in other.text


def test_all_of_three_end_if_one_is_killed() -> None:
    started = Started(3, work.forever)
    started.joined()
    time.sleep(0.5)
    started.processes[1].kill()
    found = started.ended(ENDS_S)
    for rank in (0, 2):
        other = found[rank]
        assert other is not None
        assert other.error == "GroupError", other
        assert "rank 1 of 3" in other.text


def test_a_rank_that_is_silent_is_given_up() -> None:
    started = Started(2, work.sleeps, options={"silence_s": 1.0})
    first = _first_to_end(started)
    assert first.error == "GroupError"
    assert "nothing was heard of it for 1 s" in first.text


def test_a_rank_that_ends_while_others_solve() -> None:
    first = _first_to_end(Started(2, work.one_ends))
    assert first.error == "GroupError"
    assert "rank 1 of 2" in first.text
    assert "has left the group" in first.text


def test_a_rank_that_does_not_come() -> None:
    first = _first_to_end(Started(2, work.does_not_come, options={"wait_s": 0.5}))
    assert first.error == "GroupError"
    assert "is alive, but has not called the same method within 0.5 s" in first.text


def _first_to_end(started: Started) -> Any:
    """How rank 0 ended; the others may be killed."""
    try:
        pipe = started.pipes[0]
        told = None
        while told is None or told == "joined":
            assert pipe.poll(ENDS_S)
            told = pipe.recv()
        return told
    finally:
        started.kill()


# -- tokens ----------------------------------------------------------------------------------------


def test_another_token_is_refused() -> None:
    variables = [{"CASPAR_TOKEN": "one"}, {"CASPAR_TOKEN": "other"}]
    found = Started(2, work.small, "first", options={"join_s": 2.0}, variables=variables).ended()
    for one in found:
        assert one is not None
        assert one.error == "GroupError"
    assert found[0] is not None
    assert "connections did not know the token" in found[0].text
    assert found[1] is not None
    assert "refused this one: its token is another" in found[1].text
