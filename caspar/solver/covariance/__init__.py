"""How well the residuals determine the values: covariances, standard errors, free directions.

`estimate` is the way from arrays to a `Covariance`: `jacobians` evaluates the derivatives of all
factors, `normal_matrix` sums them and eliminates, one of the inverses finds what is asked for.
Everything is in float64, whatever the precision of the solver is.
"""
