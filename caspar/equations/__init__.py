"""The normal equations, written in kernel algebra.

A traced factor or node type and the form of the solver give the kernels that an iteration needs, as
`KernelSpec`s. Expressions come from `frontend`; nothing here imports SymPy, and how a kernel is
scheduled or spelt is not known.
"""
