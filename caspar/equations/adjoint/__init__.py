"""Derivatives for gradients through a solve, written in kernel algebra.

Input: a factor. Output: kernels that write, for each instance, second derivatives of its cost by
the tangents of its nodes, and derivatives of its gradient by everything that it reads. Sums over
instances are array code.
"""
