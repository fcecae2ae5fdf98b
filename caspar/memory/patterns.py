"""All access patterns, by name: what `caspar.ReadSequential` and the like are."""

from caspar.memory.accessors.blocked import ReadRows, WriteRows
from caspar.memory.accessors.indexed import AddIndexed, ReadIndexed, WriteIndexed
from caspar.memory.accessors.pair import AddPair, ReadPair, ReadPairStridedWithDefault, WritePair
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
from caspar.memory.accessors.sums.partials import (
    AddSharedPartials,
    AddStretchPartials,
    AddSumPartials,
    ReadPartials,
)
from caspar.memory.accessors.sums.sums import (
    AddBlockSum,
    AddSharedSum,
    AddSum,
    AddUnique,
    ReadShared,
    WriteBlockSum,
    WriteSum,
)

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
