"""What a solve gives: status, values, costs, sizes and times, as objects and as text.

`result` has the classes, `report` prints them. It does not know how a solve works.
"""
