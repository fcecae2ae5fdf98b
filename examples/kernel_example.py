# %% [markdown]
# # A function called with arrays

# %% [markdown]
"""A symbolic function becomes a kernel, is called with arrays, and is checked against NumPy.

Four ways to touch memory in one kernel: many items share an object that they read; all read the
same one; many add to a shared object; each writes to a place of its own.

    python examples/kernel_example.py
"""

# %%
from typing import Annotated, NamedTuple

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

# %% [markdown]
# ## The kernel
#
# What is annotated says how memory is touched; the function says what is computed for one item.
#
# * `ReadShared`: item i reads the point that `index[i]` names. Items that run together often name
#   the same points, so each point is fetched once for all of them.
# * `ReadUnique`: all items read the same weights.
# * `AddSharedSum`: item i adds to the sum that `index[i]` names, and so may others.
# * `WriteIndexed`: item i writes to a place that is its alone.


# %%
class Outputs(NamedTuple):
    """What the kernel writes.

    Attributes:
        sums: Sums over the items that name them.
        products: One number for each item.
    """

    sums: Annotated[sf.V2, caspar.AddSharedSum]
    products: Annotated[sf.Symbol, caspar.WriteIndexed]


@caspar.kernel
def example(
    point: Annotated[sf.V3, caspar.ReadShared],
    weights: Annotated[sf.V6, caspar.ReadUnique],
) -> Outputs:
    """An angle as a direction of length two, and a height times a sum of weights, plus one."""
    angle, _, height = point
    direction = 2 * sf.V2(sf.sin(angle), sf.cos(angle))
    return Outputs(sums=direction, products=height * sum(weights) + 1)


# %% [markdown]
# The function is traced once, on symbols, when the kernel is first needed. What it becomes can be
# looked at: instructions from top to bottom, and in which register each number lives. The bars on
# the right count the numbers that are kept at once, which is what limits a GPU.

# %% tags=["active-ipynb"]
# example.inspect().program

# %% [markdown]
# ## Arrays
#
# NumPy here; arrays of CuPy, PyTorch and JAX are taken in the same way, and what comes back is of
# the kind that was passed. An argument that needs more than values gets a mapping.


# %%
class Arrays(NamedTuple):
    """What the kernel is called with.

    Attributes:
        points: (num_items, 3), more than are named.
        weights: (1, 6).
        point: (num_items,) the point that an item reads.
        group: (num_items,) the sum that it adds to.
        place: (num_items,) where it writes; no two the same.
        num_groups: How many sums there are.
    """

    points: NDArray[np.float32]
    weights: NDArray[np.float32]
    point: NDArray[np.int64]
    group: NDArray[np.int64]
    place: NDArray[np.int64]
    num_groups: int


def make_arrays(num_items: int = 100_000, num_groups: int = 10, seed: int = 0) -> Arrays:
    """Random ones."""
    random = np.random.default_rng(seed)
    return Arrays(
        points=random.random((num_items, 3), dtype=np.float32),
        weights=random.random((1, 6), dtype=np.float32),
        point=random.integers(0, num_items, num_items),
        group=random.integers(0, num_groups, num_items),
        place=random.permutation(num_items),
        num_groups=num_groups,
    )


# %% tags=["active-ipynb"]
# arrays = make_arrays()
# arrays.points[:3]

# %% [markdown]
# ## The call
#
# New outputs are made: their number of objects is the `size`, as an index cannot tell it. The
# first call compiles; what is compiled is kept, also on disk.


# %%
def call(arrays: Arrays) -> Outputs:
    """The kernel over all items."""
    outputs: Outputs = example(
        point={"values": arrays.points, "index": arrays.point},
        weights=arrays.weights,
        out={
            "sums": {"index": arrays.group, "size": arrays.num_groups},
            "products": {"index": arrays.place, "size": len(arrays.place)},
        },
    )
    return outputs


# %% tags=["active-ipynb"]
# outputs = call(arrays)
# outputs.sums

# %% [markdown]
# ## The same in NumPy
#
# Sums of 10,000 numbers of size one, added in float32: six digits are right.


# %%
def by_numpy(arrays: Arrays) -> Outputs:
    """What the kernel computes, in float64."""
    points = arrays.points[arrays.point].astype(np.float64)
    sums = np.zeros((arrays.num_groups, 2))
    np.add.at(sums, arrays.group, 2 * np.stack([np.sin(points[:, 0]), np.cos(points[:, 0])], 1))
    products = np.empty(len(points))
    products[arrays.place] = points[:, 2] * arrays.weights.sum(dtype=np.float64) + 1
    return Outputs(sums, products)


def report(found: Outputs, expected: Outputs) -> float:
    """Print the largest errors of both outputs, relative to the largest value; return the worst."""
    worst = 0.0
    for name, one, other in zip(Outputs._fields, found, expected, strict=True):
        error = np.abs(one - other).max() / np.abs(other).max()
        print(f"{name:<9} {one.shape!s:<11} {one.dtype}  relative error {error:.1e}")
        worst = max(worst, float(error))
    return worst


# %% tags=["active-ipynb"]
# report(outputs, by_numpy(arrays));

# %% [markdown]
# ## Adding to what is there
#
# `out` may hold arrays to write to. A kernel that adds, adds to what they hold: after a second
# call the sums are twice as large, while `WriteIndexed` has replaced its numbers.


# %%
def call_again(arrays: Arrays, outputs: Outputs) -> None:
    """The kernel once more, into the arrays of a call before."""
    example(
        point={"values": arrays.points, "index": arrays.point},
        weights=arrays.weights,
        out={
            "sums": {"values": outputs.sums, "index": arrays.group},
            "products": {"values": outputs.products, "index": arrays.place},
        },
    )


# %% tags=["active-ipynb"]
# once = outputs.sums.copy()
# call_again(arrays, outputs)
# outputs.sums / once


# %% tags=["active-py"]
def main() -> float:
    """Call, compare, call again; the largest relative error."""
    arrays = make_arrays()
    outputs, expected = call(arrays), by_numpy(arrays)
    print("called once")
    first = report(outputs, expected)
    call_again(arrays, outputs)
    print("called twice: the sums have doubled")
    return max(first, report(outputs, expected._replace(sums=2 * expected.sums)))


if __name__ == "__main__":
    main()
