# %% [markdown]
# # What the compiler does to a residual

# %% [markdown]
"""The compiler's passes and its scheduler, measured on one kernel of bundle adjustment.

A residual is traced once, on symbols. What comes out is a graph of operations, and a textbook would
print it as it is. Passes make it cheaper, and a scheduler orders it so that few numbers have to be
kept at once: a GPU that needs fewer registers for a thread runs more threads. No GPU is needed to
look.

    python examples/compiler_passes.py
"""

# %%
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import caspar
from caspar.inspect.pictures.draw_program import pressure
from caspar.inspect.views import GraphView
from caspar.ir.graph import Graph
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.pipeline import GRAPH_STAGES

# %% [markdown]
# ## The kernel
#
# `linearize` computes residual and derivatives of an observation: a camera of nine parameters that
# sees a point. This is the residual as it was traced.

# %% tags=["active-ipynb"]
# kernel = caspar.bundle_adjustment.snavely.inspect("float32")["linearize"]
# caspar.bundle_adjustment.snavely.inspect("float32").trace

# %% [markdown]
# ## What the passes save
#
# Each operation has a price, measured on a GPU: a multiplication costs one, a square root ten. A
# pass goes on only if the whole becomes cheaper. As traced, squares are calls of `pow`, the most
# costly operation there is: the first pass makes products of them.


# %%
def price(graph: Graph) -> float:
    """Of all calls of a graph: what is not priced, such as an addition, costs one.

    Memory does not count, nor do signs, which are free in any operand.
    """
    free = {"READ", "WRITE", "NEG"}
    calls = [call for call in graph.calls if free.isdisjoint(call.op.name.split("_"))]
    return sum(
        CUDA_FLOAT32.price(call.op) if CUDA_FLOAT32.has(call.op) else max(len(call.operands) - 1, 1)
        for call in calls
    )


def prices(kernel: caspar.inspect.KernelInspection) -> dict[str, float]:
    """By stage, from the traced graph to the last pass."""
    found = {}
    for name in ("graph", *(name for name, _ in GRAPH_STAGES)):
        stage = kernel.stage(name)
        assert isinstance(stage, GraphView)
        found[name] = price(stage.graph)
    return found


# %% [markdown]
# ## What the order saves
#
# The curve is the number of values that are needed later on, after each step. Grey: the calls in
# the order in which the graph was made, line by line of the residual and its derivatives. Blue: the
# order that the scheduler chose.


# %%
def pressure_as_made(graph: Graph) -> list[int]:
    """Values that are live after each call, in the order of the graph."""
    last = {value: place for place, call in enumerate(graph.calls) for value in call.operands}
    live: set[int] = set()
    found = []
    for place, call in enumerate(graph.calls):
        live |= {value for value in call.outputs if value in last}
        live -= {value for value in call.operands if last.get(value) == place}
        found.append(len(live))
    return found


def draw(kernel: caspar.inspect.KernelInspection) -> Figure:
    """Prices by pass, and values that are live by step."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    by_pass = prices(kernel)
    costs = np.array(list(by_pass.values()))
    colors = ["0.6", *("C0" if saved > 0 else "0.85" for saved in -np.diff(costs))]
    bars = left.barh(["as traced", *list(by_pass)[1:]], costs, color=colors)
    left.bar_label(bars, [f"{cost:,.0f}" for cost in costs], padding=3)
    left.invert_yaxis()
    left.margins(x=0.15)
    left.set(xlabel="price, in multiplications", title="after each pass")
    made = pressure_as_made(kernel.schedule.graph)
    ordered = pressure(kernel.program.program)
    for values, name, color in (
        (made, f"as made: {max(made)} at most", "0.6"),
        (ordered, f"as ordered: {max(ordered)} at most", "C0"),
    ):
        share = np.linspace(0.0, 100.0, len(values))
        right.fill_between(share, values, step="mid", alpha=0.3, color=color)
        right.step(share, values, where="mid", color=color, label=name)
    right.set(xlabel="steps done, %", title="values that wait to be read", ylim=(0, None))
    right.legend()
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


# %% tags=["active-ipynb"]
# draw(kernel);

# %% [markdown]
# ## One pass, as a difference
#
# What a pass took away and what it put in. Partial products are shared here: a product that several
# others contain is computed once.

# %% tags=["active-ipynb"]
# kernel.changes("products")

# %% [markdown]
# ## The source
#
# What is left is straight code, each statement with the line of the residual it comes from.

# %% tags=["active-ipynb"]
# print("\n".join(str(kernel.cuda).splitlines()[-40:]))


# %% tags=["active-py"]
def main() -> dict[str, float]:
    """Print the price after each pass, and the peaks of both orders."""
    kernel = caspar.bundle_adjustment.snavely.inspect("float32")["linearize"]
    found = prices(kernel)
    for name, cost in found.items():
        print(f"{name:12} {cost:8,.0f}")
    made, ordered = pressure_as_made(kernel.schedule.graph), pressure(kernel.program.program)
    print(f"values live at once: {max(made)} as made, {max(ordered)} as ordered")
    return found


if __name__ == "__main__":
    main()
