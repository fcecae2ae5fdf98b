"""Direct solvers on the device: dense by cuSOLVER, sparse by cuDSS.

They are loaded when a solver first asks for one, by `runtime.factorization`. Which entries a matrix
has is decided by the solver.
"""
