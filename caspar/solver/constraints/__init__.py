"""Constraints: values that lower the cost and meet equations and inequalities between them.

From factors and constraints, multipliers and penalties make a problem without constraints, which
every solver takes; Newton's method on the active constraints then finds the last digits. Results
get multipliers and violations. See docs/design/0047-constraints.md.
"""
