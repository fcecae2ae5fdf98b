"""Assign items to threads: the lines before and around the body of a CUDA kernel.

A block handles a tile, which has as many items as the block has threads. If items are few, all
blocks share them evenly. With node tiles a block handles a group: all tiles of a node that fills
several, or one tile, or a stretch of consecutive tiles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caspar.codegen.source import KernelSource
from caspar.memory.kernel import KernelSpec
from caspar.memory.tiling.node_tiles import HOLE, NARROW_BITS, WIDE_BITS

ACTIVE = "const bool active = own_item < count;"

_TILE = "const u32 tile = blockIdx.x;"
_ITEM = "const u32 item = active ? own_item : count - 1u;"

FEW_PLACES = {
    "tile": _TILE,
    "share": "const u32 share = (count + gridDim.x - 1u) / gridDim.x;",
    "own_item": "const u32 own_item = tile * share + threadIdx.x;",
    "active": "const bool active = threadIdx.x < share && own_item < count;",
    "item": _ITEM,
}
"""Names that every body of a kernel of few items may use."""

_TILED_PLACES = {
    "own_item": "const u32 own_item = tile * BLOCK_SIZE + threadIdx.x;",
    "item": "const u32 item = own_item;",
    "tiles_at": "const Place tiles_at = load_once(tiles_place + item);",
    "active": "const bool active = threadIdx.x < u32(tiles_items[tile]);",
    "tiles_begin": "const u32 tiles_begin = begin_of(tiles_at);",
    "tiles_position": "const u32 tiles_position = position_of(tiles_at);",
    "tiles_object": "const u32 tiles_object = partner_of(tiles_at);",
}
"""Holes have indices as if they were the first item of their tile, and anything for values."""

_OWN_TILE = (
    "u32 first_tile = blockIdx.x + u32(tiles_num_long_tiles - tiles_num_long);",
    "u32 last_tile = first_tile + 1u;",
)

_STRETCH = (
    "const u32 own_stretch = blockIdx.x - u32(tiles_num_long);",
    "u32 first_tile = u32(tiles_num_long_tiles) + own_stretch * u32(tiles_stretch)",
    "    + min(own_stretch, u32(tiles_num_longer));",
    "const u32 is_longer = own_stretch < u32(tiles_num_longer) ? 1u : 0u;",
    "u32 last_tile = min(first_tile + u32(tiles_stretch) + is_longer, u32(tiles_end));",
)
"""Tiles are dealt evenly, see `memory.tiling.node_tiles.num_shares`. The minimum says nothing new.
Without it the compiler counts tiles in uniform registers, and products of 29 M observations with
recomputed Jacobians take 4 % longer (CUDA 13.0, sm_90)."""

CHOSEN = """\
#ifndef CASPAR_CHOSEN
#define CASPAR_CHOSEN
template <bool VALUE> struct Chosen { static constexpr bool value = VALUE; };
#endif"""
"""The definition that the lines of a stretch need."""

_PLACES = """\
#ifndef CASPAR_PLACES
#define CASPAR_PLACES
// Where the items of an item's node begin in its tile, its own position, and its partner.
typedef {scalar} Place;
__device__ __forceinline__ u32 begin_of(Place place) {{ return u32(place) & {mask:#x}u; }}
__device__ __forceinline__ u32 position_of(Place place) {{
  return u32(place) >> {bits} & {mask:#x}u;
}}
__device__ __forceinline__ bool is_hole(Place place) {{
  return begin_of(place) == {hole}u && position_of(place) == 0u;
}}
__device__ __forceinline__ u32 partner_of(Place place) {{
{partner}
}}
#endif"""

_NARROW_PARTNER = """\
#if defined(__CUDA_ARCH__)
  return __byte_perm(place, 0u, 0x4432u);
#else
  return place >> 16;
#endif"""


def _places(bits: int, scalar: str, partner: str) -> str:
    mask = (1 << bits) - 1
    return _PLACES.format(bits=bits, mask=mask, hole=HOLE, scalar=scalar, partner=partner)


PLACES = _places(NARROW_BITS, "u32", _NARROW_PARTNER)
"""Definitions that the lines of tiled kernels need. A product of 5.0 M factors takes 111.4 us
recomputed and 99.6 with float16; 112.4 and 100.7 if the partner is shifted, not taken by bytes
(H200)."""

_WIDE_PLACES = _places(WIDE_BITS, "u64", f"  return u32(place >> {2 * WIDE_BITS});")


def with_wide_places(source: KernelSource) -> KernelSource:
    """The same kernel for places with 64 bits; see `memory.tiling.node_tiles.place_dtype`."""
    return replace(source, text=source.text.replace(PLACES, _WIDE_PLACES))


def item_places(spec: KernelSpec, num_items: int, leader: str | None) -> dict[str, str]:
    """Return the names that every body may use, each with the names before it."""
    if spec.stretches:
        active = "const bool active = !is_hole(tiles_at);"
        return {**_TILED_PLACES, "tiles_at": PLACES_AHEAD.declared, "active": active}
    if spec.tiled:
        return _TILED_PLACES
    turn = "tile" if num_items == 1 else f"(tile * {num_items}u + turn)"
    if spec.few_items:
        return FEW_PLACES
    found = {
        "tile": _TILE,
        "own_item": f"const u32 own_item = {turn} * BLOCK_SIZE + threadIdx.x;",
        "active": ACTIVE,
        "share": "const u32 share = BLOCK_SIZE;",
        "item": _ITEM,
    }
    if leader is not None:
        place = "active ? own_item : count - 1u"
        order = f"{leader}_order"
        found["tile"] = f"const u32 tile = spread_block(blockIdx.x, gridDim.x, {leader}_regions);"
        found["item"] = (
            f"const u32 place = {place};\n  const u32 item = {order} == nullptr ? place\n"
            f"      : tile * BLOCK_SIZE + ({order}[place] & 0x7fffu);"
        )
    return found


@dataclass(frozen=True)
class Ahead:
    """A load that a stretch makes for its next tile, by the number of an item.

    The variable of the next tile is `next_<name>`.
    """

    name: str
    vector: str
    load: Callable[[str], str]

    @property
    def declared(self) -> str:
        """The declaration in the loop; a long node goes over its tiles twice, and loads here."""
        return (
            f"const {self.vector} {self.name} = is_long ? {self.load('item')} : next_{self.name};"
        )

    @property
    def first(self) -> str:
        """The declaration before the loop."""
        return f"{self.vector} next_{self.name} = {self.load('first_item')};"

    @property
    def next(self) -> str:
        """The assignment in the loop."""
        return f"next_{self.name} = {self.load('next_item')};"


PLACES_AHEAD = Ahead("tiles_at", "Place", lambda item: f"load_once(tiles_place + {item})")
"""A stretch loads this from each tile."""


def loop_over_tiles(
    spec: KernelSpec,
    parts: tuple[Sequence[str], Sequence[str], Sequence[str]],
    num_sums: int,
    ahead: Sequence[Ahead],
    *,
    has_barriers: bool,
) -> list[str]:
    """A body in the loop over the tiles of the block's group.

    Blocks are short, and each load that waits for another one shows: where tiles begin is read of
    long nodes only, and in a stretch the indices of a tile are loaded while the one before is at
    work. Then long nodes have code of their own. A product of 29 M observations takes 850 us
    instead of 938 with recomputed Jacobians, 914 without code of their own; 720 instead of 739 with
    float16 (H200, stretches of 8).

    `parts` are lines before the loop, its body, and lines after it. A long node takes one more pass
    for each of `num_sums` exchanges. `ahead` is loaded for the first tile before the loop.
    `has_barriers`: the body has so many that the next tile needs none before it.
    """
    before, body, after = parts
    passes = f"for (u32 pass = is_long ? 0u : {num_sums}u; pass <= {num_sums}u; ++pass) {{"
    is_later = "is_long && tile > first_tile" if has_barriers else "tile > first_tile"
    first_loads = [
        "const u32 first_item = first_tile * BLOCK_SIZE + threadIdx.x;",
        *(one.first for one in ahead),
    ]
    loop = [
        *(first_loads if spec.stretches else []),
        "#pragma unroll 1",
        "for (u32 tile = first_tile; tile < last_tile; ++tile) {",
        f"  if ({is_later}) __syncthreads();",
        *(f"  {line}" for line in body),
        "}",
    ]
    if num_sums > 0:
        loop = ["#pragma unroll 1", passes, *(f"  {line}" for line in loop), "}"]
    loop = [*before, *loop, *after]
    if not spec.stretches:
        return [*_tiles_of_block("is_long", _OWN_TILE), *loop]
    return [
        *_tiles_of_block("has_long", _STRETCH),
        "const auto walk = [&](auto chosen) {",
        "  constexpr bool is_long = decltype(chosen)::value;",
        *(f"  {line}" for line in loop),
        "};",
        "if (has_long) walk(Chosen<true>()); else walk(Chosen<false>());",
    ]


def _tiles_of_block(has_long: str, short: Sequence[str]) -> list[str]:
    """The tiles of a block; `has_long` names whether they hold one node, `short` are others."""
    return [
        f"const bool {has_long} = blockIdx.x < u32(tiles_num_long);",
        *short,
        f"if ({has_long}) {{",
        "  first_tile = tiles_group_start[blockIdx.x];",
        "  last_tile = tiles_group_start[blockIdx.x + 1u];",
        "}",
    ]


def next_index_lines(indices: Sequence[Ahead]) -> list[str]:
    """Return the lines in the body of a stretch that load the indices of the next tile."""
    return [
        "const u32 next_item = item + BLOCK_SIZE;",
        "if (!is_long && tile + 1u < last_tile) {",
        *(f"  {one.next}" for one in indices),
        "}",
    ]


def next_stream_lines(streams: Sequence[Ahead]) -> list[str]:
    """Load the next tile once a body needs no more of what it has loaded.

    A product of 29 M observations with float16 takes 630 us instead of 638; with Jacobians in
    float32, which take twice the registers, no less (H200).
    """
    if len(streams) == 0:
        return []
    return ["if (!is_long && tile + 1u < last_tile) {", *(f"  {one.next}" for one in streams), "}"]
