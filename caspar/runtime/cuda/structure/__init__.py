"""Indices on the device: tiles, their order, checks, checksums.

The kernels are those of `codegen.cuda.structure`. On the processor `memory.tiling` does the same.
"""
