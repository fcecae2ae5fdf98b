"""Runs of plain steps in compiled code: what host and code tell each other, and how it decides.

The decision is made of the text of `lm.policy`. The host takes every step that is not plain.
"""
