"""A kernel with every access that has a derivative, and its arrays."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import symforce.symbolic as sf

import caspar
from caspar.autodiff.call import Call, passed_to_kernel, rows_of

COUNT = 300
"""Items: more than a tile of the processor's kernels, or of CUDA's."""

NUM = 40
"""Objects that indices name."""

NAMES = ("own", "indexed", "shared_read", "prepared_read", "scale", "pair_read", "strided_read")
"""Arguments of `mixed` that have derivatives."""


class Sums(NamedTuple):
    """An output of every access."""

    written: Annotated[sf.V3, caspar.WriteSequential]
    added: Annotated[sf.V3, caspar.AddSequential]
    total: Annotated[sf.V2, caspar.WriteSum]
    added_total: Annotated[sf.V2, caspar.AddSum]
    into_unique: Annotated[sf.Symbol, caspar.AddUnique]
    scattered: Annotated[sf.V3, caspar.WriteIndexed]
    added_indexed: Annotated[sf.V3, caspar.AddIndexed]
    shared: Annotated[sf.V3, caspar.AddSharedSum]
    prepared: Annotated[sf.V2, caspar.AddSharedSum]
    pair: Annotated[caspar.Pair[sf.V2], caspar.WritePair]
    added_pair: Annotated[caspar.Pair[sf.V2], caspar.AddPair]
    strided: Annotated[sf.V3, caspar.WriteStrided]
    added_strided: Annotated[sf.M23, caspar.AddStrided]


@caspar.kernel
def mixed(
    own: Annotated[sf.V3, caspar.ReadSequential],
    indexed: Annotated[sf.V2, caspar.ReadIndexed],
    shared_read: Annotated[sf.Rot3, caspar.ReadShared],
    prepared_read: Annotated[sf.V2, caspar.ReadShared],
    scale: Annotated[sf.Symbol, caspar.ReadUnique],
    pair_read: Annotated[caspar.Pair[sf.V2], caspar.ReadPair],
    strided_read: Annotated[sf.M23, caspar.ReadStrided],
    ignored: Annotated[sf.V2, caspar.ReadSequential],
) -> Sums:
    """Everything of everything, not linear, with a branch."""
    first, second = pair_read
    turned = shared_read * own
    moved = strided_read * turned + sf.exp(scale / 4) * indexed
    bent = sf.V2(sf.sin(moved[0]), sf.Max(moved[1], moved[0] * prepared_read[0]))
    both = sf.V3(bent[0], bent[1] * first[0], second[1] - first[1])
    return Sums(
        written=both,
        added=turned,
        total=bent + prepared_read,
        added_total=sf.V2(turned[0] * turned[1], scale**2 * first[1]),
        into_unique=both.dot(turned),
        scattered=turned + both,
        added_indexed=both * scale,
        shared=turned * first[0],
        prepared=sf.V2(bent[1], second[0] ** 2),
        pair=caspar.Pair((bent, second * scale)),
        added_pair=caspar.Pair((first, bent * 2)),
        strided=both,
        added_strided=strided_read * bent[0],
    )


@dataclass(frozen=True)
class Given:
    """What a call passes.

    Attributes:
        arguments: By name.
        out: By name of an output.
    """

    arguments: dict[str, Any]
    out: dict[str, Any]


def given(count: int = COUNT, dtype: str = "float64", seed: int = 0) -> Given:
    """Arguments of `mixed`."""
    rng = np.random.default_rng(seed)
    num_strided = 2 + 3 * count + 4

    def rows(*shape: int) -> Any:
        return rng.normal(size=shape).astype(dtype)

    index, also = (rng.integers(0, NUM, count).astype(np.int32) for _ in range(2))
    other = caspar.SharedIndices(rng.integers(0, NUM, count).astype(np.int32), NUM)
    places = rng.permutation(count + 5)[:count].astype(np.int32)
    arguments = {
        "own": rows(count, 3),
        "indexed": {"values": rows(NUM, 2), "index": index},
        "shared_read": {"values": rows(NUM, 4), "index": also},
        "prepared_read": {"values": rows(NUM, 2), "index": other},
        "scale": rows(1),
        "pair_read": rows(count + 1, 2),
        "strided_read": {"values": rows(num_strided, 2, 3), "offset": 2, "stride": 3},
        "ignored": rows(count, 2),
    }
    out = {
        "scattered": {"index": places, "size": count + 5},
        "added_indexed": {"index": places, "size": count + 5},
        "shared": {"index": also, "size": NUM + 2},
        "prepared": {"index": other},
        "strided": {"offset": 1, "stride": 2, "size": 2 * count + 3},
        "added_strided": {"offset": 0, "stride": 1, "size": count},
    }
    return Given(arguments, out)


def values_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The values of each argument."""
    return {
        name: one["values"] if isinstance(one, dict) else one for name, one in arguments.items()
    }


def call_of(given: Given) -> tuple[Call, list[Any]]:
    """The call of `mixed`, and its values as rows."""
    passed = passed_to_kernel(mixed, (), given.arguments, given.out, count=None, check=True)
    inputs = passed.declared.inputs
    return passed.call, [
        rows_of(one, value) for one, value in zip(inputs, passed.values, strict=True)
    ]
