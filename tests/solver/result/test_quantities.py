import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caspar.solver.result.quantities import (
    bytes_text,
    change_text,
    cost_text,
    count_text,
    time_text,
)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0.0, "0"),
        (30378.636, "30,378.6"),
        (4413239.314, "4,413,240"),
        (0.0123456789, "0.0123457"),
        (999999.9, "1,000,000"),
        (6.2025e7, "62,025,000"),
        (1.23456789e12, "1.23457e+12"),
        (1.5e-9, "1.50000e-09"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_cost(cost: float, text: str) -> None:
    assert cost_text(cost) == text


@given(st.floats(1e-30, 1e30), st.integers(2, 15))
def test_cost_has_the_digits_asked_for(cost: float, digits: int) -> None:
    shown = float(cost_text(cost, digits).replace(",", ""))
    assert shown == pytest.approx(cost, rel=0.5001 * 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (1000.0, 10.0, "100 times lower"),
        (4413239.3, 30378.6, "145 times lower"),
        (1000.0, 996.0, "0.4 % lower"),
        (1000.0, 1e-7, "1.0e+10 times lower"),
        (1000.0, 0.0, "to zero"),
        (5.0, 5.0, "unchanged"),
        (5.0, 6.0, "higher"),
        (0.0, 0.0, ""),
        (math.nan, 1.0, ""),
        (1.0, math.inf, ""),
    ],
)
def test_change(before: float, after: float, text: str) -> None:
    assert change_text(before, after) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (3.2e-7, "0.32 us"),
        (0.000999999, "1.00 ms"),
        (0.0123456, "12.3 ms"),
        (0.99951, "1.00 s"),
        (99.96, "100 s"),
        (12345.6, "12,346 s"),
        (math.nan, "?"),
    ],
)
def test_time(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1024, "1.00 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (12345678, "11.8 MiB"),
        (150 << 30, "150 GiB"),
        (5000 << 40, "5,000 TiB"),
    ],
)
def test_bytes(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text


def test_count() -> None:
    assert (count_text(0, "point"), count_text(1, "point")) == ("0 points", "1 point")
    assert count_text(1234, "point") == "1,234 points"
