"""One kernel on the device: bind, launch, time; and what the host writes and reads.

`launch` fixes the arguments of what `runtime.cuda.compile` has compiled. Several kernels in a row
are in `loop`.
"""
