"""Fitted values by the names of fields, in a result and in its report."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.report import text_report


@dataclass
class Decay:
    """Height, rate, and where it is measured."""

    height: sf.Scalar
    rate: sf.Scalar
    place: sf.V2


class Level(sf.V1): ...


@caspar.factor
def decay(
    curve: Annotated[Decay, caspar.TunableShared],
    level: Annotated[Level, caspar.TunableUnique],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    height = curve.height * sf.exp(-curve.rate * x[0]) + level[0]
    return sf.V3(height - y[0], *(curve.place - sf.V2(y[1], y[2])))


def solved(num_curves: int = 1, **changes: Any) -> caspar.SolveResult:
    x = np.tile(np.linspace(0.0, 3.0, 20), num_curves)[:, None]
    which = np.repeat(np.arange(num_curves), 20)
    height = (2.0 + which) * np.exp(-1.5 * x[:, 0]) + 0.25
    y = np.column_stack([height, np.full(len(x), 3.0), np.full(len(x), -4.0)])
    arrays = {
        "Decay": np.tile([1.0, 1.0, 0.0, 0.0], (num_curves, 1)),
        "Level": np.zeros((1, 1)),
        "decay": {"curve": which, "x": x, "y": y},
    }
    return caspar.Solver([decay], backend="cpu").solve({**arrays, **changes})


def test_fields_are_parts_of_the_values() -> None:
    result = solved(3)
    found = result.values_of("Decay")
    assert list(found) == ["height", "rate", "place"]
    assert_allclose(found["height"], [2.0, 3.0, 4.0], rtol=1e-6)
    assert_allclose(found["rate"], 1.5, rtol=1e-6)
    assert_allclose(found["place"], [[3.0, -4.0]] * 3, rtol=1e-6)
    assert np.shares_memory(found["rate"], result.values["Decay"])


def test_blocked_arrays_are_read_as_rows() -> None:
    rows = np.array([[1.0, 1.0, 0.0, 0.0]])
    result = solved(Decay=caspar.BlockedArray.from_rows(rows))
    assert_array_equal(result.values_of("Decay")["place"].shape, (1, 2))


def test_what_has_no_fields_is_refused() -> None:
    result = solved()
    with pytest.raises(InputError, match=r"node type Level is no dataclass.* values\['Level'\]"):
        result.values_of("Level")
    with pytest.raises(InputError, match=r"'Curve' is no node type of this result; these are Dec"):
        result.values_of("Curve")


def test_a_report_of_a_small_problem_shows_them() -> None:
    text = text_report(solved(), width=120)
    assert "fitted        Decay: height 2, rate 1.5, place (3, -4)\n" in text
    assert "fitted        Level: 0.25\n" in text
    several = text_report(solved(3), width=120)
    assert "fitted        Decay[2]: height 4, rate 1.5, place (3, -4)\n" in several
    assert "fitted" in text_report(solved(5), width=120)


def test_a_report_of_a_larger_one_does_not() -> None:
    assert "fitted" not in text_report(solved(6), width=120)
    assert solved(6).values["Decay"].size + 1 == 25
