"""Sums over items: of all, of blocks, of those that share an object.

They are made in shared memory, by atomics or in a fixed order, in tiles or in runs. What is summed
is not known here.
"""
