"""`python -m caspar`: the command line where its script is not on the path."""

import os
import sys

if not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [os.getcwd()]:
    # `python -m` puts the working folder first, and a `numpy.py` in it would be run. caspar itself
    # may have been found there; what is loaded stays so.
    del sys.path[0]

from caspar.cli import main

if __name__ == "__main__":
    sys.exit(main())
