"""Constraints in batches: each problem with its own multipliers and penalties.

Input: checked arrays of a batch and what its constraints are. A constraint is a factor with two
more constants; the kernel of the batch solves all open problems, and array code updates their
constants until each has ended. Output: the arrays of a `BatchResult`. See
docs/design/0047-constraints.md.
"""
