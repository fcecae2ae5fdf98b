"""Kernels for the processor as LLVM IR.

Input: the text that `codegen.cpu` writes. Output: a module for LLVM. Knows nothing of how it is
compiled and run.
"""
