"""Linear solvers: conjugate gradients with preconditioners, and matrices that are factorised.

Each solves the damped system that an iteration has; the methods with more than a list of launches
have rooms of their own. They do not know Levenberg-Marquardt.
"""
