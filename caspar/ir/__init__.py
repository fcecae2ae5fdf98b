"""Intermediate representations: the expression graph and the scheduled program.

Both print and evaluate in NumPy, and know neither SymPy nor the spelling of instructions.
"""
