"""The choices of `auto`: eliminated types, the way to sum, stored or recomputed Jacobians.

Each choice is a function of the factors and, if it needs them, of counts. A user's own choice is
never changed.
"""
