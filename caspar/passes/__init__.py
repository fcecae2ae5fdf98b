"""Passes from the expression graph to the scheduled program, one a file; see `pipeline`."""
