"""Priors, known besides the pixels: positions of cameras, gravity, intrinsics.

`priors` has what a user gives. `arrays` brings a model to where priors say it is, has their
residuals, and adds these to what a solver takes.
"""
