"""What gradients through a solve are made of, written in kernel algebra.

From a factor: second derivatives of its cost by the tangents of its nodes, derivatives of its
gradient by everything that it reads. To kernels that write them for each instance; sums over
instances are array code.
"""
