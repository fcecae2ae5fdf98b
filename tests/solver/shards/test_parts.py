"""Arrays that are given as lists of parts: the same minimum, values in parts, and errors."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import InputError
from caspar.solver.limits import Limits
from tests.problems import EXAMPLES
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.shards.sharing import opened, plans_of, sharing

ROBUST = snavely.with_loss(caspar.loss.Huber)

CLOSE: dict[str, Any] = {"cost_tolerance": 1e-10, "min_linear_tolerance": 1e-9}


def _bundle() -> dict[str, Any]:
    """Observations in the order of their points."""
    arrays = arrays_of(part_of(read("problem-21-11315"), 300))
    order = np.argsort(arrays["snavely"]["point"], kind="stable")
    arrays["snavely"] = {name: rows[order] for name, rows in arrays["snavely"].items()}
    return arrays


def _cut(rows: np.ndarray, places: list[int]) -> list[np.ndarray]:
    return np.split(rows, places)


def _in_parts(arrays: dict[str, Any], places: list[int], *nodes: str) -> dict[str, Any]:
    """Points in parts that begin at some places, and with them their observations."""
    first = np.searchsorted(arrays["snavely"]["point"], places).tolist()
    cut = {name: _cut(rows, first) for name, rows in arrays["snavely"].items()}
    return {
        **arrays,
        "snavely": cut,
        **{name: _cut(arrays[name], places) for name in nodes},
    }


def test_parts_have_the_bits_of_the_whole() -> None:
    """Of the same split, as the cut of the points is the one that the solver would have made."""
    arrays = _bundle()
    solver = sharing((snavely,), 2, precision="float64")
    cut = plans_of(solver, arrays)[0].node_plans["Point"].count
    wanted = solver.solve(arrays)
    given = _in_parts(arrays, [cut], "Point")
    found = solver.solve(given)
    assert found.device.startswith("2 x ")
    assert found.final_cost == wanted.final_cost
    points = found.values["Point"]
    assert isinstance(points, list)
    assert [len(part) for part in points] == [len(part) for part in given["Point"]]
    assert_array_equal(np.concatenate(points), wanted.values["Point"])
    assert_array_equal(found.values["Cam"], wanted.values["Cam"])


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("nodes", [(), ("Point",), ("Point", "Cam")])
def test_any_number_of_parts_on_any_number_of_devices(devices: int, nodes: tuple[str, ...]) -> None:
    arrays = _bundle()
    wanted = sharing((snavely,), 2, precision="float64").solve(arrays, **CLOSE)
    given = _in_parts(arrays, [0, 40, 40, 170, 299])
    for name in nodes:
        places = [0, 40, 40, 170, 299] if name == "Point" else [5, 9]
        given[name] = _cut(arrays[name], places)
    found = sharing((snavely,), devices, precision="float64").solve(given, **CLOSE)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-8)
    for name, rows in found.values.items():
        assert isinstance(rows, list) is (name in nodes)
        whole = np.concatenate(rows) if name in nodes else rows
        assert_allclose(whole, wanted.values[name], atol=1e-3, rtol=1e-3)
        if name in nodes:
            assert [len(part) for part in rows] == [len(part) for part in given[name]]


@given(data=st.data(), devices=st.sampled_from([2, 3]))
@settings(max_examples=10)
def test_any_split_has_the_same_cost(data: st.DataObject, devices: int) -> None:
    """Observations in no order, parts of any sizes, nodes in parts of other sizes."""
    arrays = _bundle()
    count = len(arrays["snavely"]["pixel"])
    order = np.random.default_rng(data.draw(st.integers(0, 100))).permutation(count)
    places = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
    arrays["snavely"] = {
        name: _cut(rows[order], places) for name, rows in arrays["snavely"].items()
    }
    points = sorted(data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=3)))
    arrays["Point"] = _cut(arrays["Point"], points)
    solver = sharing((snavely,), devices, precision="float64")
    found = solver.evaluate(arrays)
    wanted = solver.evaluate(_bundle())
    assert found.cost == pytest.approx(wanted.cost, rel=1e-12)
    assert_allclose(found.residuals("snavely"), wanted.residuals("snavely")[order], rtol=1e-9)
    result = solver.solve(arrays, max_iterations=1)
    assert result.final_cost < result.initial_cost
    assert solver.evaluate({**arrays, **result.values}).cost == pytest.approx(
        result.final_cost, rel=1e-9
    )


def test_weights_losses_held_and_bounds() -> None:
    arrays = _bundle()
    weight = np.linspace(0.0, 2.0, len(arrays["snavely"]["pixel"]))
    arrays["snavely"] |= {"weight": weight, "loss_scale": 0.5 + weight}
    # what weighs nothing may be anything
    arrays["snavely"]["pixel"] = arrays["snavely"]["pixel"].copy()
    arrays["snavely"]["pixel"][0] = np.nan
    held = np.zeros(len(arrays["Point"]), bool)
    held[::7] = True
    more: dict[str, Any] = {
        "fixed": {"Cam": [0, 3], "Point": held},
        "bounds": {"Point": (arrays["Point"] - 0.3, arrays["Point"] + 0.3)},
    }
    solver = sharing((ROBUST,), 3, precision="float64")
    wanted = solver.solve(arrays, **more)
    given = _in_parts(arrays, [100, 200], "Point")
    # a whole array of the host is cut as the others
    given["snavely"]["weight"] = weight
    found = solver.solve(given, **more)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
    points = np.concatenate(found.values["Point"])
    assert_array_equal(points[held], arrays["Point"][held])
    assert np.abs(points - arrays["Point"]).max() <= 0.3 + 1e-9
    assert found.problem == wanted.problem
    assert_array_equal(found.active_bounds["Point"].shape, points.shape)
    assert_allclose(found.weights("snavely")[1:], wanted.weights("snavely")[1:], atol=1e-2)


def test_all_of_a_type_held() -> None:
    arrays = _bundle()
    solver = sharing((snavely,), 2, precision="float64")
    found = solver.solve(_in_parts(arrays, [150], "Point"), fixed={"Point": True})
    wanted = solver.solve(arrays, fixed={"Point": True})
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-9)
    assert_array_equal(np.concatenate(found.values["Point"]), arrays["Point"])


def test_values_keep_their_type_and_rows_that_did_not_move() -> None:
    arrays = _bundle()
    narrow = {**arrays, "Point": arrays["Point"].astype(np.float32)}
    solver = sharing((snavely,), 2, precision="mixed")
    result = solver.solve(_in_parts(narrow, [150], "Point"))
    assert [part.dtype for part in result.values["Point"]] == [np.float32] * 2
    assert result.final_cost == pytest.approx(
        solver.evaluate({**narrow, **result.values}).cost, rel=1e-6
    )


def test_large_constants_are_narrow_in_parts_too() -> None:
    arrays = _bundle()
    limits = Limits(min_instances_of_device=0, max_wide_constant_bytes=0)
    solver = caspar.Solver([snavely], backend="cpu", devices=2, precision="mixed", limits=limits)
    found, wanted = solver.solve(_in_parts(arrays, [150], "Point")), solver.solve(arrays)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)


def test_callbacks_reports_and_recordings() -> None:
    arrays, recording = _bundle(), caspar.Recording()
    solver = sharing((snavely,), 2)
    given = _in_parts(arrays, [150], "Point")
    result = solver.solve(given, on_iteration=recording)
    assert_array_equal(recording.values[-1]["Point"], np.concatenate(result.values["Point"]))
    assert "Point" in str(result)
    assert solver.solve({**given, **result.values}).initial_cost == pytest.approx(
        result.final_cost, rel=1e-6
    )


def test_outliers_are_found() -> None:
    arrays = _bundle()
    arrays["snavely"]["pixel"] = arrays["snavely"]["pixel"].copy()
    arrays["snavely"]["pixel"][::50] += 80.0
    weight = np.linspace(0.5, 2.0, len(arrays["snavely"]["pixel"]))
    arrays["snavely"]["weight"] = weight
    solver = sharing((snavely,), 2, precision="float64")
    given = _in_parts(arrays, [150], "Point")
    found, wanted = (
        caspar.solve_gnc(solver, one, inlier_threshold=8.0, max_steps=3) for one in (given, arrays)
    )
    assert_array_equal(found.inliers["snavely"], wanted.inliers["snavely"])


def test_covariances_and_gradients() -> None:
    arrays = _bundle()
    solver = sharing((snavely,), 2, precision="float64")
    fixed = {"Cam": [0], "Point": [0]}
    given = _in_parts(arrays, [150], "Point")
    found = solver.covariance(given, {"Cam": [1], "Point": [200]}, fixed=fixed)
    wanted = solver.covariance(arrays, {"Cam": [1], "Point": [200]}, fixed=fixed)
    assert_allclose(found["Cam"], wanted["Cam"], rtol=1e-9)
    assert_allclose(found["Point"], wanted["Point"], rtol=1e-9)
    result = solver.solve(given, max_iterations=1)
    for one in (result, given):
        with pytest.raises(InputError, match="Point, snavely were given in parts"):
            solver.gradient(one, {"Cam": np.zeros_like(arrays["Cam"])})


@pytest.mark.parametrize("nodes", [(), ("Point",)])
def test_parts_are_not_drawn(nodes: tuple[str, ...], tmp_path: Path) -> None:
    given = _in_parts(_bundle(), [150], *nodes)
    result = sharing((snavely,), 2).solve(given, max_iterations=1)
    names = ", ".join((*nodes, "snavely"))
    with pytest.raises(InputError, match=f"{names}: given in parts, which are not drawn"):
        result.to_html(tmp_path / "scene.html")


@pytest.mark.parametrize("name", list(EXAMPLES))
@pytest.mark.parametrize("devices", [1, 3])
def test_examples_in_parts(name: str, devices: int) -> None:
    """Chains of pairs, constants with an index, node types that remain."""
    factors, arrays = EXAMPLES[name].factors, EXAMPLES[name].arrays()
    solver = sharing(factors, devices, precision="float64")
    wanted = solver.solve(arrays)
    found = solver.solve(_halved(arrays))
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6, abs=1e-12)


def _halved(arrays: dict[str, Any]) -> dict[str, Any]:
    def halves(rows: Any) -> Any:
        rows = np.asarray(rows)
        return rows if len(rows) < 4 else _cut(rows, [len(rows) // 3])

    made: dict[str, Any] = {}
    for name, own in arrays.items():
        if not isinstance(own, dict):
            made[name] = halves(own)
            continue
        counts = {
            key: len(np.asarray(rows["index"] if isinstance(rows, dict) else rows))
            for key, rows in own.items()
        }
        most = max(counts.values(), default=0)
        made[name] = {}
        for key, rows in own.items():
            if isinstance(rows, dict):
                made[name][key] = {**rows, "index": halves(rows["index"])}
            else:
                made[name][key] = halves(rows) if counts[key] == most else rows
    return made


def test_what_lies_right_is_not_copied() -> None:
    """Parts that are those of the devices, of the types that the solver reads."""
    arrays = _bundle()
    arrays["snavely"] = {
        name: rows if name == "pixel" else rows.astype(np.int32)
        for name, rows in arrays["snavely"].items()
    }
    given = _in_parts(arrays, [100, 220], "Point")
    members = sharing((snavely,), 3, precision="float64")._session.members
    _, split = opened(given, 3)
    parts = split()
    for rank, part in enumerate(parts):
        own = part.problem.joined(members[rank])
        found = own.factors["snavely"]
        checked: list[tuple[Any, np.ndarray]] = [
            (own.values["Point"], given["Point"][rank]),
            (found.nodes["cam"], given["snavely"]["cam"][rank]),
            (found.constants["pixel"].rows, given["snavely"]["pixel"][rank]),
        ]
        for rows, source in checked:
            assert np.shares_memory(rows, source)
            assert rows.shape == source.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.update(pixel=[f["pixel"][0], f["pixel"][1][:, :1]]),
            "factor snavely, argument pixel: part 1 has shape (",
        ),
        (
            lambda f: f.update(pixel=[f["pixel"][0], f["pixel"][1].astype(np.float32)]),
            "factor snavely, argument pixel: part 1 has dtype float32, part 0 float64; all parts",
        ),
        (
            lambda f: f.update(pixel=[part[:, :1] for part in f["pixel"]]),
            "factor snavely, part 0 of 2, argument pixel: shape (",
        ),
        (
            lambda f: f.update(pixel=[*f["pixel"], f["pixel"][1]]),
            "pass as many rows of each argument in a part",
        ),
        (
            lambda f: f.update(pixel=np.concatenate(f["pixel"])[1:]),
            "all arguments must have as many rows",
        ),
        (lambda f: f.pop("pixel"), "factor snavely, part 0 of 2: 'pixel' is missing"),
        (
            lambda f: f["cam"][1].__setitem__(3, 21),
            "factor snavely, part 1 of 2, argument cam: index 21 at entry 3 is out of range",
        ),
        (
            lambda f: f["pixel"][1].__setitem__((2, 0), np.inf),
            "factor snavely, part 1 of 2, argument pixel: 1 of ",
        ),
    ],
)
def test_parts_that_do_not_fit(change: Callable[[Any], object], message: str) -> None:
    arrays = _bundle()
    arrays["snavely"] = {name: rows.copy() for name, rows in arrays["snavely"].items()}
    given = _in_parts(arrays, [150], "Point")
    change(given["snavely"])
    with pytest.raises(InputError, match=re.escape(message)):
        sharing((snavely,), 2).solve(given)


@pytest.mark.parametrize("devices", [1, 2])
def test_node_parts_that_do_not_fit(devices: int) -> None:
    arrays = _bundle()
    points = arrays["Point"]
    solver = sharing((snavely,), devices)
    for parts, message in (
        ([points[:9], points[9:, :2]], "node type Point: part 1 has shape"),
        ([points[:9], points[9:].astype(np.float32)], "node type Point: part 1 has dtype float32"),
        ([caspar.BlockedArray.from_rows(points)], "pass its to_rows()"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            solver.solve({**arrays, "Point": parts})


def test_uneven_parts_are_told() -> None:
    arrays = _bundle()
    solver = sharing((snavely,), 2, precision="float64")
    for place, is_told in ((150, False), (20, True)):
        result = solver.solve(_in_parts(arrays, [place], "Point"), max_iterations=1)
        found = [one for one in result.remarks if "of the instances of factors" in one]
        assert len(found) == int(is_told)
    assert re.match(r"Device 1 had 9\d % of the instances of factors, and 2 devices", found[0])


def test_lists_of_rows_are_no_parts() -> None:
    arrays = _bundle()
    result = sharing((snavely,), 2).solve({**arrays, "Point": [*arrays["Point"]]})
    assert isinstance(result.values["Point"], np.ndarray)
