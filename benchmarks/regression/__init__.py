"""Curve fits and small test functions from the literature, solved by caspar and by its peers.

A `Problem` holds a residual function, data, starts and known minima; every solver gets the same.
`python -m benchmarks.regression` solves them and writes a page of counts and failures.
"""
