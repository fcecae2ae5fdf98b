"""Source text from programs: CUDA C for NVRTC, kernel text and LLVM IR for the processor.

A scheduled program and the access of its arguments become a `KernelSource`: text, and what to pass
for each parameter; `targets` lists the languages. Nothing is compiled or loaded here, and nobody
asks where a program came from.
"""
