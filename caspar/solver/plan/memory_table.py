"""The memory of a plan as a table: what is where, and what shares its bytes."""

from collections.abc import Sequence

from caspar.solver.plan.arena import Region, Span
from caspar.solver.plan.plan import Plan
from caspar.solver.result.quantities import bytes_text
from caspar.tables import DataTable

COLUMNS = ("array", "type", "scalars", "memory", "first byte", "shares bytes with")
NUMBERS = ("scalars", "memory", "first byte")


def memory_table(
    plan: Plan, linear_part: str, linear_bytes: int, beside: Sequence[int] = ()
) -> str:
    """The arena's regions in the order of their bytes, then what lies outside of it."""
    regions = plan.arena.regions.items()
    own = {key.text: region for key, region in regions if not isinstance(key, Span)}
    rows = [
        _row(name, region, [other for other in own if _overlap(region, own[other], name, other)])
        for name, region in sorted(own.items(), key=lambda entry: entry[1].first_byte)
        if region.num_scalars > 0
    ]
    for factor in plan.factors:
        rows.append(_outside(f"{factor.factor.name}: order, indices and tiles", factor.num_bytes))
    for node in plan.nodes:
        if node.order is not None:
            rows.append(_outside(f"{node.node.name}: order", node.num_bytes))
    if linear_bytes > 0:
        rows.append(_outside(linear_part, linear_bytes))
    rows.append(_outside("together", plan.num_bytes + linear_bytes))
    if len(beside) > 0:
        rows.append(_outside(f"beside it: {len(beside)} others", sum(beside)))
    return str(DataTable(COLUMNS, tuple(rows), NUMBERS)).rstrip("\n")


def _overlap(one: Region, other: Region, name: str, other_name: str) -> bool:
    if name == other_name:
        return False
    end, other_end = one.first_byte + one.num_bytes, other.first_byte + other.num_bytes
    return one.first_byte < other_end and other.first_byte < end


def _row(name: str, region: Region, shared: list[str]) -> tuple[str, ...]:
    return (
        name,
        region.dtype.value,
        f"{region.num_scalars:,}",
        bytes_text(region.num_bytes),
        f"{region.first_byte:,}",
        ", ".join(shared),
    )


def _outside(name: str, num_bytes: int) -> tuple[str, ...]:
    return (name, "", "", bytes_text(num_bytes), "", "")


def joined_tables(held: Sequence[tuple[str, str]]) -> str:
    """Join the tables of several devices: pairs of a device and its table."""
    if len(held) == 1:
        return held[0][1]
    return "\n\n".join(
        f"device {rank} of {len(held)}: {device}\n{table}"
        for rank, (device, table) in enumerate(held)
    )
