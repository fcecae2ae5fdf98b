"""Launches: kernels bound to the plan's memory, in the order of an iteration.

`launches` binds, `phases` puts in order. When something runs is decided in `lm`.
"""
