"""Checks of a solve's end: a file for each reason to doubt it, listed in `table`.

Input: the course of a solve whose iterations have ended. Output: that they go on, another status,
a reason to go on in float64, or remarks for users. Each module names the problem that needs it.
"""
