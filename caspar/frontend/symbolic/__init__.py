"""Symbols and expressions: SymForce's types, derivatives, lowering to a graph.

`lower` makes a `Graph` of expressions, `derive` adds derivatives, `lines` knows which line of the
user's function an expression is from. It does not know what a factor is.
"""
