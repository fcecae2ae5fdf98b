"""Backends: compile generated sources, bind them to memory, run them.

A runtime does not know where a source came from. `runtime.cuda` is the only place with CuPy,
`runtime.cpu` and `runtime.cpu_support` the only ones with Numba.
"""
