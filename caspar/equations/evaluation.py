"""One evaluation of a factor: its residual, what that costs, and its Jacobian.

Input: the kernel that is being written, and how the factor's arguments are read. Output: an
`Evaluation`. Every kernel that evaluates a factor goes through it, so what a residual costs, and
how that changes residual and Jacobian, is decided here and nowhere else.

With a weight w and a loss rho, an instance costs w / 2 rho(s), s = |r|^2. Its gradient is J^T v
with v = w rho' r, and its part of the matrix is C^T C with the corrected Jacobian

    C = k (J - beta r (r^T J)),   k = sqrt(w rho'),   beta = (1 - sqrt(d)) / s,
    d = max(1 + 2 s rho'' / rho', floor):

C^T C = w rho' J^T J + 2 w rho'' (J^T r)(r^T J), the second derivative of the loss included, but
for the floor (Triggs et al., *Bundle Adjustment: A Modern Synthesis*, 2000, section 4.3, where
1 - sqrt(d) is called alpha). Where rho'' < 0, a matrix without the second term is safe, as its
model bounds a concave loss from above, but slow: the floor falls from nearly 1 to nearly 0 with
the damping, that is, as steps turn out to be good (design record 0025).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caspar.frontend.factors.jacobian import Blocks, tangent_jacobians
from caspar.frontend.factors.loss import PREFIX, SCALE, TracedLoss
from caspar.frontend.factors.trace import WEIGHT, Argument, TracedFactor
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelBuilder

SECOND_ORDER_DAMPING = 1e-6
"""Damping at which the curvature along a residual is kept at 0.7 of that across it at least."""


@dataclass(frozen=True)
class Correction:
    """The effect of weight and loss on an instance, at the values where it was linearised.

    It is a `RowFactor`, K = k (I - beta r r^T).

    Attributes:
        root: k; if the residual has one row, k sqrt(d).
        bend: beta; None if no second derivative has to be included, or if `root` includes it.
        residual: r if there is `bend`; else ().
        pull: v; () if only the Jacobian is asked for.
        is_selected: Whether weights may be zero; the Jacobian of such an instance is ignored.
    """

    root: Scalar
    bend: Scalar | None
    residual: tuple[Scalar, ...]
    pull: Sequence[Scalar] = ()
    is_selected: bool = False

    @property
    def kept(self) -> list[Scalar]:
        """Numbers that kernels after the linearisation need: see `correction_dim`."""
        return [self.root] if self.bend is None else [self.root, self.bend, *self.residual]

    @staticmethod
    def of_kept(kept: Sequence[Scalar], *, is_selected: bool) -> "Correction":
        """Rebuild a correction from its `kept` numbers."""
        root, *others = kept
        bend = others[0] if others else None
        return Correction(root, bend, tuple(others[1:]), is_selected=is_selected)

    def times(self, rows: Sequence[Scalar]) -> list[Scalar]:
        """K times a vector, where C = K J."""
        if self.bend is None:
            return [self.root * row for row in rows]
        along = self.bend * dot(self.residual, rows)
        return [self.root * (row - along * r) for row, r in zip(rows, self.residual, strict=True)]

    def times_blocks(self, blocks: Blocks) -> Blocks:
        """C from J."""
        return {
            name: [list(row) for row in zip(*map(self.times, zip(*rows, strict=True)), strict=True)]
            for name, rows in blocks.items()
        }

    def corrected_residual(self) -> list[Scalar]:
        """K^-1 v, so that C^T times it is the gradient J^T v; 0 for instances that do not count."""
        root = self.root
        if self.bend is not None:
            root = root * (1.0 - self.bend * dot(self.residual, self.residual))
        counts = 0.0 < root
        inverse = counts.where(root, 1.0).reciprocal()
        return [counts.where(row * inverse, 0.0) for row in self.pull]

    def selected(self, blocks: Blocks) -> Blocks:
        """J, but zero for instances that do not count: theirs may be infinite."""
        if not self.is_selected:
            return blocks
        counts = 0.0 < self.root
        return {
            name: [[counts.where(entry, 0.0) for entry in row] for row in rows]
            for name, rows in blocks.items()
        }


def correction_dim(factor: TracedFactor) -> int:
    """Scalars that are kept of a `Correction` from the linearisation on."""
    rows = len(factor.residual)
    if factor.is_plain:
        return 0
    return 1 if factor.loss is None or rows == 1 else 2 + rows


@dataclass(frozen=True)
class Evaluation:
    """A factor at some values. Cost and Jacobian are added to the kernel when they are asked for.

    `storage` has the values of the arguments, `lowering` lowers more expressions of these;
    `epsilon_of` is the type whose epsilon the expressions have.
    """

    kernel: KernelBuilder
    factor: TracedFactor
    storage: Mapping[str, list[Scalar]]
    lowering: Lowering
    residual: list[Scalar]
    epsilon_of: DType

    @property
    def cost(self) -> Scalar:
        """Half of the weight times the loss of the residual's square."""
        if self.factor.is_plain:
            return dot(self.residual, self.residual) * 0.5
        cost = dot(self.residual, self.residual)
        if self.factor.loss is not None:
            cost, _, _ = self._loss(self.factor.loss, cost)
        if not self.factor.is_weighted:
            return cost * 0.5
        return (0.0 < self.weight).where(self.weight * cost * 0.5, 0.0)

    @property
    def weight(self) -> Scalar:
        """Weight of the instance, if it has one."""
        return self.storage[WEIGHT][0]

    def _loss(self, loss: TracedLoss, square: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        values = {one.name: self.storage[one.source][0] for one in loss.parameters}
        return loss.lowered(self.kernel.graph, square, values, self.epsilon_of)

    def is_beyond_scale(self) -> Scalar:
        """1 where the residual is longer than the scale of the loss, of an instance that counts."""
        (scale,) = self.storage[f"{PREFIX}{SCALE}"]
        is_beyond = scale * scale < dot(self.residual, self.residual)
        if self.factor.is_weighted:
            is_beyond = is_beyond & (0.0 < self.weight)
        return is_beyond.where(1.0, 0.0)

    @property
    def slope_of_loss(self) -> Scalar | None:
        """rho'(s); None: 1."""
        if self.factor.loss is None:
            return None
        return self._loss(self.factor.loss, dot(self.residual, self.residual))[1]

    def root_of_weight(self) -> Scalar | None:
        """sqrt(w rho'), without the curvature of the loss; None: 1."""
        if self.factor.is_plain:
            return None
        slope = Scalar(self.kernel.graph, self.kernel.graph.const(1.0))
        if self.factor.loss is not None:
            square = dot(self.residual, self.residual)
            slope = self._loss(self.factor.loss, square)[1].max(0.0)
        return (slope * self.weight if self.factor.is_weighted else slope).sqrt()

    def correction(self, residual: Sequence[Scalar]) -> "Correction | None":
        """Return the correction by weight and loss; None: they change nothing.

        The residual of this instance may be more precise than `self.residual`.
        """
        factor, loss = self.factor, self.factor.loss
        if factor.is_plain:
            return None
        slope = Scalar(self.kernel.graph, self.kernel.graph.const(1.0))
        if factor.is_weighted:
            counts = 0.0 < self.weight
            # whatever it is has no influence then
            residual = [counts.where(row, 0.0) for row in residual]
            slope = self.weight
        bend: Scalar | None = None
        root = slope.sqrt()
        if loss is not None:
            slope, along, bend = self._bent(loss, dot(residual, residual), slope)
            root = slope.sqrt()
            if len(residual) == 1:
                root, bend = root * along, None
        self.kernel.graph.origin = f"{factor.name}: weight"
        pull = [slope * row for row in residual]
        kept = () if bend is None else tuple(residual)
        return Correction(root, bend, kept, pull, is_selected=factor.is_weighted)

    def _bent(
        self, loss: TracedLoss, square: Scalar, weight: Scalar
    ) -> tuple[Scalar, Scalar, Scalar]:
        _, slope, curvature = self._loss(loss, square)
        self.kernel.graph.origin = f"{self.factor.name}: weight"
        # a second derivative may be infinite at s = 0, and what does not pull has no curvature
        is_curved = (0.0 < slope) & (0.0 < square)
        change = is_curved.where((2.0 * square) * (curvature / slope), 0.0)
        damping = self.kernel.scalar("damping")
        share = SECOND_ORDER_DAMPING * (damping + SECOND_ORDER_DAMPING).reciprocal()
        # sqrt(1 - share) - 1: d is sqrt(damping / (damping + SECOND_ORDER_DAMPING)) at least
        change = change.max(-(share / ((1.0 - share).sqrt() + 1.0)))
        along = (change + 1.0).sqrt()
        # (1 - sqrt(d)) / s
        bend = (0.0 < square).where(-change / (square * (along + 1.0)), 0.0)
        return weight * slope.max(0.0), along, bend

    def jacobian(self, nodes: Sequence[Argument]) -> Blocks:
        """J: the derivative of the residual by the tangents of some of the factor's nodes."""
        turned = self.factor.turned
        return tangent_jacobians(
            self.kernel, nodes, self.residual, self.lowering, self.storage, turned
        )


def evaluate(
    kernel: KernelBuilder,
    factor: TracedFactor,
    read: Callable[[Argument], list[Scalar]],
    epsilon_of: DType,
) -> Evaluation:
    """Evaluate a factor, whose arguments are each read once.

    `epsilon_of` is the type whose epsilon the residual has. Kernels that have the same Jacobian in
    different types need the same epsilon: else they differ where it counts.
    """
    symbols = {str(SYMBOL): kernel.graph.const(value(epsilon_of))}
    storage = {}
    for argument in factor.arguments:
        storage[argument.name] = read(argument)
        for symbol, scalar in zip(argument.symbols, storage[argument.name], strict=True):
            symbols[str(symbol)] = scalar.value
    for term in factor.terms:
        storage[term.name] = read(term)
    kernel.graph.origin = f"{factor.name}: residual"
    where = f"factor {factor.name} ({factor.location})"
    lowering = Lowering(kernel.graph, symbols, where, factor.lines)
    residual = [Scalar(kernel.graph, lowering.lower(row)) for row in factor.residual]
    for inside in factor.inside:
        flag = Scalar(kernel.graph, lowering.lower(inside))
        # 0 if it is left out; a coordinate that is NaN stays NaN
        residual = [(0.5 < flag).where(row, flag) for row in residual]
    return Evaluation(kernel, factor, storage, lowering, residual, epsilon_of)
