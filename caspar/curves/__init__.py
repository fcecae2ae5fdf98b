"""Curves written for other libraries, fitted to many data sets at once.

A model function over NumPy, a formula as text, a model of lmfit or of astropy becomes a
`caspar.BatchSolver`: `Curve.from_function`, `from_expression`, `from_lmfit`, `from_astropy`.
"""

from caspar.curves.curve import Curve, CurveFits

__all__ = ["Curve", "CurveFits"]
