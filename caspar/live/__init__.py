"""Problems that live: nodes and factors come and go, and values follow at once.

Input: node values and factor arguments, which are named by ids. Output: values after each update.
`tables` keep what was added, `linearization` evaluates it in compiled kernels on the processor,
`block_factorization` solves for steps, `gaussian` takes nodes out and
keeps what they knew, and `problem` is what users see.
"""
