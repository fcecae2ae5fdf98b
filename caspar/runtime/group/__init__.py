"""Several devices that work on one problem: what each adds up with the others.

A member is a backend whose launches may stand beside sums over all members; `add_up` is where they
meet. By threads of one process on the processor (`threads`), by NCCL on CUDA
(`runtime.cuda.nccl`).
"""
