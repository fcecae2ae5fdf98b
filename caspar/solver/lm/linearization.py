"""What the device holds of the linearised problem, from call to call of `NormalEquations`.

Pure: each transition returns what holds after it. Cost tier: several times an iteration.
"""

from enum import Enum
from typing import NamedTuple

from caspar.equations.node_blocks import KEPT_WAY


class Place(Enum):
    """The values at which Jacobians, gradients and blocks were taken."""

    NOWHERE = "none that are needed: the next step must score and linearise first"
    CURRENT = "the current values"
    CANDIDATE = "the candidate of the last step, before it is known whether it is accepted"
    TRIED = "the current values, from which the step with `begun_damping` was tried already"


class Linearization(NamedTuple):
    """What the device holds of the linearised problem.

    Attributes:
        is_scaled: Jacobians are stored, of variables that are scaled by D: they belong to one
            damping. Of the plan, never changes.
        is_shared: Candidates are in the memory of the Jacobians. Of the plan, never changes.
        place: Where it was linearised.
        begun_damping: Damping with which the linear solve has begun; None: it has not.
        was_rejected: The last step was rejected.
        levelling: 1 if D levels the entries of a part of a tangent, else 0.
        num_inside: Accepted steps from here on that keep `KEPT_WAY`.
    """

    is_scaled: bool
    is_shared: bool
    place: Place = Place.NOWHERE
    begun_damping: float | None = None
    was_rejected: bool = False
    levelling: float = 1.0
    num_inside: int = 0

    @property
    def controls(self) -> tuple[float, float]:
        """The scalars `levelling` and `shortening`, see `node_blocks.clipped_step`."""
        if self.was_rejected:
            return self.levelling, 1.0
        return self.levelling, KEPT_WAY if self.num_inside > 0 else 0.0

    def loaded(self, num_inside: int = 0) -> "Linearization":
        """After other start values and constants were packed."""
        return Linearization(self.is_scaled, self.is_shared, num_inside=num_inside)

    def overwritten(self) -> "Linearization":
        """After other work in the same memory, such as scoring the current values."""
        return self._at(Place.NOWHERE)

    def linearized(self, damping: float) -> "Linearization":
        """After the current values were linearised, unless that was done ahead.

        Args:
            damping: Of the next step. What was scaled for another damping is of no use.
        """
        if self.was_tried(damping):
            return self
        if self.place is not Place.CANDIDATE:
            return self._at(Place.CURRENT)
        if self.is_scaled and self.begun_damping != damping:
            return self._at(Place.NOWHERE)
        return self._at(Place.CURRENT, self.begun_damping)

    def tried(self) -> "Linearization":
        """After a step was solved for, retracted and scored."""
        return self._at(Place.NOWHERE if self.is_shared else Place.CURRENT)

    def took_plain_steps(self, damping: float | None) -> "Linearization":
        """After plain steps: their values are the current ones.

        Args:
            damping: Of the step that was tried and not taken; None: all were taken.
        """
        if damping is None:
            return self._at(Place.NOWHERE, was_rejected=False)
        return self._at(Place.TRIED, damping, was_rejected=False)

    def was_tried(self, damping: float) -> bool:
        """Whether the step with that damping was tried already."""
        return self.place is Place.TRIED and self.begun_damping == damping

    def went_ahead(self, damping: float) -> "Linearization":
        """After the candidate was linearised, and the linear solve begun with this damping."""
        return self._at(Place.CANDIDATE, damping)

    def accepted(self) -> "Linearization":
        """After the candidate became the current values: only what was done ahead is of use."""
        if self.place is Place.CANDIDATE:
            return self._at(Place.CANDIDATE, self.begun_damping, was_rejected=False)
        moved = self._at(Place.NOWHERE, was_rejected=False)
        if self.num_inside == 0:
            return moved
        return moved._replace(num_inside=self.num_inside - 1)

    def rejected(self) -> "Linearization":
        """After the current values were kept. The next damping is another one."""
        is_kept = self.place is Place.CURRENT and not self.is_scaled
        return self._at(Place.CURRENT if is_kept else Place.NOWHERE, was_rejected=True)

    def released(self) -> "Linearization":
        """As if no step had been rejected at these values; they have to be linearised again."""
        return self._at(Place.NOWHERE, was_rejected=False)

    def levelled(self, levelling: float) -> "Linearization":
        """With other levelling from the next linearisation on."""
        return self._replace(levelling=levelling)

    def _at(
        self,
        place: Place,
        begun_damping: float | None = None,
        *,
        was_rejected: bool | None = None,
    ) -> "Linearization":
        """Linearised elsewhere; by default no linear solve has begun."""
        # several times an iteration, where `_replace` takes longer
        return Linearization(
            self.is_scaled,
            self.is_shared,
            place,
            begun_damping,
            self.was_rejected if was_rejected is None else was_rejected,
            self.levelling,
            self.num_inside,
        )
