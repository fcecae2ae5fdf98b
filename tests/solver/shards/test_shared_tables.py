"""Problems that look values up in tables, on several devices and in several processes."""

from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from tests.solver.ranks.processes import values_of
from tests.solver.shards.sharing import ALL_SHARE, ON_SEVERAL, assert_same_minimum, sharing

FRAMES, PATCHES = 4, 60
CLOSE: dict[str, Any] = {"cost_tolerance": 1e-12, "min_linear_tolerance": 1e-10}


class Frame(sf.V2):
    """Where a picture is."""


class Grey(sf.V1):
    """What a point of the scene looks like."""


class Picture(caspar.Grid, dims=2, method="cubic"):
    """Grey values."""


class Gain(caspar.Grid, dims=1, dtype="float16"):
    """A measured response, the same for all pictures."""


@caspar.factor
def shows(
    frame: Annotated[Frame, caspar.TunableShared],
    grey: Annotated[Grey, caspar.TunableShared],
    place: Annotated[sf.V2, caspar.ConstSequential],
    picture: Annotated[Picture, caspar.ConstIndexed],
    gain: Annotated[Gain, caspar.ConstUnique],
) -> sf.V1:
    """A picture shows a point of the scene."""
    x, y = place - frame
    return sf.V1(gain.at(grey[0]) - picture.at(x, y))


@caspar.factor
def known(
    frame: Annotated[Frame, caspar.TunableShared], where: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """A frame is about there."""
    return 0.1 * (frame - where)


def scene() -> dict[str, Any]:
    """Pictures of one scene from shifted places; instances in no order."""
    rng = np.random.default_rng(0)
    frames = rng.uniform(-2, 2, (FRAMES, 2))
    y, x = np.mgrid[:40, :50]
    pictures = np.stack([np.sin((x + dx) / 5) + np.cos((y + dy) / 4) + 3 for dx, dy in frames])
    places = rng.uniform([8, 8], [40, 30], (PATCHES, 2))
    frame, grey = (one.ravel() for one in np.mgrid[:FRAMES, :PATCHES])
    order = rng.permutation(len(frame))
    frame, grey = frame[order], grey[order]
    shown = np.sin(places[:, 0] / 5) + np.cos(places[:, 1] / 4) + 3
    return {
        "Frame": frames + rng.normal(0, 0.2, frames.shape),
        "Grey": shown[:, None] + 0.1,
        "shows": {
            "frame": frame,
            "grey": grey,
            "place": places[grey],
            "picture": {"values": pictures, "index": frame},
            "gain": 1.1 * np.arange(8.0) + 0.02 * np.arange(8.0) ** 2,
        },
        "known": {"frame": np.arange(FRAMES), "where": frames},
    }


def alone(arrays: dict[str, Any]) -> caspar.SolveResult:
    solver = caspar.Solver([shows, known], backend="cpu", precision="float64")
    return solver.solve(arrays, **CLOSE)


@ON_SEVERAL
def test_several_devices_find_the_same_minimum(backend: Any, devices: int) -> None:
    arrays = scene()
    solver = sharing((shows, known), devices, backend, precision="float64")
    found = solver.solve(arrays, **CLOSE)
    assert found.device.startswith(f"{devices} x ")
    assert_same_minimum(found, alone(arrays), 1e-9, 1e-6)


def test_an_index_in_parts_names_tables() -> None:
    arrays = scene()
    wanted = alone(arrays)
    own = arrays["shows"]
    cut: dict[str, Any] = {name: np.split(own[name], [100]) for name in ("frame", "grey", "place")}
    cut["picture"] = {**own["picture"], "index": np.split(own["picture"]["index"], [100])}
    given = {**arrays, "shows": {**own, **cut}}
    found = sharing((shows, known), 2, "cpu", precision="float64").solve(given, **CLOSE)
    assert_same_minimum(found, wanted, 1e-9, 1e-6)


def part_of_rank(ranks: Any) -> Any:
    """A solve in which each process has the instances of some pictures, and no other pictures."""
    arrays = scene()
    own = arrays["shows"]
    kept = own["frame"] % ranks.size == ranks.rank
    mine = np.arange(FRAMES) % ranks.size == ranks.rank
    numbers = np.cumsum(mine) - 1
    pictures = {
        "values": own["picture"]["values"][mine],
        "index": numbers[own["picture"]["index"][kept]],
    }
    arrays["shows"] = {
        **{name: own[name][kept] for name in ("frame", "grey", "place")},
        "picture": pictures,
        "gain": own["gain"],
    }
    if ranks.rank > 0:
        arrays["known"] = {name: rows[:0] for name, rows in arrays["known"].items()}
    solver = caspar.Solver(
        [shows, known], devices=ranks, backend="cpu", precision="float64", limits=ALL_SHARE
    )
    return solver.solve(arrays, **CLOSE)


def test_processes_have_tables_of_their_own() -> None:
    found = values_of(2, part_of_rank)
    wanted = alone(scene())
    for result in found:
        assert result.device.startswith("2 x ")
        assert_allclose(result.final_cost, wanted.final_cost, rtol=1e-9)
        assert_allclose(result.values["Frame"], wanted.values["Frame"], atol=1e-6)
