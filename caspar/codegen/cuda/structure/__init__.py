"""CUDA kernels that are written by hand: tiles, their order, checks and checksums of indices.

They run when the structure of a problem is new, and work on indices alone. `runtime.cuda.structure`
compiles and launches them.
"""
