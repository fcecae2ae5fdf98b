"""Figures of a kernel on the device: time, bytes moved, what more would be gained.

`profile` measures a call and compares it with what the device can do. Nothing here changes what a
kernel computes.
"""
