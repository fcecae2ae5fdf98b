"""Values of iterations on a device, and scenes of arrays that are there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import PrecisionName
from tests.solver.bundles import arrays_of, read

pytestmark = pytest.mark.gpu
cupy: Any = pytest.importorskip("cupy")


def on_device(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        name: on_device(given) if isinstance(given, dict) else cupy.asarray(given)
        for name, given in arrays.items()
    }


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_values_of_each_step(place: str, precision: PrecisionName) -> None:
    arrays = arrays_of(read("problem-21-11315"))
    if place == "device":
        arrays = on_device(arrays)
    solver = caspar.Solver(snavely, backend="cuda", precision=precision)
    plain = solver.solve(arrays, max_iterations=8)
    recording = caspar.Recording()
    result = solver.solve(arrays, max_iterations=8, on_iteration=recording)
    # sums of atomic additions come in any order
    assert result.final_cost == pytest.approx(plain.final_cost, rel=1e-5)
    host = arrays_of(read("problem-21-11315"))
    for record, values in zip(recording.records, recording.values, strict=True):
        assert all(isinstance(rows, np.ndarray) for rows in values.values())
        assert solver.evaluate({**host, **values}).cost == pytest.approx(record.cost, rel=1e-6)
    for name, values in result.values.items():
        last = values.get() if place == "device" else values
        np.testing.assert_array_equal(recording.values[-1][name], last)


@pytest.mark.parametrize("place", ["host", "device"])
def test_scenes_of_arrays_on_the_device(place: str, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    arrays = arrays_of(read("problem-21-11315"))
    if place == "device":
        arrays = on_device(arrays)
    recording = caspar.Recording()
    solver = caspar.Solver(snavely, backend="cuda")
    result = solver.solve(arrays, max_iterations=8, on_iteration=recording)
    result.to_html(tmp_path / "scene.html", recording)
    assert (tmp_path / "scene.html").stat().st_size > 5e6


def test_values_are_of_the_kind_given() -> None:
    arrays = on_device(arrays_of(read("problem-21-11315")))
    kinds: set[type] = set()

    def look(record: caspar.IterationRecord) -> None:
        kinds.update(type(rows) for rows in record.values().values())

    caspar.Solver(snavely, backend="cuda").solve(arrays, max_iterations=2, on_iteration=look)
    assert kinds == {cupy.ndarray}
