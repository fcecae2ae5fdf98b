"""Users' arrays, checked and brought to the device.

`array_reader` reads one array, `problem` all of them; errors name factor, argument and what is
allowed. Nothing is laid out here.
"""
