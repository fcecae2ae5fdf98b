"""Source text from programs: CUDA C for NVRTC, Python for Numba."""
