"""Tiles: which items a block of threads works on, and which objects they share.

Indices become tiles, with the places of each item's objects in its tile. It works on NumPy arrays;
devices make the same tiles with `runtime.cuda.structure`.
"""
