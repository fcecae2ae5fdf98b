"""Kernels for the processor, as text that `codegen.llvm` translates.

`kernel` writes the function of a program, `ops` the text of each operation. How it is compiled and
called is the business of `runtime.cpu`.
"""
