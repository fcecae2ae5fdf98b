"""The page of the guide lists what the library has."""

import inspect
from pathlib import Path

from caspar.factors import rotations, whitening
from caspar.frontend.factors.trace import trace
from tests.factors.every_factor import FACTORS, factors
from tests.pages import table

PAGE = Path(__file__).parents[2] / "docs/guide/factor_library.md"


def test_factors_and_their_arguments() -> None:
    rows = {
        name: [one.strip() for one in arguments.split(",")]
        for name, *_, arguments, _ in table([PAGE], "factor")
    }
    assert set(rows) == {factor.name for factor in FACTORS.values()}
    for name, said in rows.items():
        maker = getattr(factors, name)
        needs_camera = "camera" in inspect.signature(maker).parameters
        made = maker("PINHOLE", noise="unit") if needs_camera else maker(noise="unit")
        assert said == [one.source for one in trace(made).arguments], name


def test_noise() -> None:
    said = [name.strip('"') for name, *_ in table([PAGE], "noise")]
    assert said == [noise.value for noise in whitening.Noise]


def test_charts() -> None:
    said = [name.strip('"') for name, *_ in table([PAGE], "chart")]
    assert said == [chart.value for chart in rotations.Chart]


def test_makers_say_what_they_make() -> None:
    """Each docstring has the arguments of the factor, the choices, and the errors."""
    for name in {factor.name for factor in FACTORS.values()}:
        text = inspect.getdoc(getattr(factors, name)) or ""
        for part in ("Arguments of the factor:", "Args:", "Raises:", "markers:"):
            assert part in text, f"{name}: {part}"
