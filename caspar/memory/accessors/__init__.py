"""Access patterns: each is one class, with its text in CUDA C and for the processor.

An accessor loads the registers of an item, or stores them; sums over items are in `sums`, nodes in
tiles in `nodes`. Which argument has which pattern is decided by those who write a kernel.
"""
