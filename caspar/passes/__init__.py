"""Passes from the expression graph to the scheduled program.

`pipeline` is the list of them; those that rewrite a graph are in `graph`, those that make a program
in `scheduling`. They do not know where a graph comes from, nor how an instruction is spelt.
"""
