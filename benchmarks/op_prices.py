"""`python -m benchmarks.op_prices`: what each op costs on the GPU, in multiplications.

The prices in `caspar.passes.cost` are rounded from this. Measured is throughput, with all cores of
the device busy: every thread runs four independent chains of `x = op(x, ...) * zero + start`,
where the zero is an argument that the compiler does not know. From the time of a chain with an op
that of the empty chain is taken off; the same for a multiplication gives the unit.
"""

import argparse
import json
from pathlib import Path

import cupy
import numpy as np

from benchmarks.report import environment
from caspar.codegen.cuda.header import COMPILE_OPTIONS, HEADER
from caspar.codegen.cuda.ops import OP_TEXT
from caspar.ir.dtype import DType
from caspar.ir.ops import OP_INFO, Op
from caspar.memory.accessors.scope import SCALAR_TYPE

NUM_CHAINS = 4
NUM_LINKS = 16
NUM_ROUNDS = 64
BLOCK_SIZE = 256
BLOCKS_PER_PROCESSOR = 8
NUM_REPEATS = 9

LOGIC = {Op.AND, Op.OR, Op.NOT}
SINCOS = {DType.FLOAT32: "sincosf({0}, &s, &c)", DType.FLOAT64: "sincos({0}, &s, &c)"}


def measured_ops(dtype: DType) -> list[Op]:
    """Ops with a text that take and give numbers, and SINCOS."""
    return [
        op
        for op in (*OP_TEXT[dtype], Op.SINCOS)
        if not OP_INFO[op].boolean and op not in LOGIC and op is not Op.SELECT
    ]


def link(op: Op | None, dtype: DType, chain: int) -> str:
    """One link of a chain; None: without an op."""
    x, start, scalar = f"x[{chain}]", f"start[{chain}]", SCALAR_TYPE[dtype]
    fused = "fmaf" if dtype is DType.FLOAT32 else "fma"
    if op is None:
        return f"{x} = {fused}({x}, zero, {start});"
    if op is Op.SINCOS:
        call = SINCOS[dtype].format(x)
        return f"{{ {scalar} s, c; {call}; {x} = {fused}(s + c, zero, {start}); }}"
    others = [f"other[{number}]" for number in range(3)]
    text = OP_TEXT[dtype][op].replace("<T>", f"<{scalar}>")
    if op is Op.LDEXP:
        others[0] = "3"
    return f"{x} = {fused}({text.format(x, *others)}, zero, {start});"


def kernel_text(name: str, op: Op | None, dtype: DType) -> str:
    """The kernel that measures an op."""
    scalar = SCALAR_TYPE[dtype]
    links = "\n".join(link(op, dtype, chain) for _ in range(NUM_LINKS) for chain in range(4))
    return f"""{HEADER}
extern "C" __global__ void {name}({scalar}* data, {scalar} zero) {{
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  {scalar} x[{NUM_CHAINS}], start[{NUM_CHAINS}], other[3];
  for (int i = 0; i < {NUM_CHAINS}; ++i) x[i] = start[i] = data[i];
  for (int i = 0; i < 3; ++i) other[i] = data[{NUM_CHAINS} + i];
#pragma unroll 1
  for (int round = 0; round < {NUM_ROUNDS}; ++round) {{
{links}
  }}
  if (x[0] + x[1] + x[2] + x[3] == zero) data[item % 7u] = x[0];
}}
"""


def time_ms(op: Op | None, dtype: DType) -> float:
    """Median time of one launch."""
    name = "measure_empty" if op is None else f"measure_{op.name.lower()}"
    module = cupy.RawModule(code=kernel_text(name, op, dtype), options=COMPILE_OPTIONS)
    function = module.get_function(name)
    data = cupy.asarray([0.3, 0.4, 0.5, 0.6, 0.7, 0.35, 0.45], dtype=dtype.value)
    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    grid = (processors * BLOCKS_PER_PROCESSOR,)
    arguments = (data, np.dtype(dtype.value).type(0.0))
    times = []
    for _ in range(NUM_REPEATS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        function(grid, (BLOCK_SIZE,), arguments)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


def measure(dtype: DType) -> dict[str, float]:
    """Price of each op in multiplications, cheapest first."""
    empty = time_ms(None, dtype)
    unit = time_ms(Op.MUL, dtype) - empty
    prices = {op.name: (time_ms(op, dtype) - empty) / unit for op in measured_ops(dtype)}
    return {name: round(price, 1) for name, price in sorted(prices.items(), key=lambda p: p[1])}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.op_prices", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    folder: Path = parser.parse_args().folder
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    result = {
        "environment": environment(properties["name"].decode()),
        "prices": {dtype.value: measure(dtype) for dtype in (DType.FLOAT32, DType.FLOAT64)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2)
    (folder / "op_prices.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
