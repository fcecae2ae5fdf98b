"""Whether a product derives Jacobians again or reads them from memory, where nobody chose.

Input: traced factors and a device. Output: yes or no. Once for each solver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from caspar.codegen.targets import TARGETS, Target
from caspar.driver import cached
from caspar.equations.factor_kernels import jacobian_kernel
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import Types
from caspar.frontend.size_refusal import naming_owners
from caspar.runtime.backend import Backend


@dataclass(frozen=True)
class JacobianPrice:
    """What an instance's Jacobian takes.

    Attributes:
        multiplications: To derive it, see `passes.price`.
        num_bytes: Of its entries that are not always zero, equal ones as well.
    """

    multiplications: float
    num_bytes: int


def recomputing_pays(factors: Sequence[TracedFactor], types: Types, backend: Backend) -> bool:
    """Whether arithmetic takes no longer than moving the bytes would, both at the device's peak.

    All factors count alike: how many instances each will have is not known yet.

    Products of 5.0 M observations on an H200 (7.0 multiplications a byte, Jacobians of 96 bytes),
    us an iteration by price: 155: 120, 239: 134, 284: 155, 407: 162, 654: 198, 1144: 300; stored
    159. Around PCG recomputing takes 70 to 250 us less. So at the rule's edge, 654, storing is 2 %
    quicker where a step has eight PCG iterations, 5 % where it has twelve; at 407 recomputing is
    by 6 and 5 %. Record 0012 has all figures.
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
        from caspar.passes.price import graph_price

        with naming_owners([factor], []):
            spec = jacobian_kernel(factor, types)
        num_entries = sum(arg.dim for arg in spec.args if arg.name == "jacobian")
        price = graph_price(spec.graph, target.costs[dtype])
        return JacobianPrice(price, num_entries * dtype.itemsize)

    parts = ["price", target.name, dtype.value, factor.key]
    return cached(parts, find, asdict, _price_from_json)


def _price_from_json(data: Mapping[str, Any]) -> JacobianPrice:
    return JacobianPrice(float(data["multiplications"]), int(data["num_bytes"]))
