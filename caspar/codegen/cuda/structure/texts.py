"""Kernels that prepare a structure and check values, to be compiled before they are needed."""

from collections.abc import Mapping
from functools import cache

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.checks import (
    CHECKSUM_KERNEL,
    CHECKSUM_SOURCE,
    COPY_KERNEL,
    COPY_SOURCE,
    INDEX_KERNELS,
    INDEX_SOURCE,
    ROW_KERNELS,
    ROW_SOURCE,
    VALUE_KERNELS,
    VALUE_SOURCE,
)
from caspar.codegen.cuda.structure.node_tiles import NODE_TILE_KERNELS, NODE_TILE_SOURCE
from caspar.codegen.cuda.structure.tiles import SORT_KERNELS, TILE_KERNELS, TILE_SOURCE, sort_source

Texts = Mapping[str, tuple[str, ...]]
"""Names of kernels by their text."""


@cache
def structure_texts(*, tiled: bool) -> tuple[Texts, ...]:
    """Groups of texts; those of a group may be compiled as one.

    `tiled`: there are tiles that do not split nodes, of the usual size.
    """
    small: dict[str, tuple[str, ...]] = {
        CHECKSUM_SOURCE: (CHECKSUM_KERNEL,),
        ROW_SOURCE: tuple(ROW_KERNELS.values()),
        COPY_SOURCE: (COPY_KERNEL,),
        TILE_SOURCE: TILE_KERNELS,
        VALUE_SOURCE: tuple(name for names in VALUE_KERNELS.values() for name in names),
    }
    if not tiled:
        return (small,)
    small[INDEX_SOURCE] = INDEX_KERNELS
    return (small, {NODE_TILE_SOURCE: NODE_TILE_KERNELS}, {sort_source(BLOCK_SIZE): SORT_KERNELS})
