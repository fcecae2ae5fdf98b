"""Pickles and copies of factors, solvers, kernels, arrays, results and errors.

Factors and kernels are pickled as functions are, by module and name.
"""

import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import (
    CasparError,
    InputError,
    MissingPackageError,
    RankDeficiencyError,
    UnsuitedError,
)
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.select import select_backend
from caspar.solver.limits import Limits
from examples import pose_graph, robust_losses


class Number(sf.V1):
    """What is looked for."""


class Place(sf.V5):
    """With many numbers."""


EXPECTED = [[0.6, 0.8, 1.0, 2.0]]


@pytest.fixture(scope="module")
def other_process() -> Iterator[Pool]:
    """A new process: a fork would have what this one has loaded."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


def moved_by(prior: caspar.Factor) -> list[list[float]]:
    """One pose, which goes where it is expected."""
    arrays = {
        "Pose2": np.array([[1.0, 0.0, 0.0, 0.0]]),
        prior.name: {"pose": [0], "expected": np.array(EXPECTED)},
    }
    result = caspar.Solver(prior, backend="cpu").solve(arrays)
    found: list[list[float]] = result.values["Pose2"].tolist()
    return found


def test_the_same_object_comes_back() -> None:
    for factor in pose_graph.FACTORS:
        assert pickle.loads(pickle.dumps(factor)) is factor
        assert copy.deepcopy(factor) is factor


def test_another_process_finds_it(other_process: Pool) -> None:
    found = other_process.apply(moved_by, (pose_graph.prior,))
    np.testing.assert_allclose(found, EXPECTED, atol=1e-9)


def test_one_that_has_no_place_in_a_module_is_refused() -> None:
    @caspar.factor
    def here(number: Annotated[Number, caspar.TunableShared]) -> sf.V1:
        return sf.V1(number[0])

    assert copy.copy(here) is here
    assert copy.deepcopy([here]) == [here]
    with pytest.raises(pickle.PicklingError, match=r"factor here .*module that both processes"):
        pickle.dumps(here)
    with pytest.raises(pickle.PicklingError, match="factor here"):
        pickle.dumps(caspar.Solver(here, backend="cpu"))


def test_one_whose_name_another_has_taken_is_refused() -> None:
    loss_of = robust_losses.point_with(robust_losses.huber)
    with pytest.raises(pickle.PicklingError, match="point"):
        pickle.dumps(loss_of)


def plain(number: Annotated[Number, caspar.TunableShared]) -> sf.V1:
    """Has its name, which the factor and the kernel of it have not."""
    return number


@pytest.mark.parametrize("kind", ["factor", "kernel"])
def test_one_whose_name_the_plain_function_has_says_so(kind: str) -> None:
    made = getattr(caspar, kind)(plain)
    place = f"{__name__}:plain"
    advice = f"Write @caspar.{kind} above its def, or plain = caspar.{kind}(plain) below it"
    with pytest.raises(pickle.PicklingError) as caught:
        pickle.dumps(made)
    assert f"{place} is the plain function. {advice}" in str(caught.value)


def test_one_whose_name_another_factor_has_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made, other = caspar.factor(plain), caspar.factor(plain)
    monkeypatch.setattr(sys.modules[__name__], "plain", other)
    assert pickle.loads(pickle.dumps(other)) is other
    with pytest.raises(
        pickle.PicklingError, match=r"plain is another object. Define it at the top"
    ):
        pickle.dumps(made)


def test_one_of_a_prompt_is_refused() -> None:
    program = """
from typing import Annotated
import pickle
import caspar
import symforce.symbolic as sf
@caspar.factor
def here(number: Annotated[sf.V1, caspar.TunableShared]) -> sf.V1:
    return number
try:
    pickle.dumps(caspar.Solver(here, backend="cpu"))
except pickle.PicklingError as error:
    assert "__main__:here is not found in another process" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)


# -- solvers ---------------------------------------------------------------------------------------

ARRAYS = {
    "Pose2": np.array([[1.0, 0.0, 0.0, 0.0]]),
    "prior": {"pose": [0], "expected": np.array(EXPECTED)},
}


def solved(solver: caspar.Solver) -> tuple[str, caspar.SolveResult]:
    """Its words, and what it finds."""
    return repr(solver), solver.solve(ARRAYS)


def new_solver() -> caspar.Solver:
    return caspar.Solver(pose_graph.prior, backend="cpu", precision="float32", linear_solver="pcg")


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        lambda solver: pickle.loads(pickle.dumps(solver)),
        lambda solver: pickle.loads(pickle.dumps(solver, protocol=0)),
    ],
    ids=["copy", "deepcopy", "pickle", "oldest pickle"],
)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_solver_again(again: Callable[[caspar.Solver], caspar.Solver], used: bool) -> None:
    solver = new_solver()
    if used:
        solver.solve(ARRAYS)
    made = again(solver)
    assert made is not solver
    assert made.memory_table() is None
    assert repr(made) == repr(solver)
    first, second = solver.solve(ARRAYS), made.solve(ARRAYS)
    assert second.linear_solver == "pcg"
    assert second.final_cost == first.final_cost
    np.testing.assert_array_equal(second.values["Pose2"], first.values["Pose2"])


def test_auto_is_chosen_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = pickle.dumps(caspar.Solver(pose_graph.prior))
    explicit = pickle.dumps(caspar.Solver(pose_graph.prior, backend="cpu"))
    wanted = []

    def select(chosen: caspar.BackendChoice) -> Any:
        wanted.append(chosen.value)
        return select_backend(caspar.BackendChoice.CPU)

    monkeypatch.setattr("caspar.runtime.select.select_backend", select)
    pickle.loads(automatic)
    pickle.loads(explicit)
    assert wanted == ["auto", "cpu"]


def test_a_backend_object_stays_in_its_process() -> None:
    """Copies use it too; a pickle would need another one."""
    limits = Limits(max_dense=3)
    solver = caspar.Solver(pose_graph.prior, backend=CpuBackend(), limits=limits)
    assert copy.copy(solver).backend is copy.deepcopy(solver).backend is solver.backend
    with pytest.raises(pickle.PicklingError, match=r"belongs to its process.*backend='auto'"):
        pickle.dumps(solver)


class OwnSolver(caspar.Solver):
    """With a name."""


def test_a_subclass_stays_one() -> None:
    solver = OwnSolver(pose_graph.prior, backend="cpu")
    assert type(pickle.loads(pickle.dumps(solver))) is OwnSolver
    assert type(copy.copy(solver)) is OwnSolver


@pytest.mark.parametrize("kind", [caspar.Solver, caspar.BatchSolver])
def test_copies_solve_what_the_solver_solves(kind: type[caspar.Solver]) -> None:
    """Also if a variable has changed that the residual reads."""
    wanted = 3.0

    def reach(place: Annotated[Number, caspar.TunableUnique]) -> sf.V1:
        return sf.V1(2 * (place[0] - wanted))

    arrays = {"Number": np.zeros((1, 1))}
    solver = kind(caspar.factor(reach), backend="cpu")
    wanted = 5.0
    again = copy.copy(copy.deepcopy(solver))
    for one in (solver, again):
        np.testing.assert_allclose(one.solve(arrays).values["Number"], [[3.0]])
    fresh = kind(caspar.factor(reach), backend="cpu")
    np.testing.assert_allclose(fresh.solve(arrays).values["Number"], [[5.0]])


def test_large_problems_of_a_batch_are_those_of_its_solver() -> None:
    wanted = 3.0

    def reach(place: Annotated[Place, caspar.TunableShared]) -> sf.V1:
        return sf.V1(place[0] - wanted)

    solver = caspar.BatchSolver(caspar.factor(reach), backend="cpu")
    wanted = 5.0
    arrays = {"Place": np.zeros((2, 30, 5)), "reach": {"place": np.tile(np.arange(30), (2, 1))}}
    np.testing.assert_allclose(solver.solve(arrays).values["Place"][:, :, 0], 3.0)


def test_a_copy_of_a_solver_is_pickled_as_the_solver() -> None:
    again = pickle.loads(pickle.dumps(copy.copy(new_solver())))
    assert repr(again) == repr(new_solver())


def test_a_solver_in_another_process(other_process: Pool) -> None:
    solver = new_solver()
    words, result = other_process.apply(solved, (solver,))
    assert words == repr(solver)
    assert isinstance(result, caspar.SolveResult)
    np.testing.assert_array_equal(result.values["Pose2"], solver.solve(ARRAYS).values["Pose2"])


def test_results_and_options_come_back() -> None:
    result = new_solver().solve(ARRAYS)
    back = pickle.loads(pickle.dumps(result))
    assert str(back) == str(result)
    assert back.status is result.status
    assert back.iterations == result.iterations
    assert back.problem == result.problem
    assert copy.deepcopy(result).iterations == result.iterations
    options = caspar.SolveOptions(max_iterations=3)
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_covariance_comes_back() -> None:
    solver = new_solver()
    found = solver.covariance(ARRAYS, {"Pose2": "all"})
    for back in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        np.testing.assert_array_equal(back["Pose2"], found["Pose2"])
        np.testing.assert_array_equal(back.correlation("Pose2"), found.correlation("Pose2"))
        assert str(back) == str(found)
    for back in (copy.copy(found), copy.deepcopy(found)):
        np.testing.assert_array_equal(back.cross("Pose2", 0, "Pose2", 0), found["Pose2"][0])
    with pytest.raises(InputError, match=r"comes from a pickle.*ask for them before"):
        pickle.loads(pickle.dumps(found)).cross("Pose2", 0, "Pose2", 0)


# -- kernels and arrays ----------------------------------------------------------------------------


@caspar.kernel(backend="cpu")
def doubled(
    x: Annotated[sf.V2, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """Twice as long."""
    return 2 * x


def run_doubled(kernel: caspar.Kernel, rows: Any) -> Any:
    return kernel(rows)


def test_kernels_are_found_by_name(other_process: Pool) -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.copy(doubled) is doubled
    assert copy.deepcopy(doubled) is doubled
    rows = np.ones((3, 2))
    found = other_process.apply(run_doubled, (doubled, rows))
    np.testing.assert_array_equal(found, 2 * rows)


def test_a_kernel_without_a_place_is_refused() -> None:
    @caspar.kernel
    def here(
        x: Annotated[sf.V2, caspar.ReadSequential],
    ) -> Annotated[sf.V2, caspar.WriteSequential]:
        return x

    with pytest.raises(pickle.PicklingError, match="kernel here"):
        pickle.dumps(here)
    assert copy.deepcopy(here) is here


def test_a_bound_kernel_is_refused() -> None:
    bound = doubled.bind(caspar.BlockedArray.from_rows(np.ones((3, 2)), backend="cpu"))
    for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="call bind where they arrive"):
            refuse(bound)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_blocked_arrays_and_indices(again: Callable[[Any], Any]) -> None:
    rows = np.arange(35.0).reshape(7, 5)
    whole = caspar.BlockedArray.from_rows(rows, backend="cpu")
    for array, wanted in ((whole, rows), (whole[2:5], rows[2:5])):
        back = again(array)
        np.testing.assert_array_equal(back.to_rows(), wanted)
        back.buffer[...] = 0
        np.testing.assert_array_equal(array.to_rows(), wanted)
    index = caspar.SharedIndices(np.array([3, 1, 1]), size=4, backend="cpu")
    index.tiles(1024)
    back = again(index)
    np.testing.assert_array_equal(back.index, [3, 1, 1])
    assert (back.size, back.backend.name) == (4, "cpu")
    assert back.tiles(1024).num_partials == index.tiles(1024).num_partials


def all_errors(kind: type[CasparError]) -> list[type[CasparError]]:
    return [kind, *(one for direct in kind.__subclasses__() for one in all_errors(direct))]


@pytest.mark.parametrize("kind", all_errors(CasparError), ids=lambda kind: kind.__name__)
def test_errors_come_back_whole(kind: type[CasparError]) -> None:
    given: dict[type[CasparError], tuple[Any, ...]] = {
        UnsuitedError: ("advice",),
        RankDeficiencyError: (3,),
        MissingPackageError: ("package", "extra"),
    }
    more = given.get(kind, ())
    error = kind("what", *more)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)
