"""Access to nodes that a tile of factors shares.

A tile has its nodes at hand: they are read once, and what is added to them is summed before it is
written. `memory.tiling` makes the tiles.
"""
