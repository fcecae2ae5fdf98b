"""Checks of a solve's end: `table` lists all reasons to doubt it.

Input: the course of a solve whose iterations have ended. Output: that they go on, another status,
a reason to go on in float64, or remarks for users. Each check names the problem that needs it.
"""
