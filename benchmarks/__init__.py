"""Measurements: caspar beside its peers, in one run, as tables and JSON.

`python -m benchmarks` runs what the machine can: the CPU backend everywhere, CUDA and the
reference where a device answers.
"""
