"""Memory access by generated kernels, timed on a GPU: the reference's, and what stands beside it.

`python -m benchmarks.reference_kernels --folder OUT --work DIR` needs a GPU, CuPy, nvcc, CMake,
pybind11 and SymForce; about a minute. `generate` declares the reference's kernels, `tasks` says
what is timed, on which arrays, `reference` does it with the reference's library, `measure` times
and checks, `report` writes tables and JSON.
"""
