"""The reduced system as a matrix, dense or sparse, factorised by a library.

`structure` has its pattern, `matrix` its memory, `system` the launches that fill it; `choice` says
when it pays. The factorisation itself is the backend's.
"""
