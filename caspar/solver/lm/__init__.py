"""Levenberg-Marquardt: steps, damping, when to stop, and whether the end is an honest one.

`minimize` is the algorithm, `policy` decides, and `checks` judge an end. `normal_equations`
is the system on the device that steps are tried with. None but the last knows a kernel by name.
"""
