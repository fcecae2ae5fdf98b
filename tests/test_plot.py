import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caspar
from caspar.cli.outputs import check_plot
from caspar.errors import InputError, MissingPackageError
from caspar.plot import (
    Figure,
    plot_bundle_adjustment,
    plot_convergence,
    plot_costs,
    plot_residuals,
)
from caspar.solver.result.result import SolveStatus
from caspar.version import install_command
from tests.examples import failed_result, make_bal_problem, make_record, make_result
from tests.solver.losses.loss_cases import ROBUST, bounded_point, line_arrays, view_arrays

ROOT = Path(__file__).parents[1]


def drawn(figure: Figure) -> bytes:
    png = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    return png


def test_convergence() -> None:
    result = make_result(6)
    figure = result.plot()
    assert isinstance(figure, Figure)
    drawn(figure)
    curve, rejected = figure.axes[0].lines
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(7.0))
    costs = np.array([1000.0, *(record.cost for record in result.iterations)])
    excess = costs / result.final_cost - 1.0
    np.testing.assert_allclose(np.asarray(curve.get_ydata())[:-1], excess[:-1])
    assert np.isnan(np.asarray(curve.get_ydata())[-1])  # zero has no logarithm
    np.testing.assert_array_equal(rejected.get_xdata(), [2.0])
    assert [axis.get_yscale() for axis in figure.axes] == ["log", "log"]


def test_steps_that_were_rejected_last_are_marked() -> None:
    """Their cost is the final one, which a logarithmic axis does not have."""
    end = make_record(4, 300.0, step_accepted=False)
    records = (make_record(1, 300.0), make_record(2, 300.0, step_accepted=False), end)
    figure = make_result(iterations=records, final_cost=300.0).plot()
    for axis in figure.axes:
        curve, rejected, last = axis.lines
        assert len(np.asarray(rejected.get_xdata())) == 0
        assert len(np.asarray(curve.get_xdata())) == 4
        np.testing.assert_array_equal(last.get_ydata(), [0.0, 0.0])
    np.testing.assert_array_equal(figure.axes[0].lines[2].get_xdata(), [2.0, 4.0])
    drawn(figure)


@pytest.mark.parametrize(("time_s", "label"), [(0.004, "time, ms"), (30.0, "time, s")])
def test_time_unit(time_s: float, label: str) -> None:
    result = make_result(iterations=(make_record(1, 5.0, time_s=time_s),))
    assert plot_convergence(result).axes[1].get_xlabel().startswith(label)


@pytest.mark.parametrize(
    "result",
    [
        failed_result(),
        make_result(0),
        make_result(1, initial_cost=0.0, final_cost=0.0),
        make_result(iterations=(make_record(1, 0.0),), final_cost=0.0),
        make_result(iterations=(make_record(1, 999.9), make_record(2, 999.8)), final_cost=999.8),
        make_result(1, initial_cost=math.inf),
    ],
    ids=["nan", "none", "zero start", "zero end", "flat", "infinite"],
)
def test_convergence_of_unusual_results(result: caspar.SolveResult) -> None:
    drawn(plot_convergence(result))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_bundle_adjustment(tmp_path: Path, suffix: str) -> None:
    before = make_bal_problem()
    after = dataclasses.replace(before, points=before.points + 0.01)
    path = tmp_path / f"scene{suffix}"
    plot_bundle_adjustment(before, after, make_result(), path)
    assert path.stat().st_size > 1000


def test_bundle_adjustment_is_not_ruled_by_outliers(tmp_path: Path) -> None:
    """One point at 1e6 changes the picture next to nothing."""
    problem = make_bal_problem(num_points=200)
    far = problem.points.copy()
    far[7] = 1e6
    sizes = []
    for number, points in enumerate((problem.points, far)):
        path = tmp_path / f"{number}.png"
        after = dataclasses.replace(problem, points=points)
        plot_bundle_adjustment(problem, after, make_result(), path)
        image = np.asarray(Image.open(path).convert("L"))
        sizes.append(int((image[image.shape[0] // 2 :] < 128).sum()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.3)


@pytest.mark.parametrize("kind", ["one camera", "one point", "cameras agree on nothing", "a line"])
def test_degenerate_scenes(tmp_path: Path, kind: str) -> None:
    problem = make_bal_problem(num_cameras=2, num_points=4)
    if kind == "one camera":
        problem = make_bal_problem(num_cameras=1)
    elif kind == "one point":
        problem = make_bal_problem(num_points=1)
    elif kind == "cameras agree on nothing":
        problem.cameras[0, :4] = 0.0, 0.0, 0.0, 1.0
        problem.cameras[1, :4] = 1.0, 0.0, 0.0, 0.0
    else:
        problem.points[:, :2] = 0.0
        problem.cameras[:, :7] = 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -6.0
    plot_bundle_adjustment(problem, problem, make_result(), tmp_path / "scene.png")
    assert (tmp_path / "scene.png").is_file()


def test_figures_leave_no_trace_in_pyplot() -> None:
    program = (
        "import sys; from caspar.plot import plot_convergence; "
        "from tests.examples import make_result; plot_convergence(make_result())._repr_png_(); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stdout.strip() == "False"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only plots need is an extra: errors name it, a notebook shows the rest."""
    for name in list(sys.modules):
        if name.startswith(("matplotlib", "caspar.plot")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr(caspar, "plot", raising=False)
    with pytest.raises(MissingPackageError, match=re.escape(install_command("plot"))):
        make_result().plot()
    with pytest.raises(ImportError, match="--plot needs matplotlib"):
        check_plot(Path("scene.png"))
    check_plot(None)
    shown = make_result()._repr_html_()
    assert "[plot]" in shown
    assert "<table>" in shown


def test_title_names_the_status() -> None:
    result = make_result(status=SolveStatus.TIME_LIMIT)
    title = plot_convergence(result).axes[0].get_title(loc="left")
    assert title == "cost 1,000.00 -> 156.250 (TIME_LIMIT)"


def test_residuals() -> None:
    arrays = line_arrays()
    arrays["point"]["weight"] = np.where(np.arange(90) < 5, 0.0, 2.0)
    arrays["point"]["loss_scale"] = 0.5
    result = caspar.Solver(bounded_point, precision="float64", backend="cpu").solve(arrays)
    (axis,) = plot_residuals(result, "point").axes
    weights = result.weights("point")
    full, weak = (sum(bar.get_height() for bar in bars) for bars in axis.containers)
    half = 0.5 * weights.max()
    assert full == np.count_nonzero(weights >= half)
    assert weak == np.count_nonzero((weights < half) & (weights > 0.0))
    assert axis.get_title(loc="left").startswith("point: ")
    with pytest.raises(InputError, match="'pont' is no factor"):
        plot_residuals(result, "pont")


def test_costs_by_factor() -> None:
    solver = caspar.Solver(ROBUST, precision="float64", backend="cpu")
    result = solver.solve(view_arrays())
    (axis,) = plot_costs(result).axes
    (bars,) = axis.containers
    assert [bar.get_width() for bar in bars] == list(result.costs.values())
    assert [label.get_text() for label in axis.get_yticklabels()] == ["glance", "hold", "pin"]
