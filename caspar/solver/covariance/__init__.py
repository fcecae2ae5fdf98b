"""Measure how well residuals determine values: covariances, standard errors, free directions.

`estimate` makes a `Covariance` from arrays: `normal.instance_kernels` evaluate the derivatives of
all factors, `normal.matrix` sums them and eliminates, one of the inverses gives the requested
blocks. Everything is in float64, whatever the precision of the solver is.
"""
