"""Levenberg-Marquardt: steps, damping, when to stop, and what to tell about the course.

`levenberg` decides, `normal_equations` is the system on the device that it tries steps with,
`stopping` has the rules. It knows no kernel by name.
"""
