"""The solver: checks of the problem, plan, normal equations, Levenberg-Marquardt, result.

`solver` is the class that users have; `solver_kernels` has the kernels, `preparation` makes the
linearised system of a problem, `active` leaves out factors without instances. It does not know
SymPy, nor how a kernel is written in C.
"""
