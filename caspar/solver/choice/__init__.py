"""What `auto` takes: which types are eliminated, how sums are taken, where Jacobians are.

Each choice is a function of the factors and, where it needs them, of counts. What users chose is
never changed.
"""
