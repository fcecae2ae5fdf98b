"""Reports are read back, merged and shown; the gate sees what is worse."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figure import draw
from benchmarks.gate import KINDS, figures, updated, worse, write_baseline
from benchmarks.measurement import TRACE_LENGTH, Growth, Measurement, Setup, thinned
from benchmarks.new_process import Startup
from benchmarks.page import markdown
from benchmarks.report import Report, merged, read_json, write_json

ROOT = Path(__file__).parents[2]


def measurement(solver: str, final_cost: float = 100.0, **changes: Any) -> Measurement:
    made = Measurement(
        solver=solver,
        problem="synthetic small",
        num_observations=1000,
        status="converged",
        initial_cost=500.0,
        final_cost=final_cost,
        reported_cost=final_cost,
        num_iterations=2,
        num_linear_iterations=30,
        linear_iteration_ms=0.01,
        outer_iteration_ms=0.1,
        setup=Setup(1.0, 0.01, 0.001),
        solve_s=0.004,
        runs=5,
        memory_bytes=84_000,
        device_bytes=None,
        remark="",
        trace=((0.001, 120.0), (0.004, final_cost)),
    )
    return dataclasses.replace(made, **changes)


def report(*measurements: Measurement, device: str = "device") -> Report:
    return Report(
        environment={"device": device},
        measurements=measurements,
        growths=(
            Growth("caspar cuda schur_pcg", 1_000, 10, 0.001, 0.1, 84_000),
            Growth("caspar cuda schur_pcg", 2_000, 20, 0.0024, 0.1, 168_000),
        ),
        startups=(
            Startup("cuda", "curve", "auto", 0.001, 1.0, 1.5, 2.0, 3.0, 0.2, 0.3, 0.01, 0.02),
        ),
        missing=("GTSAM: No module named 'gtsam'",),
    )


AUTO = measurement("caspar cuda auto")
REFERENCE = measurement(
    "reference float32, long", 100.05, linear_iteration_ms=0.09, trace=((0.02, 100.05),)
)


def test_report_is_read_back(tmp_path: Path) -> None:
    written = report(AUTO, REFERENCE)
    write_json(written, tmp_path / "one.json")
    assert read_json(tmp_path / "one.json") == written


def test_merging_compares_with_the_best_of_all_runs() -> None:
    first, second = report(AUTO), report(measurement("reference float32, long", 99.0))
    assert first.optimum("synthetic small") == 100.0
    assert merged([first, second]).optimum("synthetic small") == 99.0


def test_later_run_replaces_the_same_measurement() -> None:
    again = measurement("caspar cuda auto", 98.0)
    assert merged([report(AUTO), report(again)]).measurements == (again,)


def test_different_devices_are_not_merged() -> None:
    with pytest.raises(ValueError, match="different devices"):
        merged([report(AUTO), report(AUTO, device="another")])


def test_known_cost_is_the_optimum_whoever_is_below_it() -> None:
    known = dataclasses.replace(report(AUTO), known={"synthetic small": 101.0})
    assert known.optimum("synthetic small") == 101.0


def test_page_shows_ratios_and_names_what_is_missing() -> None:
    page = markdown(report(AUTO, REFERENCE), "figure.png")
    assert "| 0.0900 | 0.0100 | 9.0 | - | 20.00 | 4.00 | 5.0 |" in page
    assert "* GTSAM: No module named 'gtsam'" in page
    assert "| caspar cuda schur_pcg | 1.0000 | 1.2000 | 1.20 |" in page
    assert "84.0" in page
    assert "(figure.png)" in page


def test_page_shows_no_times_of_another_cost() -> None:
    other = measurement("GTSAM Schur", reported_cost=50.0, trace=((0.001, 50.0),))
    line = next(line for line in markdown(report(AUTO, other)).splitlines() if "GTSAM S" in line)
    assert line.count("other cost") == 2


def test_figure_is_drawn(tmp_path: Path) -> None:
    without = measurement("GTSAM Schur", memory_bytes=None, trace=())
    draw(report(AUTO, REFERENCE, without), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_thinned_trace_keeps_what_lowers_the_cost() -> None:
    assert thinned(((1.0, 5.0), (2.0, 6.0), (3.0, 4.0))) == ((1.0, 5.0), (3.0, 4.0))
    long = tuple((float(step), -float(step)) for step in range(3 * TRACE_LENGTH))
    short = thinned(long)
    assert len(short) <= TRACE_LENGTH + 1
    assert (short[0], short[-1]) == (long[0], long[-1])


def test_all_figures_have_a_kind_and_belong_to_caspar() -> None:
    found = figures(report(AUTO, REFERENCE))
    assert {name.rpartition(" | ")[2] for name in found} == set(KINDS)
    assert all(name.startswith("caspar") for name in found)
    assert found["caspar cuda schur_pcg | growth | growth, worst / best"] == pytest.approx(1.2)
    assert found["caspar cuda auto | synthetic small | ms to 0.1 %"] == pytest.approx(4.0)


def test_gate_sees_growth_beyond_tolerance_only() -> None:
    name = "a | b | ms per PCG iteration"
    assert worse({name: 1.0}, {name: 1.09}) == []
    assert worse({name: 1.0}, {name: 0.5}) == []
    assert worse({name: 1.0}, {name: 1.2}) == [f"{name}: 1 -> 1.2"]


def test_gate_sees_a_cost_that_is_no_longer_reached() -> None:
    before = figures(report(AUTO))
    after = figures(report(measurement("caspar cuda auto", 100.5), REFERENCE))
    lines = worse(before, after)
    assert any("ms to 0.01 %: 4 -> inf" in line for line in lines)
    assert any("% above best" in line for line in lines)


def test_gate_as_a_command(tmp_path: Path) -> None:
    baseline, result = tmp_path / "baseline.json", tmp_path / "result.json"
    write_json(report(measurement("caspar cuda auto", linear_iteration_ms=0.02)), result)
    command = [sys.executable, "-m", "benchmarks.gate", str(result), "--baseline", str(baseline)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=500).returncode == 2
    write_baseline("device", figures(report(AUTO)), baseline)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "worse: caspar cuda auto | synthetic small | ms per PCG iteration" in done.stdout
    write_baseline("another", figures(report(AUTO)), baseline)
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=500).returncode == 2
    subprocess.run([*command, "--update"], cwd=ROOT, check=True, timeout=500)
    assert json.loads(baseline.read_text())["device"] == "device"
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=500).returncode == 0


def test_gate_misses_what_was_measured_before(tmp_path: Path) -> None:
    """A solver that failed has no figures; another problem is no matter."""
    baseline, result = tmp_path / "baseline.json", tmp_path / "result.json"
    write_json(report(AUTO), result)
    found = figures(report(AUTO))
    command = [sys.executable, "-m", "benchmarks.gate", str(result), "--baseline", str(baseline)]
    for more, codes in (
        ({}, (0, 0)),
        ({"caspar cuda pcg | another | ms to 0.1 %": 1.0}, (0, 0)),
        ({"caspar cuda pcg | synthetic small | ms to 0.1 %": 1.0}, (1, 0)),
    ):
        write_baseline("device", {**found, **more}, baseline)
        for options, code in zip(([], ["--partial"]), codes, strict=True):
            done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, timeout=500)
            assert done.returncode == code
    write_baseline("device", {"caspar cuda pcg | another | ms to 0.1 %": 1.0}, baseline)
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=500).returncode == 2


def test_gate_update_leaves_other_problems_alone() -> None:
    before = {"a | one | ms": 1.0, "b | one | ms": 2.0, "a | two | ms": 3.0}
    assert updated(before, {"a | one | ms": 4.0}) == {"a | one | ms": 4.0, "a | two | ms": 3.0}


def test_time_to_own_best() -> None:
    trace = ((1.0, 9.0), (2.0, 5.00001), (3.0, 5.0), (4.0, 5.0))
    assert measurement("a", trace=trace).time_to_own_best == 2.0
    assert measurement("a", trace=()).time_to_own_best is None
