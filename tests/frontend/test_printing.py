"""What was traced, as text."""

from typing import Annotated

import symforce.symbolic as sf

import caspar
from caspar.frontend.factors.trace import trace
from caspar.frontend.printing import access_text, print_factor, print_kernel, print_retraction


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


@caspar.kernel
def step(
    spot: Annotated[sf.V2, caspar.ReadShared],
    path: Annotated[caspar.Pair[sf.V2], caspar.ReadPair],
    length: Annotated[sf.Symbol, caspar.ReadStridedWithDefault(1.0)],
) -> tuple[
    Annotated[caspar.Pair[sf.V2], caspar.AddPair], Annotated[sf.Symbol, caspar.WriteBlockSum(64)]
]:
    way = length * (path[1] - path[0])
    return caspar.Pair((way, spot)), way.squared_norm()


def test_arguments_and_outputs_of_a_kernel() -> None:
    lines = print_kernel(step.traced).splitlines()
    assert lines[:6] == [
        "kernel step: 3 arguments, 2 outputs",
        "  spot: V2 ReadShared, storage 2: spot[0], spot[1]",
        "  path: Pair[V2] ReadPair, storage 2: path_first[0], path_first[1]; path_second[0], "
        "path_second[1]",
        "  length: Symbol ReadStridedWithDefault(default=(1.0,)), storage 1: length",
        "  out0: Pair[V2] AddPair, storage 2",
        "  out1: Symbol WriteBlockSum(size=64), storage 1",
    ]
    rows = lines[-5:]
    names = ["out0.first[0]", "out0.first[1]", "out0.second[0]", "out0.second[1]", "out1[0]"]
    assert [row.split(" = ")[0].strip() for row in rows] == names
    assert rows[0] == "  out0.first[0] = x0*length  # step: way = length * (path[1] - path[0])"
    assert rows[3].startswith("  out0.second[1] = spot[1]")


def test_an_access_is_written_as_its_marker() -> None:
    assert access_text(caspar.ReadSequential()) == "ReadSequential"
    assert access_text(caspar.ReadPair()) == "ReadPair"
    assert access_text(caspar.WriteBlockSum()) == "WriteBlockSum"
    assert access_text(caspar.WriteBlockSum(512)) == "WriteBlockSum(size=512)"
