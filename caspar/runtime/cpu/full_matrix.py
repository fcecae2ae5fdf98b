"""L D L^T of a small full matrix: one compiled function, which stands in a list of launches.

Calling a library costs a small problem more than the arithmetic does (`docs/design/0013`). The
arithmetic is QDLDL's of a full matrix, operation by operation (an up-looking factorisation in the
order given), so that results have the same bits.
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.runtime.cpu.launch import CpuFunction, CpuLaunch, CpuSequence
from caspar.runtime.cpu.machine_code import compile_code, load_code

MOST_ROWS = 96
"""Larger matrices are left to libraries, which block the work for the caches."""

_TEXT = """\
; The table: entries of the lower triangle by rows, the factor by columns, one over its pivots, a
; row, right-hand side, solution, outcome, and the number of rows.
define void @caspar.full(ptr %table, i64 %tile) nounwind {
entry:
  %values = load ptr, ptr %table
  %factor.at = getelementptr ptr, ptr %table, i64 1
  %factor = load ptr, ptr %factor.at
  %inverse.at = getelementptr ptr, ptr %table, i64 2
  %inverse = load ptr, ptr %inverse.at
  %row.at = getelementptr ptr, ptr %table, i64 3
  %row = load ptr, ptr %row.at
  %rhs.at = getelementptr ptr, ptr %table, i64 4
  %rhs = load ptr, ptr %rhs.at
  %x.at = getelementptr ptr, ptr %table, i64 5
  %x = load ptr, ptr %x.at
  %outcome.at = getelementptr ptr, ptr %table, i64 6
  %outcome = load ptr, ptr %outcome.at
  %size.at = getelementptr ptr, ptr %table, i64 7
  %size = load i64, ptr %size.at
  %pivot.at = getelementptr double, ptr %outcome, i64 1
  %bytes = mul i64 %size, 8
  br label %factorise

; row k of L from row k of the matrix
factorise:
  %k = phi i64 [ 0, %entry ], [ %k.next, %pivoted ]
  %least = phi double [ 0x7FF0000000000000, %entry ], [ %least.next, %pivoted ]
  %more.rows = icmp slt i64 %k, %size
  br i1 %more.rows, label %begin.row, label %substitute
begin.row:
  %k.next = add i64 %k, 1
  %k.product = mul i64 %k, %k.next
  %first = lshr i64 %k.product, 1
  %given = getelementptr double, ptr %values, i64 %first
  %given.bytes = mul i64 %k, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %given, i64 %given.bytes, i1 false)
  %diagonal.at = getelementptr double, ptr %given, i64 %k
  %diagonal = load double, ptr %diagonal.at
  br label %columns
columns:
  %c = phi i64 [ 0, %begin.row ], [ %c.next, %column.done ]
  %pivot = phi double [ %diagonal, %begin.row ], [ %pivot.next, %column.done ]
  %more.columns = icmp slt i64 %c, %k
  br i1 %more.columns, label %column, label %look
column:
  %c.next = add i64 %c, 1
  %y.at = getelementptr double, ptr %row, i64 %c
  %y = load double, ptr %y.at
  %c.first = mul i64 %c, %size
  %of.column = getelementptr double, ptr %factor, i64 %c.first
  br label %later
later:
  %j = phi i64 [ %c.next, %column ], [ %j.next, %subtract ]
  %more.later = icmp slt i64 %j, %k
  br i1 %more.later, label %subtract, label %entry.of.l
subtract:
  %j.next = add i64 %j, 1
  %l.at = getelementptr double, ptr %of.column, i64 %j
  %l.j = load double, ptr %l.at
  %later.at = getelementptr double, ptr %row, i64 %j
  %later.before = load double, ptr %later.at
  %later.product = fmul double %l.j, %y
  %later.after = fsub double %later.before, %later.product
  store double %later.after, ptr %later.at
  br label %later
entry.of.l:
  %inverse.c.at = getelementptr double, ptr %inverse, i64 %c
  %inverse.c = load double, ptr %inverse.c.at
  %l = fmul double %y, %inverse.c
  %l.k.at = getelementptr double, ptr %of.column, i64 %k
  store double %l, ptr %l.k.at
  %own.product = fmul double %y, %l
  %pivot.next = fsub double %pivot, %own.product
  br label %column.done
column.done:
  br label %columns
look:
  %is.positive = fcmp ogt double %pivot, 0.0
  br i1 %is.positive, label %pivoted, label %fail
pivoted:
  %inverse.k.at = getelementptr double, ptr %inverse, i64 %k
  %inverse.k = fdiv double 1.0, %pivot
  store double %inverse.k, ptr %inverse.k.at
  %is.less = fcmp olt double %pivot, %least
  %least.next = select i1 %is.less, double %pivot, double %least
  br label %factorise

; L z = rhs; y = z / D
substitute:
  call void @llvm.memcpy.p0.p0.i64(ptr %x, ptr %rhs, i64 %bytes, i1 false)
  br label %forward
forward:
  %f = phi i64 [ 0, %substitute ], [ %f.next, %forward.done ]
  %more.forward = icmp slt i64 %f, %size
  br i1 %more.forward, label %forward.one, label %backward
forward.one:
  %f.next = add i64 %f, 1
  %f.first = mul i64 %f, %size
  %f.column = getelementptr double, ptr %factor, i64 %f.first
  %z.at = getelementptr double, ptr %x, i64 %f
  %z = load double, ptr %z.at
  br label %forward.later
forward.later:
  %fj = phi i64 [ %f.next, %forward.one ], [ %fj.next, %forward.subtract ]
  %more.fj = icmp slt i64 %fj, %size
  br i1 %more.fj, label %forward.subtract, label %forward.done
forward.subtract:
  %fj.next = add i64 %fj, 1
  %fl.at = getelementptr double, ptr %f.column, i64 %fj
  %fl = load double, ptr %fl.at
  %fx.at = getelementptr double, ptr %x, i64 %fj
  %fx = load double, ptr %fx.at
  %f.product = fmul double %fl, %z
  %fx.after = fsub double %fx, %f.product
  store double %fx.after, ptr %fx.at
  br label %forward.later
forward.done:
  %fd.at = getelementptr double, ptr %inverse, i64 %f
  %fd = load double, ptr %fd.at
  %scaled = fmul double %z, %fd
  store double %scaled, ptr %z.at
  br label %forward

; L^T x = y
backward:
  %left = phi i64 [ %size, %forward ], [ %b, %backward.done ]
  %is.finite = phi i1 [ true, %forward ], [ %is.finite.next, %backward.done ]
  %more.backward = icmp sgt i64 %left, 0
  br i1 %more.backward, label %backward.one, label %solved
backward.one:
  %b = sub i64 %left, 1
  %b.first = mul i64 %b, %size
  %b.column = getelementptr double, ptr %factor, i64 %b.first
  %b.at = getelementptr double, ptr %x, i64 %b
  %b.value = load double, ptr %b.at
  br label %backward.later
backward.later:
  %bj = phi i64 [ %left, %backward.one ], [ %bj.next, %backward.subtract ]
  %value = phi double [ %b.value, %backward.one ], [ %value.next, %backward.subtract ]
  %more.bj = icmp slt i64 %bj, %size
  br i1 %more.bj, label %backward.subtract, label %backward.done
backward.subtract:
  %bj.next = add i64 %bj, 1
  %bl.at = getelementptr double, ptr %b.column, i64 %bj
  %bl = load double, ptr %bl.at
  %bx.at = getelementptr double, ptr %x, i64 %bj
  %bx = load double, ptr %bx.at
  %b.product = fmul double %bl, %bx
  %value.next = fsub double %value, %b.product
  br label %backward.later
backward.done:
  store double %value, ptr %b.at
  %zero = fsub double %value, %value
  %is.number = fcmp oeq double %zero, 0.0
  %is.finite.next = and i1 %is.finite, %is.number
  br label %backward

solved:
  br i1 %is.finite, label %succeed, label %fail
succeed:
  store double 0.0, ptr %outcome
  %none = icmp eq i64 %size, 0
  %told = select i1 %none, double 1.0, double %least
  store double %told, ptr %pivot.at
  ret void
fail:
  call void @llvm.memset.p0.i64(ptr %x, i8 0, i64 %bytes, i1 false)
  store double 1.0, ptr %outcome
  store double 0.0, ptr %pivot.at
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@cache
def _function() -> CpuFunction:
    key = hashlib.sha256(_TEXT.encode()).hexdigest()
    symbols = ("caspar.full",)
    (address,) = load_code(key, symbols) or compile_code(key, symbols, _TEXT)
    return CpuFunction(address)


class FullFactorization:
    """A matrix that is full; see `SparseFactorization` for what is the same of all of them.

    Args:
        size: Rows and columns.
        outcome: (2,) float64 that `solve` writes; None: its own.
    """

    remarks: tuple[str, ...] = ()

    def __init__(self, size: int, outcome: Array | None = None) -> None:
        self.values: NDArray[np.float64] = np.zeros(size * (size + 1) // 2)
        self.outcome = np.zeros(2) if outcome is None else outcome
        self.probes = False  # its pivots are known anyway
        self._work = np.zeros((size + 2, size))

    @property
    def num_bytes(self) -> int:
        """Bytes of the values and the factor."""
        return int(self.values.nbytes + self._work.nbytes)

    def factorize(self) -> None:
        """Nothing: `solve` does all of it."""

    def solve(self, rhs: Array, solution: Array) -> None:
        """Factorise and solve."""
        CpuSequence([self.launch(rhs, solution)]).run()

    def launch(self, rhs: Array, solution: Array) -> CpuLaunch:
        """What factorises and solves."""
        size = len(self._work) - 2
        arrays = (
            self.values,
            *(self._work[:size], self._work[size], self._work[size + 1]),
            *(rhs, solution, self.outcome),
        )
        table = np.array([*(array.ctypes.data for array in arrays), size], dtype=np.int64)
        return CpuLaunch(_function(), table, 1, arrays)


def is_small_and_full(size: int, num_entries: int) -> bool:
    """Whether a pattern is that of such a matrix, by the entries of its lower triangle."""
    return size <= MOST_ROWS and num_entries == size * (size + 1) // 2
