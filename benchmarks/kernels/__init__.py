"""Our generated kernels beside the reference's, as machine code: registers, spills, instructions.

`python -m benchmarks.kernels` needs nvcc, nvdisasm and SymForce, and no GPU. For the residuals of
`cases` it takes our kernels (`own`) and those that `symforce.caspar` 0.12 generates (`reference`,
in a process of its own: SymForce's epsilon is set once for each), compiles both with one nvcc
(`machine_code`), and writes a table and JSON (`report`).

What is compared with what, see `cases.Role`; how instructions are counted, see `machine_code`.
"""
