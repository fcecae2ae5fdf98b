"""Bundle adjustment of COLMAP models: from options and arrays to factors, and back.

`options` says what is refined, `observations` which keypoints take part, `problem` what is constant
and `gauge` which poses or points hold the gauge. `factors` has the residuals of every camera model,
and `solve_arrays` makes of a problem what a solver takes. `summary` is what a caller gets.
"""
