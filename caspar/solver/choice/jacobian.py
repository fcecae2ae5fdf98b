"""Choose whether products recompute Jacobians or load them, if the user has not chosen.

Input: traced factors and a device. Output: yes or no. Once for each solver.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from caspar.codegen.targets import TARGETS, Target
from caspar.driver import cached
from caspar.equations.factor_kernels import jacobian_kernel
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import Types
from caspar.frontend.size_refusal import naming_owners
from caspar.runtime.backend import Backend


@dataclass(frozen=True)
class JacobianPrice:
    """The cost of an instance's Jacobian.

    Attributes:
        multiplications: Cost of computing it; see `passes.pipeline.graph_price`.
        num_bytes: Bytes of its entries that are not always zero; equal ones count too.
    """

    multiplications: float
    num_bytes: int


def recomputing_pays(factors: Sequence[TracedFactor], types: Types, backend: Backend) -> bool:
    """Return whether recomputing takes no longer than loading, both at the device's peak rates.

    All factors count alike, because their numbers of instances are not known yet. Measurements:
    docs/design/0012-elimination.md, "When recomputing pays".
    """
    target = TARGETS[backend.traits.target]
    prices = [jacobian_price(factor, types, target) for factor in factors]
    multiplications = sum(price.multiplications for price in prices)
    num_bytes = sum(price.num_bytes for price in prices)
    return multiplications <= backend.machine_balance(types.storage) * num_bytes


def jacobian_price(factor: TracedFactor, types: Types, target: Target) -> JacobianPrice:
    """The price of a factor's Jacobian by all its nodes, or what the cache has."""
    dtype = types.storage

    def find() -> JacobianPrice:
        from caspar.passes.pipeline import graph_price

        with naming_owners([factor], []):
            spec = jacobian_kernel(factor, types)
        num_entries = sum(arg.dim for arg in spec.args if arg.name == "jacobian")
        price = graph_price(spec.graph, target.costs[dtype])
        return JacobianPrice(price, num_entries * dtype.itemsize)

    parts = ["price", target.name, dtype.value, factor.key]
    return cached(parts, find, asdict, lambda data: JacobianPrice(**data))
