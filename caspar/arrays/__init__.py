"""Arrays that users share with caspar: blocked arrays, prepared indices, conversions.

What comes in is what users have (NumPy, CuPy, DLPack); what goes out is memory that kernels read
and write. This room knows layouts and devices. It knows neither factors nor solvers.
"""
