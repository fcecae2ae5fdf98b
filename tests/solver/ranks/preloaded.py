"""What processes of tests have in common before they fork: a problem, and its factors traced."""

import caspar
from caspar.bundle_adjustment import snavely
from tests.solver.ranks import work

work.bundle()
caspar.Solver([snavely], backend="cpu", precision="float64")
