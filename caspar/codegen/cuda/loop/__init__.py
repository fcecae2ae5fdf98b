"""Several kernels as one: a loop that the device runs without the host.

`fuse` makes one text of the texts of kernels, with the barriers of `barriers` between them. What
the kernels compute is not known here.
"""
