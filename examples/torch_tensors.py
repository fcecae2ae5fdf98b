"""PyTorch tensors in, PyTorch tensors out: a curve is fitted on the device the tensors live on.

python examples/torch_tensors.py
"""

import sys
from typing import Annotated

import symforce.symbolic as sf

import caspar

try:
    import torch  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")


class Curve(sf.V3):
    """Height, rate and floor of an exponential decay."""


class Sample(sf.V2):
    """Abscissa and ordinate."""


@caspar.factor
def decay(
    curve: Annotated[Curve, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """How far the curve is above a sample."""
    height, rate, floor = curve
    return sf.V1(height * sf.exp(-rate * sample[0]) + floor - sample[1])


def main() -> caspar.SolveResult:
    """Fit 3 exp(-0.7 x) + 0.5 to samples of it, with noise."""
    solver = caspar.Solver([decay])
    device = solver.backend.name  # cuda or cpu
    torch.manual_seed(0)
    x = 5.0 * torch.rand(100_000, device=device)
    y = 3.0 * torch.exp(-0.7 * x) + 0.5 + 0.05 * torch.randn_like(x)
    result = solver.solve(
        {
            "Curve": torch.ones(1, 3, device=device),
            "decay": {"sample": torch.stack([x, y], dim=1)},
        }
    )
    print(result)
    print("\nfitted:", result.values["Curve"])
    return result


if __name__ == "__main__":
    main()
