"""A CUDA device as a backend: NVRTC compiles, CuPy loads and launches.

`backend` is the class; `launch` runs single kernels, `loop` repeats several, `structure` prepares
indices, `direct` factorises matrices. It does not know what a kernel computes.
"""
