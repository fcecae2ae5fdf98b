"""Levenberg-Marquardt: steps, damping, when to stop, and what to tell about the course.

`minimize` is the loop, `policy` decides with the rules of `stopping`, `normal_equations` is the
system on the device that steps are tried with. Neither loop nor policy knows a kernel by name.
"""
