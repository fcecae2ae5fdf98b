"""The swing-up of a cart with a pole, by multiple shooting: constraints between states.

The least sum of squared forces over two seconds; the dynamics of each step, by Runge and Kutta's
method, are constraints. Known costs: 59.131946207677 for 50 steps, 58.827825538813 for 200, by
fatrop and Ipopt through CasADi.
"""

from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar

COSTS = {50: 59.131946207677, 200: 58.827825538813}
"""By number of steps the least sum of squared forces times the time of a step."""

DURATION_S, CART_KG, POLE_KG, LENGTH_M, GRAVITY = 2.0, 1.0, 0.3, 0.5, 9.81
MOST_FORCE, MOST_PLACE = 20.0, 2.0


class State(sf.V4):
    """Place of the cart, angle of the pole, and their speeds."""


class Force(sf.V1):
    """Of the motor, for one step."""


def speed(state: Any, force: Any) -> Any:
    """The derivative of a state by time."""
    _, angle, fast, turn = state
    sine, cosine = sf.sin(angle), sf.cos(angle)
    torque = LENGTH_M * POLE_KG * sine * turn**2 + force
    inertia = CART_KG + POLE_KG * (1 - cosine**2)
    push = torque + POLE_KG * GRAVITY * cosine * sine
    swing = torque * cosine + (CART_KG + POLE_KG) * GRAVITY * sine
    return sf.V4(fast, turn, push / inertia, -swing / (LENGTH_M * inertia))


@caspar.factor
def effort(
    force: Annotated[Force, caspar.TunableShared], root: Annotated[sf.V1, caspar.ConstUnique]
) -> sf.V1:
    """Half its square is half the square of the force, times the time of a step."""
    return sf.V1(root[0] * force[0])


@caspar.constraint(kind="zero")
def dynamics(
    before: Annotated[State, caspar.TunableShared],
    after: Annotated[State, caspar.TunableShared],
    force: Annotated[Force, caspar.TunableShared],
    step: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V4:
    """A step of the classical method of Runge and Kutta."""
    h, u, x = step[0], force[0], sf.V4(*before)
    first = speed(x, u)
    second = speed(x + first * (h / 2), u)
    third = speed(x + second * (h / 2), u)
    fourth = speed(x + third * h, u)
    return sf.V4(*after) - x - (first + second * 2 + third * 2 + fourth) * (h / 6)


def arrays(num_steps: int) -> dict[str, Any]:
    """The start of the anchor: straight from one end to the other."""
    share = np.linspace(0.0, 1.0, num_steps + 1)
    zeros = np.zeros(num_steps + 1)
    steps = np.arange(num_steps)
    time_s = DURATION_S / num_steps
    return {
        "State": np.stack([share, np.pi * share, zeros, zeros], axis=1),
        "Force": np.zeros((num_steps, 1)),
        "effort": {"force": steps, "root": np.array([time_s**0.5])},
        "dynamics": {
            "before": steps,
            "after": steps + 1,
            "force": steps,
            "step": np.array([time_s]),
        },
    }


def limits(num_steps: int) -> dict[str, Any]:
    """What is held, and bounds: both ends of the path; force and place."""
    far = np.array([MOST_PLACE, np.inf, np.inf, np.inf])
    return {
        "fixed": {"State": np.array([0, num_steps])},
        "bounds": {"Force": (-MOST_FORCE, MOST_FORCE), "State": (-far, far)},
    }


def solve(solver: caspar.Solver, num_steps: int, **options: Any) -> caspar.SolveResult:
    """Solve it from the start of the anchor."""
    return solver.solve(arrays(num_steps), **limits(num_steps), **options)
