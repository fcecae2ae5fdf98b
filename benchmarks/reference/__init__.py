"""The peer of our benchmarks: `symforce.caspar` 0.12, called "the reference".

Three steps, one module each:

* `generate`: our residual -> the reference's C++/CUDA sources (needs SymForce), then `build`;
* `build`: sources -> a Python extension (needs CMake, nvcc, pybind11; no SymForce, no network);
* `solve`: arrays -> a `ReferenceRun` (needs a GPU; CuPy only to read the free device memory).
"""
