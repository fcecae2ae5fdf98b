"""Passes from a graph to a graph with the same values, one a file.

Each lowers the price of what is computed, as `cost` has it. Their order is in `pipeline`.
"""
