"""Running a user's function: signature, decisions it may not make, comparison with numbers.

`signature` reads arguments and markers, `conditions` refuses decisions by symbols, `on_numbers`
runs the function on numbers. Factors and kernels are traced with the same tools.
"""
