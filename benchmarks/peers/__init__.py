"""Other libraries on the same problems, each in a process of its own.

`launch` starts the workers and takes their answers; `worker` is what they share; each of the
others knows one library. A worker needs NumPy, SciPy and its library, not caspar, so that the
interpreter may be another one (`--peers-python`).
"""
