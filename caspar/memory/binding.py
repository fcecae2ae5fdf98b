"""What a kernel argument is bound to before a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from caspar.memory.array import Array


@dataclass(frozen=True)
class Binding:
    """Memory for one kernel argument.

    Attributes:
        data: The array: blocked, rows or partials, as the argument's access says.
        length: Objects, rows or partials it holds; the distance between chunks.
        first: First object of the window, of a windowed argument.
        window: Objects of the window; None: all.
        fields: What the argument's access needs besides, by the names it gives.
    """

    data: Array
    length: int
    first: int = 0
    window: int | None = None
    fields: Mapping[str, Array | int] = field(default_factory=dict)

    @property
    def num_objects(self) -> int:
        """Objects that items may touch."""
        return self.length if self.window is None else self.window

    def with_fields(self, fields: Mapping[str, Array | int]) -> Binding:
        """The same memory with more fields."""
        return replace(self, fields={**self.fields, **fields})
