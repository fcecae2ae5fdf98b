"""What was traced, as text."""

from typing import Annotated

import symforce.symbolic as sf

import caspar
from caspar.frontend.printing import print_factor, print_retraction
from caspar.frontend.trace import trace


class Spot(sf.V2):
    """A place in the plane."""


class Turn(sf.Rot2):
    """A rotation of the plane."""


@caspar.factor
def seen(
    spot: Annotated[Spot, caspar.TunableShared],
    turn: Annotated[Turn, caspar.TunableUnique],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    moved = turn * spot
    return moved / moved.squared_norm() - measured


@caspar.factor
def taken(x0: Annotated[Spot, caspar.TunableShared]) -> sf.V1:
    return sf.V1(x0.squared_norm() + sf.sin(x0.squared_norm()))


def test_arguments_and_residual_of_a_factor() -> None:
    lines = print_factor(trace(seen)).splitlines()
    assert lines[:4] == [
        "factor seen: 2 residual rows",
        "  spot: TunableShared Spot, storage 2, tangent 2: spot[0], spot[1]",
        "  turn: TunableUnique Turn, storage 2, tangent 1: turn_re, turn_im",
        "  measured: ConstSequential, storage 2: measured[0], measured[1]",
    ]
    names = [line.split(" = ")[0].strip() for line in lines[4:]]
    assert names[-2:] == ["residual[0]", "residual[1]"]
    assert names[:-2] == [f"x{number}" for number in range(len(names) - 2)]
    assert len(names) > 2


def test_rows_name_the_users_line() -> None:
    rows = [line for line in print_factor(trace(seen)).splitlines() if "residual[" in line]
    assert all("# seen: return moved / moved.squared_norm() - measured" in row for row in rows)


def test_names_of_sub_expressions_are_not_those_of_arguments() -> None:
    text = print_factor(trace(taken))
    assert "  x_0 = x0[0]**2 + x0[1]**2\n" in text
    assert "residual[0] = x_0 + sin(x_0)" in text


def test_a_node_type_prints_its_retraction() -> None:
    node = trace(seen).nodes[1].node
    assert node is not None
    lines = print_retraction(node).splitlines()
    assert lines[0] == "node type Turn: storage 2, tangent 1"
    assert [line.split(" = ")[0].strip() for line in lines[-2:]] == ["moved[0]", "moved[1]"]
    assert lines[2] == "  step: turn_step0"
    assert any("turn_step0" in line for line in lines[3:])
