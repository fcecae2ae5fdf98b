"""The processor as a backend: LLVM compiles, threads run.

`backend` is the class, `machine_code` keeps what was compiled in caspar's cache, `direct`
factorises matrices. It runs the same programs as the GPU does.
"""
