"""Compiled functions of a block factorisation, see `block_factorization`.

The texts are in the language of kernels, see `codegen.cpu.kernel`, with the size of a block as a
literal, so that the loops over a block are unrolled. Each function has a table of numbers and
addresses. Cost tier: compiled once for a size.
"""

import ctypes
from functools import cache
from typing import Any

from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.live.tables import GrowingRows
from caspar.memory.array import address
from caspar.runtime.cpu.compile import function_address

NO_PARENT = 1 << 40
"""The parent of a root of the elimination tree: above all ranks."""

_TAKE = """\
def take(table, tile):
    count = table[0]
    height = table[1]
    width = table[2]
    slots = as_int64(table[3])
    first_position = as_int64(table[4])
    first_entry = as_int64(table[5])
    blocks = as_int64(table[6])
    entries = as_float64(table[7])
    residual = as_float64(table[8])
    kept = as_float64(table[9])
    total = as_float64(table[10])
    squares = as_float64(table[11])
    changed = as_int64(table[12])
    differs = as_int64(table[13])
    limit = as_float64(table[14])
    old_entries = as_float64(table[15])
    old_residual = as_float64(table[16])
    old = limit[1]
    at = 0
    for j in range(count):
        i = slots[j]
        begin = first_position[i]
        first = first_entry[i]
        known = first
        difference = 0.0
        length = 0.0
        for row in range(height):
            r = residual[j * height + row]
            old_r = old * old_residual[j * height + row]
            for q in range(width):
                unknown = blocks[begin + q] * B
                for a in range(B):
                    slope = entries[at]
                    before = old_entries[at]
                    total[unknown + a] += slope * r - before * old_r
                    squares[unknown + a] += slope * slope - old * before * before
                    off = slope - kept[known]
                    difference += off * off
                    length += slope * slope
                    at += 1
                    known += 1
        differs[i] = 1 if difference > 0.0 else 0
        if difference <= limit[0] * length:
            continue
        differs[i] = 0
        size = height * width * B
        for e in range(size):
            kept[first + e] = entries[at - size + e]
        for q in range(width):
            changed[blocks[begin + q]] = 1
"""
"""J^T r and the squared lengths of the columns; derivatives that have changed, or are no numbers,
are kept, and their blocks noted. The table: blocks of rows, their rows and the blocks of unknowns
of each; the place of each among all; what `Store` has; derivatives and residual; to be written:
those that are kept, both sums, blocks, which rows differ from those that are kept; the square of a
change that counts, and 1 if derivatives and residual of before are to be taken out of the sums;
these."""

_EXTEND = """\
def extend(table, tile):
    first_slot = table[0]
    num_slots = table[1]
    first_rank = table[2]
    size = table[3]
    first_position = as_int64(table[4])
    blocks = as_int64(table[5])
    following = as_int64(table[6])
    ranks = as_int64(table[7])
    heads = as_int64(table[8])
    owner = as_int64(table[9])
    parents = as_int64(table[10])
    counts = as_int64(table[11])
    begins = as_int64(table[12])
    filled = as_int64(table[13])
    lower_rows = as_int64(table[14])
    marks = as_int64(table[15])
    outcome = as_int64(table[16])
    for i in range(first_slot, num_slots):
        for p in range(first_position[i], first_position[i + 1]):
            c = ranks[blocks[p]]
            following[p] = heads[c]
            heads[c] = p
            for q in range(first_position[i], first_position[i + 1]):
                k = ranks[blocks[q]]
                if c < k and k < first_rank:
                    at = begins[c]
                    while at < filled[c]:
                        at = NONE if lower_rows[at] == k else at + 1
                    if at < NONE:
                        outcome[0] = 1
    for k in range(first_rank, size):
        p = heads[k]
        while p >= 0:
            i = owner[p]
            for q in range(first_position[i], first_position[i + 1]):
                reached = ranks[blocks[q]]
                while reached < k:
                    if marks[reached] == k:
                        reached = NONE
                        continue
                    marks[reached] = k
                    counts[reached] += 1
                    if parents[reached] == NONE:
                        parents[reached] = k
                    reached = parents[reached]
            p = following[p]
"""
"""New blocks of rows, from one on, and the rows of L of new blocks, from a rank on. The table:
these numbers and their ends; what `Store` and `Columns` have, to be written: the list of positions
of each rank, parents, counts; room; to be written: whether a row of J couples two old blocks that
were not coupled, so that other rows of L have other entries."""


_HEAD = """\
def factorize(table, tile):
    size = table[0]
    first_position = as_int64(table[1])
    owner = as_int64(table[2])
    heights = as_int64(table[3])
    first_entry = as_int64(table[4])
    blocks = as_int64(table[5])
    following = as_int64(table[6])
    entries = as_float64(table[7])
    ranks = as_int64(table[8])
    heads = as_int64(table[9])
    parents = as_int64(table[10])
    begins = as_int64(table[11])
    filled = as_int64(table[12])
    outdated = as_int64(table[13])
    own = as_float64(table[14])
    inverse = as_float64(table[15])
    used = as_float64(table[16])
    pivots = as_float64(table[17])
    lower_rows = as_int64(table[18])
    lower = as_float64(table[19])
    added = as_float64(table[20])
    marks = as_int64(table[21])
    path = as_int64(table[22])
    columns = as_int64(table[23])
    y = as_float64(table[24])
    known = as_float64(table[25])
    left = as_float64(table[26])
    forwarded = as_float64(table[27])
    renewed = as_int64(table[28])
    for k in range(size):
        if outdated[k] == 0:
            continue
        if parents[k] < size:
            outdated[parents[k]] = 1
        pivots[k] = 0.0
        num_columns = 0
        p = heads[k]
        while p >= 0:
            i = owner[p]
            begin = first_position[i]
            end = first_position[i + 1]
            width = (end - begin) * BLOCK
            mine = first_entry[i] + (p - begin) * BLOCK
            p = following[p]
            for q in range(begin, end):
                r = ranks[blocks[q]]
                if r > k:
                    continue
                depth = 0
                reached = r
                while reached < k:
                    if marks[reached] == k:
                        reached = size
                        continue
                    marks[reached] = k
                    path[depth] = reached
                    depth += 1
                    reached = parents[reached]
                while depth > 0:
                    depth -= 1
                    columns[num_columns] = path[depth]
                    num_columns += 1
                target = r * SQUARE
                theirs = first_entry[i] + (q - begin) * BLOCK
                for row in range(heights[i]):
                    m = mine + row * width
                    t = theirs + row * width
"""
"""Row k of J^T J goes to `y`, and the columns of L in which row k has entries to `columns`, the
last one first. The table: what `Store` and `Columns` have; what is added to the diagonal, by rank;
room; what the last `forward` left, with that row of L. A pivot that is not positive ends it; the
rows that are left stay outdated."""


def _factorize_text(size: int) -> str:
    """The function for blocks of some size."""
    head = _HEAD.replace("SQUARE", str(size * size)).replace("BLOCK", str(size))
    lines = [*_products(size), *_updates(size), *_pivots(size)]
    return "\n".join([head + lines[0], *lines[1:], ""])


def _place(array: str, row: int, column: int, size: int) -> str:
    """An entry of the block that begins at a place."""
    return f"{array} + {row * size + column}"


def _products(size: int) -> list[str]:
    """Add the product of two blocks of J, row by row; then the damping of the diagonal."""
    each, inner = range(size), " " * 20
    lines = [f"{inner}m{c} = entries[m + {c}]" for c in each]
    for a in each:
        lines.append(f"{inner}t{a} = entries[t + {a}]")
        lines += [f"{inner}y[{_place('target', a, c, size)}] += t{a} * m{c}" for c in each]
    lines.append(f"        base = k * {size * size}")
    for j in each:
        place = f"y[{_place('base', j, j, size)}]"
        lines += [
            f"        given{j} = {place}",
            f"        scale{j} = given{j} if given{j} > 0.0 else 1.0",
            f"        used[k * {size} + {j}] = added[k * {size} + {j}]",
            f"        {place} = given{j} + added[k * {size} + {j}] if given{j} > 0.0 else 1.0",
        ]
    return lines


def _updates(size: int) -> list[str]:
    """Block c of row k of L, and what it takes from the blocks behind it and from the diagonal."""
    each, square = range(size), size * size
    lines = [
        *(f"        left{e} = known[k * {size} + {e}]" for e in each),
        "        for step in range(num_columns):",
        "            c = columns[num_columns - 1 - step]",
        f"            column = c * {square}",
    ]
    for a in each:
        for e in each:
            terms = [f"own[{_place('column', a, m, size)}] * z{m}{e}" for m in range(a)]
            value = " - ".join([f"y[{_place('column', a, e, size)}]", *terms])
            lines.append(f"            z{a}{e} = {value}")
    lines += [
        "            at = begins[c]",
        "            stop = filled[c]",
        "            while at < stop:",
        "                if lower_rows[at] >= k:",
        "                    stop = at",
        "                    continue",
        f"                target = lower_rows[at] * {square}",
        f"                block = at * {square}",
    ]
    for a in each:
        lines += [f"                l{q} = lower[{_place('block', a, q, size)}]" for q in each]
        for e in each:
            total = " + ".join(f"l{q} * z{q}{e}" for q in each)
            lines.append(f"                y[{_place('target', a, e, size)}] -= {total}")
    lines += ["                at += 1", f"            block = at * {square}"]
    for q in each:
        lines.append(f"            pivot{q} = inverse[c * {size} + {q}]")
        for e in each:
            lines += [
                f"            x{q}{e} = z{q}{e} * pivot{q}",
                f"            lower[{_place('block', e, q, size)}] = x{q}{e}",
                f"            y[{_place('column', q, e, size)}] = 0.0",
            ]
    for e in each:
        taken = " + ".join(f"x{q}{e} * forwarded[c * {size} + {q}]" for q in each)
        lines.append(f"            left{e} -= {taken}")
    for e in each:
        for f in range(e + 1):
            total = " + ".join(f"z{q}{e} * x{q}{f}" for q in each)
            lines.append(f"            y[{_place('base', e, f, size)}] -= {total}")
    return [
        *lines,
        "            lower_rows[at] = k",
        "            if at == filled[c]:",
        "                filled[c] = at + 1",
    ]


def _pivots(size: int) -> list[str]:
    """L D L^T of the diagonal block of row k."""
    lines = ["        least = 1.0"]
    for j in range(size):
        terms = [f"n{j}{m} * n{j}{m} * d{m}" for m in range(j)]
        pivot = " - ".join([f"y[{_place('base', j, j, size)}]", *terms])
        lines += [
            f"        d{j} = {pivot}",
            f"        if d{j} > 0.0:",
            f"            least = min(d{j} / scale{j}, least)",
            "        else:",
            "            return",
            f"        inverse[k * {size} + {j}] = 1.0 / d{j}",
        ]
        for i in range(j + 1, size):
            terms = [f"n{i}{m} * n{j}{m} * d{m}" for m in range(j)]
            value = " - ".join([f"y[{_place('base', i, j, size)}]", *terms])
            lines += [
                f"        n{i}{j} = ({value}) / d{j}",
                f"        own[{_place('base', i, j, size)}] = n{i}{j}",
            ]
    lines += [f"        y[base + {e}] = 0.0" for e in range(size * size)]
    lines += [f"        left[k * {size} + {e}] = left{e}" for e in range(size)]
    return [
        *lines,
        "        pivots[k] = least",
        "        outdated[k] = 0",
        "        renewed[k] = 1",
    ]


def _forward_text(size: int) -> str:
    """The function for blocks of some size."""
    each = range(size)
    lines = [
        "def forward(table, tile):",
        "    size = table[0]",
        "    order = as_int64(table[1])",
        "    begins = as_int64(table[2])",
        "    filled = as_int64(table[3])",
        "    own = as_float64(table[4])",
        "    inverse = as_float64(table[5])",
        "    lower_rows = as_int64(table[6])",
        "    lower = as_float64(table[7])",
        "    known = as_float64(table[8])",
        "    left = as_float64(table[9])",
        "    forwarded = as_float64(table[10])",
        "    renewed = as_int64(table[11])",
        "    x = as_float64(table[12])",
        "    rhs = as_float64(table[13])",
        "    outcome = as_float64(table[14])",
        "    total = 0.0",
        "    for k in range(size):",
        f"        first = k * {size}",
        "        differs = renewed[k]",
    ]
    for a in each:
        lines += [
            f"        off{a} = rhs[order[k] * {size} + {a}] - known[first + {a}]",
            f"        differs = differs if off{a} == 0.0 else 1",
        ]
    lines += [
        "        if differs > 0:",
        "            renewed[k] = 0",
        f"            base = k * {size * size}",
    ]
    for a in each:
        lines += [
            f"            known[first + {a}] = rhs[order[k] * {size} + {a}]",
            f"            left{a} = left[first + {a}] + off{a}",
            f"            left[first + {a}] = left{a}",
        ]
    for a in each:
        terms = [f"own[{_place('base', a, m, size)}] * z{m}" for m in range(a)]
        lines.append(f"            z{a} = {' - '.join([f'left{a}', *terms])}")
    for a in each:
        lines += [
            f"            d{a} = z{a} - forwarded[first + {a}]",
            f"            forwarded[first + {a}] = z{a}",
        ]
    lines += [
        "            for at in range(begins[k], filled[k]):",
        f"                row = lower_rows[at] * {size}",
        f"                block = at * {size * size}",
        "                renewed[lower_rows[at]] = 1",
    ]
    for a in each:
        products = " + ".join(f"lower[{_place('block', a, q, size)}] * d{q}" for q in each)
        lines.append(f"                left[row + {a}] -= {products}")
    for a in each:
        lines += [
            f"        z = forwarded[first + {a}]",
            f"        scaled = z * inverse[first + {a}]",
            "        total += z * scaled",
            f"        x[first + {a}] = scaled",
        ]
    return "\n".join([*lines, "    outcome[0] = total", ""])


def _backward_text(size: int) -> str:
    """The function for blocks of some size."""
    each = range(size)
    lines = [
        "def backward(table, tile):",
        "    size = table[0]",
        "    order = as_int64(table[1])",
        "    begins = as_int64(table[2])",
        "    filled = as_int64(table[3])",
        "    own = as_float64(table[4])",
        "    lower_rows = as_int64(table[5])",
        "    lower = as_float64(table[6])",
        "    x = as_float64(table[7])",
        "    squares = as_float64(table[8])",
        "    limit = as_float64(table[9])",
        "    moves = as_int64(table[10])",
        "    solution = as_float64(table[11])",
        "    for step in range(size):",
        "        k = size - 1 - step",
        f"        base = k * {size * size}",
        f"        first = order[k] * {size}",
        *(f"        v{q} = x[k * {size} + {q}]" for q in each),
        "        for at in range(begins[k], filled[k]):",
        "            if moves[lower_rows[at]] == 0:",
        "                continue",
        f"            row = lower_rows[at] * {size}",
        f"            block = at * {size * size}",
        *(f"            x{a} = x[row + {a}]" for a in each),
    ]
    for q in each:
        terms = " + ".join(f"lower[{_place('block', a, q, size)}] * x{a}" for a in each)
        lines.append(f"            v{q} -= {terms}")
    for q in reversed(each):
        lines += [f"        v{q} -= own[base + {a * size + q}] * v{a}" for a in each if a > q]
    lines.append("        moves[k] = 0")
    for q in each:
        lines += [
            f"        length = v{q} * v{q} * squares[first + {q}]",
            "        moves[k] = moves[k] if length <= limit[0] else 1",
        ]
    lines.append("        if moves[k] == 0:")
    lines += [f"            v{q} = 0.0" for q in each]
    for q in each:
        lines += [
            f"        x[k * {size} + {q}] = v{q}",
            f"        solution[first + {q}] = v{q}",
        ]
    return "\n".join([*lines, ""])


Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
"""A compiled function: of the address of its table, and of a tile."""


@cache
def compiled(name: str, text: str) -> Any:
    """Compile a function of a table and a tile."""
    return Function(function_address(KernelSource(name, text, (), (1,))))


@cache
def _function(name: str, size: int) -> Any:
    texts = {
        "take": _TAKE.replace("B", str(size)),
        "extend": _EXTEND.replace("NONE", str(NO_PARENT)),
        "factorize": _factorize_text(size),
        "forward": _forward_text(size),
        "backward": _backward_text(size),
    }
    return compiled(name, texts[name])


def call(function: Any, *passed: int | GrowingRows | NDArray[Any]) -> None:
    """Call a compiled function with a table of numbers and memory."""
    entries = [
        one if type(one) is int else one.address if type(one) is GrowingRows else _address(one)
        for one in passed
    ]
    function((ctypes.c_int64 * len(entries))(*entries), 0)


def _address(array: Any) -> int:
    """The address of an array, in a quarter of the time if it has entries and may be written."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):
        return address(array)


def run_function(name: str, size: int, *passed: int | GrowingRows | NDArray[Any]) -> None:
    """Call `take`, `extend`, `factorize`, `forward` or `backward` for blocks of some size.

    Args:
        name: Of the function.
        size: Unknowns of a block.
        *passed: Its table: numbers, and memory.
    """
    call(_function(name, size), *passed)
