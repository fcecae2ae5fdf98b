"""The table of a solve's arrays."""

import pytest

from caspar.equations.parts import FactorPart, NodePart, SolverPart
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.options import Precision
from caspar.solver.plan.arena import OwnedPart

NODE = NodeType("Pose", float, storage_dim=7, tangent_dim=6)


def test_each_name_is_of_one_row() -> None:
    for table in (NodePart, FactorPart, SolverPart):
        texts = [part.text for part in table]
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("part", NodePart, ids=lambda part: part.text)
def test_sums_are_rows_of_their_own_type(part: NodePart) -> None:
    """A row of 6 float64 takes two requests of 32 bytes, chunks of 2 take none of padding."""
    types = TYPES[Precision.MIXED]
    reduced, eliminated = (
        part.object_scalars(NODE, types, eliminated=eliminated) for eliminated in (False, True)
    )
    if part in (NodePart.GRADIENT, NodePart.REDUCED_GRADIENT):
        assert (reduced, eliminated) == (8, 6)
        assert part.dtype(types) is DType.FLOAT64
    elif part.dtype(types) is DType.FLOAT32:
        assert reduced == eliminated >= part.dim(NODE)


def test_keys_as_tables_show_them() -> None:
    assert OwnedPart(NodePart.NODES, "Pose").text == "Pose.nodes"
    assert OwnedPart(FactorPart.RESIDUAL, "edge").text == "edge.residual"
    assert OwnedPart(FactorPart.CONSTANT, "edge", "seen").text == "edge.seen__value"
    assert OwnedPart(NodePart.GRADIENT, "edge", "pose").text == "edge.pose__gradient"
