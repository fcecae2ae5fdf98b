"""A solver keeps the plan of its last solve and takes it where the structure is the same.

Nothing of an earlier solve, or of memory that was never written, is left in a result.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import BackendError, InputError
from caspar.solver import preparation
from caspar.solver.limits import Limits
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan import planning
from caspar.solver.preparation import MAX_KEPT
from caspar.solver.system.launches import Binder
from tests.covering import alternating
from tests.problems import EXAMPLES
from tests.solver.linear.linear_cases import MIX, MIXES, fresh, problem_of, solver_names
from tests.solver.solving import ON_BACKENDS, Arrays, Poisoned, assert_same_result, changed, moved
from tests.support_cudss import require_library


@pytest.fixture
def num_plans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many plans were made so far."""
    made: list[Any] = []
    make_plan = planning.make_plan

    def counted(*args: Any) -> Any:
        plan = make_plan(*args)
        made.append(None)
        return plan

    monkeypatch.setattr(preparation, "make_plan", counted)
    return lambda: len(made)


# -- taken again -----------------------------------------------------------------------------------


@ON_BACKENDS
@pytest.mark.parametrize("mix", MIXES)
def test_new_values_take_the_kept_plan(
    mix: str, backend: str, num_plans: Callable[[], int]
) -> None:
    _, arrays = problem_of(mix)
    made = fresh(mix, backend)
    first = made.solve(arrays)
    second = made.solve(moved(arrays), initial_damping=0.1)
    again = made.solve(arrays)
    assert num_plans() == 1
    assert_same_result(again, first)
    assert_same_result(second, fresh(mix, backend).solve(moved(arrays), initial_damping=0.1))
    assert second.final_cost != first.final_cost


@pytest.mark.parametrize(
    ("linear_solver", "jacobian"),
    alternating(solver_names(MIX), ["stored", "float16", "recompute"]),
)
def test_every_way_to_solve_takes_it(
    linear_solver: str, jacobian: str, num_plans: Callable[[], int]
) -> None:
    _, arrays = problem_of(MIX)
    choices = {"linear_solver": linear_solver, "jacobian": jacobian}
    made = fresh(**choices)
    first = made.solve(arrays)
    second = made.solve(moved(arrays))
    assert num_plans() == 1
    assert_same_result(second, fresh(**choices).solve(moved(arrays)))
    assert_same_result(made.solve(arrays), first)


def test_a_solve_that_failed_leaves_nothing(num_plans: Callable[[], int]) -> None:
    """NaN is in every array of the plan afterwards."""
    _, arrays = problem_of(MIX)
    made = fresh()
    wrong = changed(arrays, "hold.known", np.full_like(arrays["hold"]["known"], np.nan))
    failed = made.solve(wrong, check=False)
    assert failed.status is caspar.SolveStatus.INITIAL_COST_NOT_FINITE
    # finite cost, derivatives that are not
    assert_same_result(made.solve(arrays), fresh().solve(arrays))
    assert num_plans() == 2


def test_other_kinds_of_arrays_are_the_same_structure(num_plans: Callable[[], int]) -> None:
    _, arrays = problem_of(MIX)
    made = fresh()
    wanted = made.solve(arrays)
    narrow = changed(arrays, "glance.mark", arrays["glance"]["mark"].astype(np.int16))
    narrow = changed(narrow, "pin.known", arrays["pin"]["known"].tolist())
    strided = changed(narrow, "View", np.repeat(arrays["View"], 2, axis=0)[::2])
    assert_same_result(made.solve(strided), wanted)
    assert num_plans() == 1


# -- made anew -------------------------------------------------------------------------------------


def rolled(rows: Any) -> Any:
    return np.roll(rows, 1, axis=0)


CHANGES: dict[str, Callable[[Arrays], Arrays]] = {
    "one index": lambda a: changed(a, "glance.mark", np.append(a["glance"]["mark"][:-1], 0)),
    "order of an index": lambda a: changed(a, "glance.view", rolled(a["glance"]["view"])),
    "two arguments swapped": lambda a: changed(
        changed(a, "parallax.left", a["parallax"]["right"]), "parallax.right", a["parallax"]["left"]
    ),
    "one factor less": lambda a: {
        **a,
        "parallax": {name: rows[:-1] for name, rows in a["parallax"].items()},
    },
    "one node more": lambda a: changed(a, "View", np.concatenate([a["View"], [[9.0, 9.0, 9.0]]])),
}


@ON_BACKENDS
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:node type")
def test_another_structure_makes_a_plan(
    change: str, backend: str, num_plans: Callable[[], int]
) -> None:
    _, arrays = problem_of(MIX)
    other = CHANGES[change](arrays)
    made = fresh(backend=backend)
    first = made.solve(arrays)
    second = made.solve(other)
    assert num_plans() == 2
    assert_same_result(second, fresh(backend=backend).solve(other))
    assert second.final_cost != first.final_cost or change == "one node more"
    assert_same_result(made.solve(arrays), first)


@pytest.fixture
def num_renewed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many systems have taken another plan so far."""
    renewed: list[None] = []
    bind_again = Binder.bind_again

    def counted(binder: Binder) -> None:
        bind_again(binder)
        renewed.append(None)

    monkeypatch.setattr(Binder, "bind_again", counted)
    return lambda: len(renewed)


@ON_BACKENDS
@pytest.mark.filterwarnings("ignore:node type")
@pytest.mark.parametrize(
    ("mix", "linear_solver"),
    [
        pytest.param(
            *(mix, name), marks=[] if mix == MIX or place == number % 4 else pytest.mark.reliability
        )
        for number, mix in enumerate(MIXES)
        for place, name in enumerate(solver_names(mix))
    ],
)
def test_launches_are_bound_again(
    mix: str, linear_solver: str, backend: str, num_renewed: Callable[[], int]
) -> None:
    """For more structures than are kept; results are those of a system that was made for each."""
    require_library(linear_solver, backend)
    _, arrays = problem_of(mix)
    jacobian = "stored" if len(mix) % 2 == 0 else "recompute"
    choices = {"linear_solver": linear_solver, "jacobian": jacobian, "backend": backend}
    made, given = fresh(mix, **choices), structures(arrays)
    for one in given:
        made.solve(one, max_iterations=3)
    # the last ones are kept, the first ones have given way
    for one in (given[-1], given[0]):
        result = made.solve(one)
        assert_same_result(result, fresh(mix, **choices).solve(one))
    assert (num_renewed() > 0) == (result.linear_solver in ("dense", "sparse", "schur_dense"))


def structures(arrays: Arrays) -> list[Arrays]:
    """Each has an instance less of one factor than the one before it, or other indices."""
    found = [arrays]
    factors = [
        name
        for name, given in arrays.items()
        if isinstance(given, dict) and any(is_index(rows) for rows in given.values())
    ]
    for number in range(MAX_KEPT + 1):
        name, change = factors[number % len(factors)], shortened if number % 2 == 0 else rolled
        given = found[-1][name]
        changed_rows = {
            one: change(rows) if change is shortened or is_index(rows) else rows
            for one, rows in given.items()
        }
        found.append({**found[-1], name: changed_rows})
    return found


def is_index(rows: Any) -> bool:
    return isinstance(rows, np.ndarray) and rows.dtype.kind == "i"


def shortened(rows: Any) -> Any:
    return rows[:-1] if isinstance(rows, np.ndarray) and len(rows) > 3 else rows


@ON_BACKENDS
@pytest.mark.filterwarnings("ignore:node type")
def test_several_structures_are_kept(backend: str, num_plans: Callable[[], int]) -> None:
    _, arrays = problem_of(MIX)
    given = [arrays, *(CHANGES[name](arrays) for name in ("one index", "one factor less"))]
    made = fresh(backend=backend)
    first = [made.solve(one) for one in given]
    assert "beside it: 2 others" in str(made.memory_table())
    for one, wanted in zip(given, first, strict=True):
        assert_same_result(made.solve(one), wanted)
    assert num_plans() == 3
    made.release()
    assert made.memory_table() is None
    made.solve(given[1])
    assert num_plans() == 4


@pytest.mark.filterwarnings("ignore:node type")
def test_of_large_problems_one_is_kept(
    num_plans: Callable[[], int], num_renewed: Callable[[], int]
) -> None:
    _, arrays = problem_of(MIX)
    made = fresh(limits=Limits(max_items_beside=0))
    other = CHANGES["one index"](arrays)
    for given in (arrays, other, arrays, other, arrays, other):
        made.solve(given)
    assert num_plans() == 6
    assert num_renewed() == 0
    assert "beside it" not in str(made.memory_table())


class TestConstants:
    """`vehicle` has indexed, sequential and unique constants."""

    ARRAYS = EXAMPLES["vehicle"].arrays()

    def made(self) -> caspar.Solver:
        return caspar.Solver(EXAMPLES["vehicle"].factors, backend="cpu", precision="float64")

    @pytest.mark.parametrize(
        ("path", "change", "num"),
        [
            ("ranging.beacon.values", lambda rows: rows + 0.1, 1),
            ("drive.tuning", lambda rows: 2.0 * rows, 1),
            ("compass.heading", lambda rows: rows[::-1], 1),
            ("ranging.beacon.values", lambda rows: np.concatenate([rows, rows]), 2),
            ("ranging.beacon.index", lambda index: (index + 1) % 3, 2),
        ],
    )
    def test_values_are_brought_in_and_rows_are_counted(
        self, path: str, change: Callable[[Any], Any], num: int, num_plans: Callable[[], int]
    ) -> None:
        old: Any = self.ARRAYS
        for name in path.split("."):
            old = old[name]
        other = changed(self.ARRAYS, path, change(old))
        made = self.made()
        made.solve(self.ARRAYS)
        second = made.solve(other)
        assert num_plans() == num
        assert_same_result(second, self.made().solve(other))


class Level(sf.V1): ...


@caspar.factor
def reading(
    level: Annotated[Level, caspar.TunableShared], value: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    return level - value


def test_arrays_that_their_owner_writes_to(num_plans: Callable[[], int]) -> None:
    """Start values, measurements and indices, in the arrays that the last solve was given."""
    arrays: Arrays = {
        "Level": np.zeros((2, 1)),
        "reading": {
            "level": np.array([0, 0, 1], np.int32),
            "value": np.array([[1.0], [2.0], [6.0]]),
        },
    }
    made = caspar.Solver(reading, backend="cpu", precision="float64")
    before = made.solve(arrays)
    assert before.values["Level"][:, 0] == pytest.approx([1.5, 6.0])
    arrays["Level"][:] = 3.0
    arrays["reading"]["value"][:] *= 2.0
    again = made.solve(arrays)
    assert again.values["Level"][:, 0] == pytest.approx([3.0, 12.0])
    assert again.initial_cost == pytest.approx(0.5 * (1.0 + 1.0 + 81.0))
    assert num_plans() == 1
    arrays["reading"]["level"][1] = 1
    turned = made.solve(arrays)
    assert turned.values["Level"][:, 0] == pytest.approx([2.0, 8.0])
    assert num_plans() == 2
    # what came back is the caller's
    assert before.values["Level"][:, 0] == pytest.approx([1.5, 6.0])


@ON_BACKENDS
@pytest.mark.parametrize("mix", ["everything", "views alone"])
def test_all_can_be_compiled_before(
    mix: str, backend: str, num_plans: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, arrays = problem_of(mix)
    made = fresh(mix, backend)
    made.compile(arrays)
    with monkeypatch.context() as patch:
        patch.delattr(type(made.backend), "load")
        first = made.solve(moved(arrays))
    assert num_plans() == 1
    assert first.compile_time_s > 0.0
    assert made.solve(arrays).compile_time_s == 0.0
    assert_same_result(first, fresh(mix, backend).solve(moved(arrays)))
    with pytest.raises(InputError, match="View"):
        made.compile({**arrays, "View": np.zeros((3, 7))})


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", solver_names(MIX))
def test_what_is_prepared_is_what_a_solve_has(
    linear_solver: str, backend: str, num_plans: Callable[[], int]
) -> None:
    require_library(linear_solver, backend)
    _, arrays = problem_of(MIX)
    made = fresh(MIX, backend, linear_solver=linear_solver, jacobian="float16")
    prepared = made.prepare(arrays)
    result = made.solve(moved(arrays))
    assert num_plans() == 1
    for name in ("problem", "backend", "device", "precision", "linear_solver"):
        assert getattr(prepared, name) == getattr(result, name), name
    assert prepared.num_bytes <= result.peak_memory_bytes
    assert prepared.memory_table == made.memory_table()
    assert prepared.eliminated == (() if linear_solver in ("pcg", "dense") else ("Mark",))
    assert set(prepared.jacobians.values()) == {"float16"}
    assert all(count >= result.problem.factors[name] for name, count in prepared.num_slots.items())
    assert "Mark.nodes" in prepared.regions
    assert "parallax__score" in prepared.kernels
    assert f"linear solver  {linear_solver}," in str(prepared)
    assert made.prepare(arrays).kernels == prepared.kernels


def test_what_was_prepared_holds_no_memory() -> None:
    _, arrays = problem_of(MIX)
    made = fresh()
    with made.system(arrays) as system:
        plan = weakref.ref(system.plan)
    del system
    prepared = made.prepare(arrays)
    assert plan() is not None
    made.release()
    gc.collect()
    assert plan() is None
    assert "together" in prepared.memory_table


# -- owners ----------------------------------------------------------------------------------------


def test_release_lets_go_of_the_memory(num_plans: Callable[[], int]) -> None:
    _, arrays = problem_of(MIX)
    made = fresh()
    with made.system(arrays) as system:
        plan = weakref.ref(system.plan)
    first = made.solve(arrays)
    assert plan() is not None
    del system
    made.release()
    gc.collect()
    assert plan() is None
    assert_same_result(made.solve(arrays), first)
    assert num_plans() == 2
    made.release()
    made.release()


@ON_BACKENDS
@pytest.mark.parametrize("number", [1, 2, 3])
def test_after_a_callback_that_raised(
    backend: str, number: int, num_plans: Callable[[], int]
) -> None:
    """The plan is still there: a notebook that keeps the error would hold two of them."""
    _, arrays = problem_of(MIX)
    made = fresh(backend=backend)

    def fail(record: caspar.IterationRecord) -> None:
        if record.iteration == number:
            raise RuntimeError(f"at iteration {number}")

    with pytest.raises(RuntimeError, match=f"at iteration {number}"):
        made.solve(arrays, on_iteration=fail)
    result = made.solve(moved(arrays))
    assert num_plans() == 1
    assert_same_result(result, fresh(backend=backend).solve(moved(arrays)))


@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
@pytest.mark.parametrize("name", ["linearize", "try_step", "accept", "values"])
def test_after_an_error_in_the_work(
    name: str, jacobian: str, monkeypatch: pytest.MonkeyPatch, num_plans: Callable[[], int]
) -> None:
    """Whatever has been done by then, and is half done."""
    _, arrays = problem_of(MIX)
    made, work = fresh(jacobian=jacobian), getattr(NormalEquations, name)
    expected = fresh(jacobian=jacobian).solve(arrays)
    num_made = num_plans()

    def failing(system: NormalEquations, *args: Any) -> Any:
        work(system, *args)
        raise ZeroDivisionError("in the work")

    with monkeypatch.context() as patch:
        patch.setattr(NormalEquations, name, failing)
        with pytest.raises(ZeroDivisionError, match="in the work"):
            made.solve(moved(arrays))
    assert_same_result(made.solve(arrays), expected)
    assert num_plans() == num_made + 1


def test_no_plan_is_kept_where_the_device_fails(
    monkeypatch: pytest.MonkeyPatch, num_plans: Callable[[], int]
) -> None:
    _, arrays = problem_of(MIX)
    made = fresh()

    def failing(*_: object) -> None:
        raise BackendError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(NormalEquations, "accept", failing)
        with pytest.raises(BackendError, match="is gone"):
            made.solve(arrays)
    assert_same_result(made.solve(arrays), fresh().solve(arrays))
    assert num_plans() == 3


# -- memory that was never written -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mix", "linear_solver", "jacobian"),
    alternating(
        [(mix, name) for mix in MIXES for name in solver_names(mix)],
        ["stored", "float16", "recompute"],
    ),
)
def test_what_the_arena_held_does_not_matter(mix: str, linear_solver: str, jacobian: str) -> None:
    """NaN of every type, or zeros: the same bits."""
    _, arrays = problem_of(mix)
    results = []
    for byte in (0x00, 0xFF, 0x7F):
        made = fresh(mix, Poisoned(byte), linear_solver=linear_solver, jacobian=jacobian)
        results.append(made.solve(arrays))
        assert results[-1].status.is_success
    assert_same_result(results[1], results[0])
    assert_same_result(results[2], results[0])
