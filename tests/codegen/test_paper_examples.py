"""The examples of the paper, counted in the machine code of sm_90."""

from collections.abc import Callable, Sequence

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.runtime.nvidia.nvrtc import compile_kernel_text
from caspar.runtime.nvidia.sass import disassemble

Expressions = Callable[[GraphBuilder, Sequence[int]], list[int]]


def machine_code(write: Expressions, num_inputs: int) -> dict[str, int]:
    """Straight-line instructions by kind of a float32 kernel that computes some expressions."""
    text = source_text(write, num_inputs)
    return disassemble(compile_kernel_text(text, "sm_90").cubin)["example"].straight_line


def cuda_text(write: Expressions, num_inputs: int) -> str:
    """The body of the same kernel in CUDA C."""
    text = source_text(write, num_inputs)
    return text[text.index("example(") :]


def source_text(write: Expressions, num_inputs: int) -> str:
    """The kernel in CUDA C; it reads a whole chunk at least, so that a thread has one item."""
    kernel = KernelBuilder("example", DType.FLOAT32)
    read = kernel.read("x", max(num_inputs, 4), DType.FLOAT32, ReadSequential())
    values = write(kernel.graph, [scalar.value for scalar in read[:num_inputs]])
    results = [Scalar(kernel.graph, value) for value in values]
    kernel.write("y", results, DType.FLOAT32, WriteSequential())
    return compile_kernel(kernel.build(), TARGETS["cuda"]).text


def test_partial_subexpressions() -> None:
    """r0 = a+b+c, r1 = a+c+d+e, r2 = a+c+e: nvcc alone needs 6 additions."""

    def write(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        a, b, c, d, e = v
        return [builder.sum([a, b, c]), builder.sum([a, c, d, e]), builder.sum([a, c, e])]

    counts = machine_code(write, 5)
    assert counts["FADD"] == 4
    assert counts["FFMA"] == counts["FMUL"] == 0


def test_sine_and_cosine() -> None:
    """[sin(x1) + x0 + x1 + 1, cos(x1) - 1], the graph of the paper's figure."""

    def write(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        one = builder.const(1.0)
        sine, cosine = builder.unary(Op.SIN, v[1]), builder.unary(Op.COS, v[1])
        return [builder.sum([sine, v[0], v[1], one]), builder.sub(cosine, one)]

    text = cuda_text(write, 2)
    assert text.count("sincosf(") == 1
    assert "sinf(" not in text
    assert "cosf(" not in text.replace("sincosf(", "")


def test_sixth_root() -> None:
    def write(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        return [builder.pow(v[0], -1 / 6)]

    text = cuda_text(write, 1)
    assert text.count("sqrtf(") == text.count("rcbrtf(") == 1
    assert text.index("sqrtf(") < text.index("rcbrtf(")
    assert "powf(" not in text


def test_one_division_and_shared_reciprocal() -> None:
    def alone(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        return [builder.div(v[0], v[2])]

    def both(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        return [builder.div(v[0], v[2]), builder.div(v[1], v[2])]

    assert cuda_text(alone, 3).count(" / ") == 1
    assert "__frcp_rn(" not in cuda_text(alone, 3)
    assert cuda_text(both, 3).count("__frcp_rn(") == 1
    assert " / " not in cuda_text(both, 3)
    # a reciprocal to start with, and its correction
    assert machine_code(alone, 3)["MUFU"] == machine_code(both, 3)["MUFU"] == 1


def test_fused_products() -> None:
    """x*y + z + i*j*k + m: both products are fused, because the sum starts with z or m."""

    def write(builder: GraphBuilder, v: Sequence[int]) -> list[int]:
        x, y, z, i, j, k, m = v
        return [builder.sum([builder.prod([x, y]), z, builder.prod([i, j, k]), m])]

    counts = machine_code(write, 7)
    assert (counts["FFMA"], counts["FMUL"], counts["FADD"]) == (2, 1, 1)
