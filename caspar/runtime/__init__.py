"""Backends: compile generated sources, bind them to memory, run them.

`backend` says what a backend can do, `select` chooses one, `cache` keeps what was compiled. A
runtime does not know where a source came from. CuPy is imported under `cuda` and `nvidia` only,
llvmlite under `cpu` only.
"""
