"""Which scalars of a tangent share a block."""

from dataclasses import dataclass

import pytest
import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

from caspar.equations.node_blocks import triangle
from caspar.frontend.factors.block_parts import (
    MAX_PART,
    MAX_WHOLE_BLOCK,
    block_dim,
    block_parts,
    block_places,
)
from caspar.frontend.factors.trace import NodeType


class V20(sf.Matrix):
    """A long vector."""

    SHAPE = (20, 1)


V24 = sf.matrix_type_from_shape((24, 1))
V25 = sf.matrix_type_from_shape((25, 1))


@dataclass
class Head:
    pose: sf.Pose3
    gain: sf.V1
    focal: sf.V2
    shape: V20


@dataclass
class Pair:
    left: Head
    right: sf.Rot3


def node(declared: type) -> NodeType:
    dims = StorageOps.storage_dim(declared), LieGroupOps.tangent_dim(declared)
    return NodeType(declared.__name__, declared, *dims)


@pytest.mark.parametrize("declared", [sf.V1, sf.Pose3, sf.Unit3, V20, V24])
def test_small_tangents_have_one_block(declared: type) -> None:
    dim = LieGroupOps.tangent_dim(declared)
    assert dim <= MAX_WHOLE_BLOCK
    assert block_parts(node(declared)) == (range(dim),)
    assert block_places(node(declared)) == triangle(dim)


def test_vectors_are_cut_evenly() -> None:
    assert [len(part) for part in block_parts(node(V25))] == [5, 5, 5, 5, 5]


def test_fields_stay_whole_and_small_ones_share() -> None:
    assert [len(part) for part in block_parts(node(Head))] == [6, 3, 5, 5, 5, 5]
    assert [len(part) for part in block_parts(node(Pair))] == [6, 3, 5, 5, 5, 5, 3]


@pytest.mark.parametrize("declared", [V25, Head, Pair])
def test_parts_cover_the_tangent_in_order(declared: type) -> None:
    parts = block_parts(node(declared))
    assert [place for part in parts for place in part] == list(
        range(LieGroupOps.tangent_dim(declared))
    )
    assert max(len(part) for part in parts) <= MAX_PART
    places = block_places(node(declared))
    assert len(places) == len(set(places)) == block_dim(node(declared))
    assert all(row >= column for row, column in places)
