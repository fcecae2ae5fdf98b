"""The result of a solve: status, values, costs, sizes and times, as objects and as text.

`result` has the classes, `report` prints them. Neither knows how a solve works.
"""
