"""One problem on several devices: the same minimum, faults, refusals, and what is told."""

import copy
import pickle
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import OptionError, UnsuitedError
from caspar.options import LinearSolverName, PrecisionName
from caspar.runtime.group.threads import ThreadGroup
from caspar.runtime.select import members_on_processor
from caspar.solver.lm.interrupts import forget
from caspar.solver.lm.minimize import minimize
from caspar.solver.shards.devices import Team
from tests.problems import EXAMPLES
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.shards.sharing import (
    ALL_SHARE,
    ON_SEVERAL,
    assert_same_minimum,
    crew_of,
    fail_at,
    plans_of,
    sharing,
)

ROBUST = snavely.with_loss(caspar.loss.Huber)

EXACT: dict[str, Any] = {
    "cost_tolerance": 1e-14,
    "gradient_tolerance": 0.0,
    "step_tolerance": 0.0,
    "min_linear_tolerance": 1e-12,
}


CLOSE: dict[str, Any] = {"cost_tolerance": 1e-10, "min_linear_tolerance": 1e-9}


class Rod(sf.V3):
    """A node that remains."""


class Mark(sf.V2):
    """A node that is eliminated."""


@caspar.factor
def sighting(
    rod: Annotated[Rod, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Where a mark is, seen from a rod."""
    turned = sf.Rot2.from_angle(rod[2]) * (sf.V2(mark[0], mark[1]) - sf.V2(rod[0], rod[1]))
    return turned - seen


@caspar.factor
def known_rod(
    rod: Annotated[Rod, caspar.TunableShared], known: Annotated[sf.V3, caspar.ConstSequential]
) -> sf.V3:
    """Touches no mark."""
    return rod - known


@caspar.factor
def known_mark(
    mark: Annotated[Mark, caspar.TunableShared], known: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """Touches a mark alone."""
    return mark - known


@caspar.factor
def tied_rods(
    first: Annotated[Rod, caspar.TunableShared],
    second: Annotated[Rod, caspar.TunableShared],
    apart: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A chain of nodes that remain."""
    return second - first - apart


FIELD = (sighting, known_rod, known_mark, tied_rods)


def field_arrays(
    rods: np.ndarray, marks: np.ndarray, num_rods: int, num_marks: int, seed: int
) -> dict[str, Any]:
    """Sightings by the given indices; every node is known roughly."""
    random = np.random.default_rng(seed)
    first = np.arange(num_rods - 1)
    return {
        "Rod": random.normal(size=(num_rods, 3)),
        "Mark": random.normal(size=(num_marks, 2)),
        "sighting": {"rod": rods, "mark": marks, "seen": random.normal(size=(len(rods), 2))},
        "known_rod": {"rod": np.arange(num_rods), "known": random.normal(size=(num_rods, 3))},
        "known_mark": {"mark": np.arange(num_marks), "known": random.normal(size=(num_marks, 2))},
        "tied_rods": {
            "first": first,
            "second": first + 1,
            "apart": random.normal(size=(num_rods - 1, 3)),
        },
    }


@given(data=st.data(), devices=st.sampled_from([2, 3, 5]))
@settings(max_examples=10)
def test_any_split_has_the_same_minimum(data: st.DataObject, devices: int) -> None:
    num_rods, num_marks = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 12))
    size = data.draw(st.integers(0, 60))
    one_rod, one_mark = data.draw(st.booleans()), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rods = random.integers(0, 1 if one_rod else num_rods, size)
    marks = random.integers(0, 1 if one_mark else num_marks, size)
    if data.draw(st.booleans()):
        marks.sort()
    arrays = field_arrays(rods, marks, num_rods, num_marks, size)
    if data.draw(st.booleans()):
        # nobody knows the marks by themselves, and some are seen by nobody
        arrays["known_mark"] = {"mark": [], "known": []}
        marks[:] = num_marks - 1 - marks // 2
    alone = _alone(FIELD, "schur_pcg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nodes that no factor touches
        wanted = alone.solve(arrays, **CLOSE)
        found = sharing(FIELD, devices, precision="float64").solve(arrays, **CLOSE)
    assert found.status.is_success
    assert_same_minimum(found, wanted, 1e-8, 1e-3)


def test_nodes_that_no_factor_touches_are_told() -> None:
    arrays = field_arrays(np.arange(4), np.array([0, 1, 3, 4]), 4, 6, 0)
    arrays["known_mark"] = {"mark": [5], "known": [[0.0, 0.0]]}
    solver = caspar.Solver(FIELD, backend="cpu", devices=2, limits=ALL_SHARE)
    with pytest.warns(
        UserWarning, match="Mark: 1 of 6 instances are touched by no factor, first 2"
    ):
        result = solver.solve(arrays)
    assert_array_equal(result.values["Mark"][2], arrays["Mark"][2])


class Frame(sf.V3):
    """Where a rig is at one time: x, y, angle."""


class Sensor(sf.V3):
    """Where a camera is on the rig."""


@caspar.factor
def rig_sighting(
    frame: Annotated[Frame, caspar.TunableShared],
    sensor: Annotated[Sensor, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Where a mark is, seen from a camera of a rig."""
    from_frame = sf.Rot2.from_angle(frame[2]) * (sf.V2(mark[0], mark[1]) - sf.V2(*frame[:2]))
    return sf.Rot2.from_angle(sensor[2]) * (from_frame - sf.V2(*sensor[:2])) - seen


@caspar.factor
def known_frame(
    frame: Annotated[Frame, caspar.TunableShared],
    known: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """From another measurement."""
    return frame - known


@caspar.factor
def moved(
    frame: Annotated[caspar.Pair[Frame], caspar.TunablePair],
    by: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A chain of frames, in pairs of neighbours."""
    return frame[1] - frame[0] - by


@caspar.factor
def known_sensor(
    sensor: Annotated[Sensor, caspar.TunableShared],
    known: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """From a drawing."""
    return sensor - known


RIG = (rig_sighting, known_frame, known_sensor, moved)


def rig_arrays(num_frames: int, num_marks: int) -> dict[str, Any]:
    """Three cameras on a rig that moves on a line, and marks that all of them see."""
    random = np.random.default_rng(3)
    frames = np.column_stack([np.arange(num_frames), np.zeros((num_frames, 2))])
    sensors = np.array([[0.1, 0.0, 0.0], [0.0, 0.2, 1.0], [-0.1, 0.1, 2.0]])
    frame, mark = (one.ravel() for one in np.mgrid[:num_frames, :num_marks])
    sensor = random.integers(0, 3, len(mark))
    return {
        "Frame": frames + 0.1 * random.normal(size=frames.shape),
        "Sensor": sensors,
        "Mark": random.normal(size=(num_marks, 2)),
        "rig_sighting": {
            "frame": frame,
            "sensor": sensor,
            "mark": mark,
            "seen": random.normal(size=(len(mark), 2)),
        },
        "known_frame": {"frame": np.arange(num_frames), "known": frames},
        "known_sensor": {"sensor": np.arange(3), "known": sensors},
        "moved": {"by": frames[1:] - frames[:-1]},
    }


@ON_SEVERAL
def test_a_rig_on_a_chain_has_the_same_minimum(backend: str, devices: int) -> None:
    arrays = rig_arrays(7, 20)
    wanted = _alone(RIG, "schur_pcg").solve(arrays, **CLOSE)
    found = sharing(RIG, devices, backend, precision="float64").solve(arrays, **CLOSE)
    assert_same_minimum(found, wanted, 1e-8, 1e-3)


_SOLVERS: dict[Any, caspar.Solver] = {}


def _alone(factors: tuple[caspar.Factor, ...], linear_solver: LinearSolverName) -> caspar.Solver:
    key = factors, linear_solver
    if key not in _SOLVERS:
        _SOLVERS[key] = caspar.Solver(
            factors, backend="cpu", precision="float64", linear_solver=linear_solver
        )
    return _SOLVERS[key]


@ON_SEVERAL
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_have_the_same_minimum(name: str, backend: str, devices: int) -> None:
    factors, arrays = EXAMPLES[name].factors, EXAMPLES[name].arrays()
    wanted = _alone(factors, "schur_pcg" if name == "robot" else "pcg").solve(arrays, **EXACT)
    solver = sharing(factors, devices, backend, precision="float64")
    found = solver.solve(arrays, **EXACT)
    assert_same_minimum(found, wanted, 1e-9, 1e-5)
    assert found.problem == wanted.problem


@pytest.mark.parametrize("precision", ["mixed", "float64", "float32"])
def test_bundle_adjustment(precision: PrecisionName) -> None:
    arrays = arrays_of(part_of(read("problem-21-11315"), 600))
    one = caspar.Solver(
        [snavely], backend="cpu", precision=precision, linear_solver="schur_pcg"
    ).solve(arrays)
    for devices in (2, 3, 5):
        found = sharing((snavely,), devices, precision=precision).solve(arrays)
        relative = 1e-7 if precision != "float32" else 1e-4
        assert found.final_cost == pytest.approx(one.final_cost, rel=relative)
        assert found.device.startswith(f"{devices} x ")


def test_one_device_is_as_without_the_argument() -> None:
    arrays = EXAMPLES["robot"].arrays()
    usual = caspar.Solver(EXAMPLES["robot"].factors, backend="cpu")
    one = caspar.Solver(EXAMPLES["robot"].factors, backend="cpu", devices=1)
    found, wanted = one.solve(arrays), usual.solve(arrays)
    assert found.linear_solver == wanted.linear_solver
    for name in wanted.values:
        assert_array_equal(found.values[name], wanted.values[name])


def test_equal_input_gives_equal_bits() -> None:
    arrays = arrays_of(part_of(read("problem-21-11315"), 300))
    solver = sharing((snavely,), 3)
    first, second = solver.solve(arrays), solver.solve(arrays)
    fresh = caspar.Solver([snavely], backend="cpu", devices=3, limits=ALL_SHARE).solve(arrays)
    for name in first.values:
        assert_array_equal(first.values[name], second.values[name])
        assert_array_equal(first.values[name], fresh.values[name])


# -- all that one device can do --------------------------------------------------------------------


def _bundle() -> dict[str, Any]:
    return arrays_of(part_of(read("problem-21-11315"), 300))


def _both(factor: caspar.Factor, arrays: dict[str, Any], **more: Any) -> Any:
    one = _alone((factor,), "schur_pcg").solve(arrays, **more)
    several = sharing((factor,), 3, precision="float64").solve(arrays, **more)
    return several, one


def test_losses_and_weights() -> None:
    arrays = _bundle()
    weight = np.linspace(0.0, 2.0, len(arrays["snavely"]["pixel"]))
    arrays["snavely"] |= {"weight": weight, "loss_scale": 0.5 + weight}
    found, wanted = _both(ROBUST, arrays)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
    assert found.costs["snavely"] == pytest.approx(found.final_cost, rel=1e-12)
    again = _alone((ROBUST,), "schur_pcg").evaluate({**arrays, **found.values})
    assert found.costs["snavely"] == pytest.approx(again.cost, rel=1e-9)
    assert_allclose(found.weights("snavely"), again.weights("snavely"), rtol=1e-9)
    assert found.num_beyond_scale["snavely"] == pytest.approx(
        wanted.num_beyond_scale["snavely"], abs=3
    )
    assert found.problem.num_residuals == wanted.problem.num_residuals


def test_what_is_held_keeps_its_bits() -> None:
    arrays = _bundle()
    points = np.zeros(len(arrays["Point"]), bool)
    points[::7] = True
    found, wanted = _both(snavely, arrays, fixed={"Cam": [0, 3], "Point": points})
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
    assert_array_equal(found.values["Point"][points], arrays["Point"][points])
    assert_array_equal(found.values["Cam"][[0, 3]], arrays["Cam"][[0, 3]])
    whole, _ = _both(snavely, arrays, fixed={"Cam": True})
    assert_array_equal(whole.values["Cam"], arrays["Cam"])


def test_bounds() -> None:
    arrays = _bundle()
    bounds = {"Cam": {"calibration": (arrays["Cam"][:, 7:] - 2.0, arrays["Cam"][:, 7:] + 2.0)}}
    found, wanted = _both(snavely, arrays, bounds=bounds)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-5)
    assert np.abs(found.values["Cam"][:, 7:] - arrays["Cam"][:, 7:]).max() <= 2.0 + 1e-9


def test_residuals_come_in_the_order_given() -> None:
    arrays = _bundle()
    order = np.random.default_rng(0).permutation(len(arrays["snavely"]["pixel"]))
    arrays["snavely"] = {name: rows[order] for name, rows in arrays["snavely"].items()}
    found = sharing((snavely,), 3, precision="float64").evaluate(arrays)
    wanted = _alone((snavely,), "schur_pcg").evaluate(arrays)
    assert_allclose(found.residuals("snavely"), wanted.residuals("snavely"), rtol=1e-12)
    assert found.cost == pytest.approx(wanted.cost, rel=1e-12)


def test_covariances_are_those_of_one_device() -> None:
    arrays = _bundle()
    solver = sharing((snavely,), 3, precision="float64")
    found = solver.covariance(arrays, {"Cam": [1]}, fixed={"Cam": [0], "Point": [0]})
    wanted = _alone((snavely,), "schur_pcg").covariance(
        arrays, {"Cam": [1]}, fixed={"Cam": [0], "Point": [0]}
    )
    assert_allclose(found["Cam"], wanted["Cam"], rtol=1e-9)


def test_gradients_are_those_of_one_device() -> None:
    arrays = _bundle()
    fixed = {"Cam": [0, 1], "Point": [0]}
    cotangents = {"Cam": np.ones_like(arrays["Cam"])}
    found, wanted = (
        solver.gradient(arrays, cotangents, fixed=fixed)
        for solver in (sharing((snavely,), 3, precision="float64"), _alone((snavely,), "schur_pcg"))
    )
    assert_allclose(
        found.arrays["snavely"]["pixel"], wanted.arrays["snavely"]["pixel"], rtol=1e-6, atol=1e-9
    )


def test_outliers_are_found_as_on_one_device() -> None:
    arrays = _bundle()
    pixels = arrays["snavely"]["pixel"].copy()
    pixels[::50] += 80.0
    arrays["snavely"] = {**arrays["snavely"], "pixel": pixels}
    solvers = sharing((snavely,), 2, precision="float64"), _alone((snavely,), "schur_pcg")
    found, wanted = (
        caspar.solve_gnc(solver, arrays, inlier_threshold=8.0, max_steps=3) for solver in solvers
    )
    assert_array_equal(found.inliers["snavely"], wanted.inliers["snavely"])


def test_time_limits_end_all() -> None:
    result = sharing((snavely,), 3).solve(_bundle(), max_time_s=1e-9)
    assert result.status is caspar.SolveStatus.TIME_LIMIT


def test_callbacks_stop_all() -> None:
    seen = []

    def stop(record: caspar.IterationRecord) -> bool:
        seen.append(threading.current_thread())
        return len(seen) == 2

    result = sharing((snavely,), 3).solve(_bundle(), on_iteration=stop)
    assert result.status is caspar.SolveStatus.STOPPED
    assert len(result.iterations) == 2
    assert {*seen} == {threading.current_thread()}


FOREVER: dict[str, Any] = {"cost_tolerance": 0.0, "step_tolerance": 0.0, "gradient_tolerance": 0.0}


def _interrupts(num: int, seen: list[int]) -> Callable[[caspar.IterationRecord], None]:
    """A callback in whose second iteration Ctrl-C comes, and comes again between iterations."""
    main = threading.main_thread().ident
    assert main is not None

    def look(record: caspar.IterationRecord) -> None:
        seen.append(record.iteration)
        if record.iteration == 2:
            for number in range(num):
                delay_s = 0.05 + 0.1 * number
                threading.Timer(delay_s, signal.pthread_kill, (main, signal.SIGINT)).start()
        # the signals come while the user's function reads values
        until_s = time.monotonic() + (2.0 if record.iteration >= 2 else 0.0)
        record.values()
        while time.monotonic() < until_s:
            record.values()

    return look


def test_ctrl_c_ends_all_with_a_result() -> None:
    seen: list[int] = []
    forget()
    solver = sharing((snavely,), 3)
    result = solver.solve(_bundle(), on_iteration=_interrupts(1, seen), **FOREVER)
    assert result.status is caspar.SolveStatus.INTERRUPTED
    assert len(result.iterations) - len(seen) in (0, 1)
    assert 2 <= len(seen) < 50
    forget()
    assert solver.solve(_bundle()).status.is_success


def test_a_second_ctrl_c_is_raised() -> None:
    """From another solve than the first one."""
    forget()
    solver = caspar.Solver([snavely], backend="cpu", devices=2, limits=ALL_SHARE)

    def raise_interrupt(record: caspar.IterationRecord) -> None:
        raise KeyboardInterrupt

    first = solver.solve(_bundle(), on_iteration=raise_interrupt, **FOREVER)
    assert first.status is caspar.SolveStatus.INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        solver.solve(_bundle(), on_iteration=raise_interrupt, **FOREVER)
    forget()
    assert solver.solve(_bundle()).status.is_success


def test_a_second_ctrl_c_wakes_devices_that_wait() -> None:
    forget()
    group = ThreadGroup(2)
    team = Team(members_on_processor(2), group)

    begun = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            # the user's thread waits by now, and is interrupted there
            team.in_users_thread(begun.set)
            group.gather(0, None)
        time.sleep(1.0)

    def interrupt_twice() -> None:
        """The second signal follows when the first was noted: two at once are one."""
        main = threading.main_thread().ident or 0
        begun.wait(60.0)
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        until_s = time.monotonic() + 60.0
        while time.monotonic() < until_s:
            time.sleep(0.01)
            if team.take_interrupt():
                signal.pthread_kill(main, signal.SIGINT)
                break

    sender = threading.Thread(target=interrupt_twice, daemon=True)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        team.each(work, takes_interrupts=True)
    sender.join(60.0)
    assert team.has_failed
    team.close()
    forget()


def test_values_are_those_of_all_devices() -> None:
    arrays, recording = _bundle(), caspar.Recording()
    solver = sharing((snavely,), 3)
    result = solver.solve(arrays, on_iteration=recording)
    one = _alone((snavely,), "schur_pcg")
    for record, values in zip(recording.records, recording.values, strict=True):
        assert one.evaluate({**arrays, **values}).cost == pytest.approx(record.cost, rel=1e-6)
    for name, values in result.values.items():
        assert_array_equal(recording.values[-1][name], values)


def test_plans_are_kept_and_let_go() -> None:
    solver = caspar.Solver([snavely], backend="cpu", devices=2, limits=ALL_SHARE)
    assert solver.memory_table() is None
    arrays = _bundle()
    solver.solve(arrays)
    plans = plans_of(solver, arrays)
    assert plans_of(solver, {**arrays, "Cam": arrays["Cam"] + 0.0}) == plans
    table = solver.memory_table()
    assert table is not None
    assert [line[:13] for line in table.splitlines() if line.startswith("device ")] == [
        "device 0 of 2",
        "device 1 of 2",
    ]
    solver.release()
    assert solver.memory_table() is None


def test_prepare_tells_of_all_devices() -> None:
    prepared = sharing((snavely,), 2).prepare(_bundle())
    assert prepared.device.startswith("2 x ")
    assert prepared.linear_solver == "schur_pcg"


def test_copies_and_pickles_have_as_many() -> None:
    solver = caspar.Solver([snavely], backend="cpu", devices=2, limits=ALL_SHARE)
    for other in (copy.copy(solver), pickle.loads(pickle.dumps(solver))):
        assert other.solve(_bundle(), max_iterations=1).device.startswith("2 x ")


# -- few instances, and what is not shared ---------------------------------------------------------


def test_a_small_problem_uses_one_and_says_so() -> None:
    solver = caspar.Solver([snavely], backend="cpu", devices=2)
    result = solver.solve(_bundle())
    assert result.device == caspar.Solver([snavely], backend="cpu").backend.device
    assert any("One device solved this problem" in remark for remark in result.remarks)
    assert len([one for one in solver.solve(_bundle()).remarks if "One device" in one]) == 1


def test_devices_without_instances_are_left_out() -> None:
    rods, marks = np.arange(4), np.zeros(4, int)
    arrays = field_arrays(rods, marks, 4, 1, 0)
    only = {name: arrays[name] for name in ("Rod", "Mark", "sighting")}
    result = caspar.Solver(
        [sighting], backend="cpu", devices=3, limits=ALL_SHARE, eliminate=("Mark",)
    ).solve(only)
    assert any("same node" in remark for remark in result.remarks)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"linear_solver": "sparse"}, "forms a matrix, which several devices do not share"),
        ({"linear_solver": "schur_dense"}, "forms a matrix"),
    ],
)
def test_matrices_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsuitedError, match=re.escape(message)):
        caspar.Solver([snavely], backend="cpu", devices=2, **choices)


@pytest.mark.parametrize("devices", [0, -1, True, 1.5, "two", [], [0, 0], [-1], [0.5]])
def test_what_names_no_devices(devices: Any) -> None:
    with pytest.raises(OptionError, match="devices="):
        caspar.Solver([snavely], backend="cpu", devices=devices)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["score", "linearize", "try_step", "accept"])
@pytest.mark.parametrize("failing", [0, 2])
def test_a_device_that_fails_ends_the_work_of_all(
    call: str, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = _bundle()
    solver = caspar.Solver([snavely], backend="cpu", devices=3, limits=ALL_SHARE)
    with crew_of(solver, arrays) as crew:
        fail_at(monkeypatch, call, crew.systems[failing])
        start = time.perf_counter()
        with pytest.raises(MemoryError, match="of this test") as caught:
            crew.run(lambda system: minimize(system, caspar.SolveOptions(), None))
        assert time.perf_counter() - start < 10.0
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [
                f"It was raised on device {failing} of 3 that share the problem."
            ]
        monkeypatch.undo()
    # what has failed is not used again
    assert solver.solve(arrays).status.is_success


def test_residuals_that_are_not_finite_are_named() -> None:
    arrays = _bundle()
    arrays["snavely"]["pixel"] = arrays["snavely"]["pixel"].copy()
    arrays["snavely"]["pixel"][-1] = 1e200
    result = sharing((snavely,), 3, precision="float64").solve(arrays)
    wanted = _alone((snavely,), "schur_pcg").solve(arrays)
    assert result.status is wanted.status is caspar.SolveStatus.INITIAL_COST_NOT_FINITE
    assert result.remarks == wanted.remarks
