"""Queries of NVIDIA's tools and devices: driver, NVRTC, machine code, limits, occupancy.

Most of it needs no device: NVRTC compiles for any architecture. Nothing here launches a kernel.
"""
