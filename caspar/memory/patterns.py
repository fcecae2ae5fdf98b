"""All access patterns, by name: what `caspar.ReadSequential` and the like are."""

from caspar.memory.accessors.indexed import AddIndexed, ReadIndexed, WriteIndexed
from caspar.memory.accessors.pair import (
    AddPair,
    ReadPair,
    ReadPairStridedWithDefault,
    WritePair,
)
from caspar.memory.accessors.rows import ReadRows, WriteRows
from caspar.memory.accessors.sequential import (
    AddSequential,
    ReadSequential,
    ReadUnique,
    WriteSequential,
    WriteUnique,
)
from caspar.memory.accessors.strided import (
    AddStrided,
    ReadStrided,
    ReadStridedWithDefault,
    WriteStrided,
)
from caspar.memory.accessors.sums.block_sum import AddBlockSum, WriteBlockSum
from caspar.memory.accessors.sums.partials import (
    AddSharedPartials,
    AddStretchPartials,
    AddSumPartials,
    ReadPartials,
)
from caspar.memory.accessors.sums.sums import AddSharedSum, AddSum, AddUnique, ReadShared, WriteSum

__all__ = [
    "AddBlockSum",
    "AddIndexed",
    "AddPair",
    "AddSequential",
    "AddSharedPartials",
    "AddSharedSum",
    "AddStretchPartials",
    "AddStrided",
    "AddSum",
    "AddSumPartials",
    "AddUnique",
    "ReadIndexed",
    "ReadPair",
    "ReadPairStridedWithDefault",
    "ReadPartials",
    "ReadRows",
    "ReadSequential",
    "ReadShared",
    "ReadStrided",
    "ReadStridedWithDefault",
    "ReadUnique",
    "WriteBlockSum",
    "WriteIndexed",
    "WritePair",
    "WriteRows",
    "WriteSequential",
    "WriteStrided",
    "WriteSum",
    "WriteUnique",
]
