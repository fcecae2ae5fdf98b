"""One kernel on the device: compile, bind, launch, time; and what the host writes and reads.

`compile` finds the number of threads that suits a kernel, `launch` fixes its arguments. Several
kernels in a row are in `loop`.
"""
