"""What is known besides pixels: positions of cameras, gravity, intrinsics.

`priors` has what a user gives, `alignment` brings a model to where priors say it is, `factors` has
their residuals, and `arrays` adds these to what a solver takes.
"""
