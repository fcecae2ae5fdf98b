"""Launches that the device repeats until a flag is set.

As one cooperative kernel, as a graph that repeats itself, or as graphs that the host repeats: what
the device can do, in this order. What an iteration computes is not known here.
"""
