"""Texts become loaded kernels: each compiled once, several at the same time.

`modules` loads what a text has, `kernel` chooses block size and options, `compilation` runs it in
threads, and looks for better options while the kernels are used.
"""
