"""The text of kernels in which a thread or a warp solves one whole problem.

`text` has the statements that such a kernel is written with, `cpu_text` and `cuda_text` how each
language spells them. Input: statements and scheduled programs. Output: a `KernelSource`.
"""
