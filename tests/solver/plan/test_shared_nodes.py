"""Nodes that all items of many tiles share: sums by stretches and by many lanes, and many slots."""

from typing import Annotated, Any

import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from caspar.memory import kernel
from caspar.memory.tiling import node_tiles
from caspar.solver.limits import Limits
from tests.covering import alternating
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.linear.linear_cases import MIXES, Glass, glimpse, hold, make_arrays, pin

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("ignore:node type"),
]


class Ground(sf.V1):
    """What a lens is known to be."""


@caspar.factor
def ground(
    glass: Annotated[Glass, caspar.TunableShared],
    known: Annotated[Ground, caspar.ConstSequential],
) -> sf.V1:
    return glass - known


@pytest.mark.parametrize(
    ("deterministic", "jacobian"), alternating([False, True], ["stored", "recompute"])
)
def test_cuda_texts_equal_the_processor(
    deterministic: bool, jacobian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = make_arrays(num_views=9, num_marks=300)
    wanted = ("View", "Mark", "Lens", "sight", "hold", "pin")
    arrays = {name: arrays[name] for name in wanted}
    choices: dict[str, Any] = {
        "precision": "float64",
        "linear_solver": "schur_pcg",
        "jacobian": jacobian,
    }
    expected = caspar.Solver(MIXES["shared lens"], backend="cpu", **choices).solve(
        arrays, max_iterations=4
    )

    monkeypatch.setattr(node_tiles, "num_shares", lambda num_tiles, _: -(-num_tiles // 3))
    monkeypatch.setattr(kernel, "LANES", ((2, 128),))
    solver = caspar.Solver(
        MIXES["shared lens"], deterministic=deterministic, **choices, backend=HarnessBackend(128)
    )
    found = solver.solve(arrays, max_iterations=4)
    assert any(name.endswith("_by_128") for name in solver.prepare(arrays).kernels)
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-9)
    for node, rows in expected.values.items():
        assert_allclose(found.values[node], rows, atol=1e-5)


@pytest.mark.parametrize(
    ("jacobian", "factors"),
    [
        ("recompute", (ground, hold, glimpse, pin)),
        *(
            pytest.param(jacobian, (glimpse, hold, pin), marks=pytest.mark.reliability)
            for jacobian in ("stored", "recompute")
        ),
        pytest.param("stored", (ground, hold, glimpse, pin), marks=pytest.mark.reliability),
    ],
)
def test_two_nodes_have_many_slots(jacobian: str, factors: tuple[caspar.Factor, ...]) -> None:
    arrays = make_arrays(num_views=30, num_marks=700)
    arrays = {name: arrays[name] for name in ("View", "Mark", "Glass", "glimpse", "hold", "pin")}
    if ground in factors:
        arrays["ground"] = {"glass": [0, 1], "known": [[2.0], [2.0]]}
    choices: dict[str, Any] = {
        "precision": "float64",
        "linear_solver": "schur_pcg",
        "jacobian": jacobian,
    }
    expected = caspar.Solver(factors, backend="cpu", **choices).solve(arrays, max_iterations=1)

    limits = Limits(items_of_slot=32)
    solver = caspar.Solver(factors, **choices, backend=HarnessBackend(128), limits=limits)
    found = solver.solve(arrays, max_iterations=1)
    assert "Glass__step_of_many_slots" in solver.prepare(arrays).kernels
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-9)
    for node, rows in expected.values.items():
        assert_allclose(found.values[node], rows, atol=1e-5)
