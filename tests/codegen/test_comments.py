"""Generated code carries the lines of the user's function, and no such line can break it."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.codegen.body import MAX_COMMENT, comment_text
from caspar.codegen.cuda.header import HEADER
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.equations.factor_kernels import factor_kernels
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.options import Precision
from tests.codegen.test_golden import SUFFIXES
from tests.harness import find_compiler
from tests.support_cases import KernelCase
from tests.support_kernels import CompiledKernels, assert_exact

NASTY = {
    "backslash": "path = 'C:\\",
    "backslash and blanks": "y = x + \\  ",
    "trigraph": "really??/",
    "two backslashes": "y = '\\\\",
    "line break": "y = 1\nr0 = 0.0f;",
    "carriage return": "y = 1\rr0 = 0.0f;",
    "separators": "y\u2028r0 = 0;\x85\x0b\x0c",
    "control characters": "y = '\x1b[0m\x00'",
    "other letters": "größe = 2 * 点",
    "end of a comment": "y */ r0 = 0; /*",
    "long": "y = " + "x + " * 100,
    "long, cut at a backslash": "\\" * 1000,
    "quotes": "\"\"\" '''",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=list(NASTY))
def test_text_of_a_comment(text: str) -> None:
    made = comment_text(text)
    assert made.isascii()
    assert made.isprintable()
    assert len(made) <= MAX_COMMENT
    assert not made.endswith(("\\", " "))
    assert "??/" not in made


def test_plain_text_stays() -> None:
    text = "snavely: x, y, depth = cam.cam_T_world * point"
    assert comment_text(text) == text


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_no_comment_hides_or_adds_code() -> None:
    """Each value is computed behind a nasty comment: none may be lost or changed."""
    kernel = KernelBuilder("commented", DType.FLOAT64)
    (value,) = kernel.read("x", 1, DType.FLOAT64, ReadSequential())
    made = []
    for number, text in enumerate(NASTY.values(), 2):
        kernel.graph.origin = text
        made.append(value * float(number))
    kernel.graph.origin = NASTY["backslash"]
    kernel.write("y", made, DType.FLOAT64, WriteSequential())
    spec = kernel.build()
    rows = np.arange(5.0)[:, None] + 1.0
    for run in CompiledKernels([spec]).run(KernelCase(spec, 5, {"x": rows})):
        assert_exact(run, DType.FLOAT64)


class Place(sf.V2):
    """A node type."""


def squashed(value: sf.Scalar, limit: sf.Scalar) -> sf.Scalar:
    """A helper: its lines are shown too."""
    return limit * sf.tanh(value / limit)


@caspar.factor
def distance(
    place: Annotated[Place, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V1:
    """A distance, squashed."""
    offset = place - measured
    length = sf.sqrt(
        offset.squared_norm() + sf.epsilon()  # never zero
    )
    return sf.V1(squashed(length, 3))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_lines(target: str, golden: Callable[[str, str], None]) -> None:
    score = factor_kernels(trace(distance), TYPES[Precision.MIXED]).kernels["score"]
    source = compile_kernel(score, TARGETS[target])
    golden(source.text.replace(HEADER, "// (header)\n"), SUFFIXES[target])
