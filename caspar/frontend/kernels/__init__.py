"""Kernels that users write: functions with marked inputs and outputs, traced.

`trace` runs the function on symbols and gives a `TracedKernel`. Calls with arrays are in
`caspar.kernels`.
"""
