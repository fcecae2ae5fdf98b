"""Programs in forks of a new interpreter that has imported packages of others, and nothing else.

Most of the time that such a program takes in an interpreter of its own goes into NumPy, SciPy,
SymPy and LLVM.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

IN_FORKS = """
import os, signal, sys, traceback
import llvmlite.binding, numpy, scipy.optimize, scipy.sparse.linalg, symengine, sympy
before, *programs = sys.argv[1:]
exec(before)
for program in programs:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""


def run_in_forks(
    programs: Sequence[str], *options: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run each program in a fork of its own, one after the other, until one fails.

    Args:
        programs: Python source. Neither caspar nor SymForce has been imported, unless by `before`.
        options: Of the interpreter.
        before: Python source that runs once, ahead of all forks.
    """
    return subprocess.run(
        [sys.executable, *options, "-c", IN_FORKS, before, *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
