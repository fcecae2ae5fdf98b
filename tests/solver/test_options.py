"""Options, backends and memory: what is asked for is possible, or the answer says why not."""

import inspect
import math
import os
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import BackendError, OptionError, OutOfMemoryError
from caspar.options import SOLVER_CHOICES
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia import probe
from caspar.runtime.nvidia.probe import cuda_problem
from caspar.solver.limits import Limits
from tests.problems import EXAMPLES, anchor
from tests.solver.solving import solve_example, solver

GRID = EXAMPLES["grid"].arrays()


def refusal(**options: Any) -> str:
    with pytest.raises(OptionError) as caught:
        solve_example("grid", GRID, **options)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def test_unknown_option() -> None:
    message = refusal(max_iteration=3)
    assert message.startswith("unknown option 'max_iteration' (did you mean 'max_iterations'?)")
    assert "cost_tolerance, gradient_tolerance" in message


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("loss", "it belongs to a factor"),
        ("weights", "pass weight beside the arguments of a factor"),
        ("ftol", "write cost_tolerance"),
        ("callback", "write on_iteration"),
        ("method", "pass linear_solver to caspar.Solver"),
        ("fix", "did you mean 'fixed'"),
    ],
)
def test_names_of_other_libraries(name: str, advice: str) -> None:
    message = refusal(**{name: 1})
    assert message.startswith(f"unknown option {name!r}")
    assert advice in message


def test_a_callback_is_a_function() -> None:
    assert refusal(on_iteration=5).startswith("on_iteration=5: must be a function")


@pytest.mark.parametrize("value", ["no", 1, None])
def test_deterministic_is_true_or_false(value: Any) -> None:
    with pytest.raises(OptionError, match=f"deterministic={value!r}: must be True or False"):
        caspar.Solver(EXAMPLES["grid"].factors, backend="cpu", deterministic=value)


def test_choices_of_the_solver_are_no_options() -> None:
    assert refusal(linear_solver="pcg") == (
        "'linear_solver' is an option of Solver, not of solve: write "
        "caspar.Solver(factors, linear_solver='pcg')"
    )
    arguments = inspect.signature(caspar.Solver).parameters
    assert list(arguments) == ["factors", *SOLVER_CHOICES]


@pytest.mark.parametrize("name", ["max_iterations", "min_linear_iterations"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, math.nan, 2**31])
def test_counts(name: str, value: Any) -> None:
    said, _, advice = refusal(**{name: value}).partition(". ")
    assert said == f"{name}={value!r}: must be an integer from 1 to 2147483647"
    is_score = name == "max_iterations" and value == 0
    assert ("use Solver.evaluate(arrays)" in advice) is is_score
    assert (advice != "") is is_score


@pytest.mark.parametrize("name", ["initial_damping", "max_damping"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "small", True, 1e31, 10**400])
def test_dampings(name: str, value: Any) -> None:
    expected = f"{name}={value!r}: must be a positive number of at most 1e+30"
    assert refusal(**{name: value}) == expected + ", or None" * (name == "initial_damping")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "small", True, 1e31, 10**400])
def test_least_dampings(value: Any) -> None:
    expected = f"min_damping={value!r}: must be a number from 0 to 1e+30, or None"
    assert refusal(min_damping=value) == expected


def test_dampings_that_contradict_each_other() -> None:
    found = refusal(min_damping=1.0, max_damping=0.5)
    assert found == "min_damping=1.0: must be at most max_damping=0.5"


@pytest.mark.parametrize(
    ("bounds", "first"), [({"min_damping": 0.1}, 0.1), ({"max_damping": 1e-9}, 1e-9)]
)
def test_the_usual_damping_lies_between_its_bounds(bounds: dict[str, Any], first: float) -> None:
    result = solve_example("grid", GRID, max_iterations=1, precision="mixed", **bounds)
    assert [one.damping for one in result.iterations if one.damping > 0.0] == [first]


@pytest.mark.parametrize("name", ["cost_tolerance", "gradient_tolerance", "step_tolerance"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "small", 1e200])
def test_tolerances(name: str, value: Any) -> None:
    expected = f"{name}={value!r}: must be a number from 0 to 1e+100, or None"
    assert refusal(**{name: value}) == expected


def test_none_is_what_the_linear_systems_suggest() -> None:
    left_open: dict[str, Any] = dict.fromkeys(
        ("max_iterations", "cost_tolerance", "gradient_tolerance", "step_tolerance")
    )
    expected, found = solve_example("grid", GRID), solve_example("grid", GRID, **left_open)
    assert len(found.iterations) == len(expected.iterations)
    assert found.final_cost == expected.final_cost


def test_numbers_of_numpy_become_python_s() -> None:
    given: dict[str, Any] = {"initial_damping": np.float16(1e-3), "max_iterations": np.int8(5)}
    options = caspar.SolveOptions(**given)
    assert type(options.initial_damping) is float
    assert type(options.max_iterations) is int
    assert options.initial_damping == float(np.float16(1e-3))


@pytest.mark.parametrize("value", [-1, 33, 1.0, None])
def test_inner_iterations(value: Any) -> None:
    expected = f"inner_iterations={value!r}: must be an integer from 0 to 32"
    with pytest.raises(OptionError, match=expected):
        caspar.Solver(EXAMPLES["grid"].factors, backend="cpu", inner_iterations=value)


@pytest.mark.parametrize("name", ["backend", "precision", "linear_solver", "jacobian"])
def test_an_array_is_no_choice(name: str) -> None:
    choices: dict[str, Any] = {"backend": "cpu", name: np.array([1, 2])}
    with pytest.raises(OptionError, match=rf"{name}=array\(\[1, 2\]\): must be one of"):
        caspar.Solver(EXAMPLES["grid"].factors, **choices)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 2, math.nan, None])
def test_linear_tolerances(value: Any) -> None:
    allowed = "must be between 0 and 1, both excluded"
    assert refusal(linear_tolerance=value) == f"linear_tolerance={value!r}: {allowed}"
    assert refusal(min_linear_tolerance=value) == f"min_linear_tolerance={value!r}: {allowed}"


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1 s"])
def test_time(value: Any) -> None:
    assert refusal(max_time_s=value).startswith(f"max_time_s={value!r}: must be a positive")


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_check(value: Any) -> None:
    assert refusal(check=value) == f"check={value!r}: must be True or False"


@pytest.mark.parametrize("options", [{"min_damping": 1.0}, {"max_damping": 1e-5}])
def test_initial_damping_outside_its_bounds(options: dict[str, float]) -> None:
    name, value = next(iter(options.items()))
    message = refusal(initial_damping=1e-3, **options)
    assert message.startswith("initial_damping=0.001: must lie between")
    assert f"{name}={value!r}" in message


def test_numbers_of_other_types() -> None:
    result = solve_example(
        "grid",
        GRID,
        max_iterations=np.int64(3),
        initial_damping=np.float32(1e-3),
        cost_tolerance=0,
        linear_tolerance=Fraction(1, 10),
        max_time_s=100,
    )
    assert len(result.iterations) == 3
    assert result.iterations[0].damping == pytest.approx(1e-3)


def test_options_are_refused_before_anything_is_compiled() -> None:
    class Unused(CpuBackend):
        def load(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("something is compiled")

    solver = caspar.Solver([anchor], backend=Unused())
    with pytest.raises(OptionError):
        solver.solve({}, max_iterations=0)


@pytest.mark.parametrize("name", ["precision", "backend"])
@pytest.mark.parametrize("value", ["half", "gpu", 64, None])
def test_choices(name: str, value: Any) -> None:
    allowed = {
        "precision": "'auto', 'mixed', 'float32', 'float64'",
        "backend": "'auto', 'cuda', 'cpu'",
    }
    message = f"{name}={value!r}: must be one of {allowed[name]}"
    with pytest.raises(OptionError, match=re.escape(message)):
        caspar.Solver([anchor], **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("backend", "gpu", "cuda"),
        ("backend", "CPU", "cpu"),
        ("precision", "double", "float64"),
        ("linear_solver", "Dense", "dense"),
        ("jacobian", "recomputed", "recompute"),
    ],
)
def test_the_choice_that_was_meant_is_suggested(name: str, value: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean {meant!r}"):
        caspar.Solver([anchor], **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [CpuBackend, object(), 1.0])
def test_a_backend_is_a_name_or_an_object(value: Any) -> None:
    message = f"backend={value!r}: must be one of 'auto', 'cuda', 'cpu', or a backend object"
    with pytest.raises(OptionError, match=re.escape(message)):
        caspar.Solver([anchor], backend=value)


def test_a_backend_object_is_used_as_it_is() -> None:
    backend = CpuBackend()
    solver = caspar.Solver(EXAMPLES["grid"].factors, backend=backend)
    assert solver.backend is backend
    assert solver.solve(GRID).final_cost == solve_example("grid", GRID).final_cost


class TestLimits:
    @pytest.mark.parametrize("value", [-1, math.nan, "7", True, None])
    def test_they_are_sizes(self, value: Any) -> None:
        with pytest.raises(OptionError, match=r"limits: max_dense=.*: must be a number"):
            Limits(max_dense=value)

    def test_places_of_32_bits_hold_no_more(self) -> None:
        usual = Limits().max_narrow_partners
        with pytest.raises(OptionError, match=f"must be at most {usual}"):
            Limits(max_narrow_partners=usual + 1)

    def test_they_are_no_dictionary(self) -> None:
        limits: Any = {"max_dense": 3}
        with pytest.raises(OptionError, match=r"must be a caspar\.solver\.limits"):
            caspar.Solver([anchor], backend="cpu", limits=limits)


def test_choices_may_be_members() -> None:
    solver = caspar.Solver(
        [anchor], backend=caspar.BackendChoice.CPU, precision=caspar.Precision.FLOAT32
    )
    assert solver.backend.name == "cpu"
    assert solver.precision is caspar.Precision.FLOAT32


@pytest.mark.skipif(cuda_problem() is None, reason="there is a CUDA device")
def test_cuda_without_a_device() -> None:
    with pytest.raises(BackendError) as caught:
        caspar.Solver([anchor], backend="cuda")
    message = str(caught.value)
    assert str(cuda_problem()) in message
    assert "caspar doctor" in message
    assert "backend='cpu'" in message


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "cuda_problem", lambda: "there is no driver")
    assert caspar.Solver([anchor]).backend.name == "cpu"


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two pages."""
    release_memory()
    amounts = {"SC_PHYS_PAGES": 2, "SC_AVPHYS_PAGES": 1, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", amounts.__getitem__)
    with pytest.raises(OutOfMemoryError) as caught:
        solve_example("grid", GRID)
    assert isinstance(caught.value, MemoryError)
    found = re.search(r"needs ([\d,]+) bytes .* has ([\d,]+), ", str(caught.value))
    assert found is not None
    needed, available = (int(number.replace(",", "")) for number in found.groups())
    assert needed > available == 8192
    assert "float32" in str(caught.value)
    told = re.search(
        r"take (.*); shared by .* about (.*) on each of 2, .* of 8\.", str(caught.value)
    )
    assert told is not None
    assert told.group(1) != told.group(2)


def release_memory() -> None:
    """Of the solver that tests share: nothing is allocated where its plan is kept."""
    solve_example("grid", GRID)
    solver(EXAMPLES["grid"].factors, "float64", "cpu").release()


def test_allocation_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    release_memory()
    empty = np.empty

    def refuse(shape: Any, dtype: Any = float, **options: Any) -> Any:
        if dtype is np.uint8:
            raise MemoryError
        return empty(shape, dtype, **options)

    monkeypatch.setattr(np, "empty", refuse)
    with pytest.raises(OutOfMemoryError, match=r"needs [\d,]+ bytes of host memory"):
        solve_example("grid", GRID)
