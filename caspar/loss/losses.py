"""The losses that come with caspar; `caspar.loss` says what they have in common."""

from typing import Any, ClassVar

import symforce.symbolic as sf

from caspar.frontend.factors.loss import Loss


def _log1p(x: Any) -> Any:
    """log(1 + x) for x >= 0, to full relative precision near 0."""
    return sf.Piecewise((2 * sf.atanh(x / (2 + x)), x < 1), (sf.log(1 + x), True))


class L2(Loss):
    """No loss, rho0 = u: for comparisons.

    Example:
        >>> import caspar
        >>> [float(caspar.loss.L2().rho(s, 1.0)) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 1.0, 100.0]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return s


class Huber(Loss):
    """rho0 = u up to 1, 2 sqrt(u) - 1 beyond (Huber, 1964): convex.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
        >>> solver = caspar.Solver(measured.with_loss(caspar.loss.Huber))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [9.0]], "loss_scale": 1.0}
        >>> solver.solve({"Length": [[0.0]], "measured": values}).values["Length"].round(3)
        array([[1.55]])
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return sf.Piecewise((s, s <= scale**2), (2 * scale * sf.sqrt(s) - scale**2, True))


class SoftL1(Loss):
    """rho0 = 2 (sqrt(1 + u) - 1), also called pseudo-Huber or Charbonnier: convex and smooth.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.SoftL1()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.828, 18.1]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return 2 * s / (1 + sf.sqrt(1 + s / scale**2))


class Cauchy(Loss):
    """rho0 = log(1 + u), also called Lorentzian: residuals far beyond the scale pull little.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.Cauchy()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.693, 4.615]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return scale**2 * _log1p(s / scale**2)


class Arctan(Loss):
    """rho0 = atan(u): bounded, the start must be near.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.Arctan()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.785, 1.561]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return scale**2 * sf.atan(s / scale**2)


class GemanMcClure(Loss):
    """rho0 = u / (1 + u) (Geman and McClure, 1985): bounded, the start must be near.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.GemanMcClure()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.5, 0.99]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        return s / (1 + s / scale**2)


class Welsch(Loss):
    """rho0 = 1 - exp(-u), also called Leclerc or correntropy: bounded, the start must be near.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.Welsch()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.632, 1.0]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        u = s / scale**2
        half = sf.tanh(u / 2)
        return scale**2 * sf.Piecewise((2 * half / (1 + half), u < 1), (1 - sf.exp(-u), True))


class Tukey(Loss):
    """rho0 = (1 - (1 - u)^3) / 3 up to 1, 1/3 beyond (biweight; Beaton and Tukey, 1974).

    Residuals beyond the scale do not pull at all.

    Example:
        >>> import caspar
        >>> loss = caspar.loss.Tukey()
        >>> [round(float(loss.rho(s, 1.0)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.01, 0.333, 0.333]
    """

    def rho(self, s: Any, scale: Any) -> Any:
        """See `Loss.rho`."""
        u = s / scale**2
        inside = s * (1 - u + u**2 / 3)
        return sf.Piecewise((inside, u < 1), (scale**2 / 3, True))


class Barron(Loss):
    """The general loss of Barron (CVPR 2019); its shape `loss_alpha` is passed with the arrays.

    rho0 = 2 b / alpha ((1 + u / b)^(alpha / 2) - 1) with b = |alpha - 2|, which is u for alpha = 2,
    SoftL1 for 1, Cauchy of the scale sqrt(2) a for 0, Geman-McClure of the scale 2 a for -2; for
    alpha towards minus infinity Welsch of the scale sqrt(2) a. One number, or one an instance.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
        >>> solver = caspar.Solver(measured.with_loss(caspar.loss.Barron))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [9.0]], "loss_alpha": 1.0}
        >>> solver.solve({"Length": [[1.0]], "measured": values}).values["Length"].round(2)
        array([[1.62]])
    """

    def rho(self, s: Any, scale: Any, alpha: Any) -> Any:
        """See `Loss.rho`."""
        # the limits at alpha = 2 and 0 are within rounding of what is computed near them
        b = sf.Max(sf.Abs(alpha - 2), 1e-5)
        logarithm = _log1p(s / (b * scale**2))
        x = alpha * logarithm / 2
        # (exp(x) - 1) / x
        series = 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))
        is_small = sf.Abs(x) < 0.02
        safe = sf.Piecewise((1, is_small), (x, True))
        quotient = sf.Piecewise((series, is_small), ((sf.exp(safe) - 1) / safe, True))
        return scale**2 * b * logarithm * quotient


class Tolerant(Loss):
    """rho0 = c log(1 + exp((u - 1) / c)) - c log(1 + exp(-1 / c)): small residuals cost nothing.

    Residuals well below the scale cost next to nothing, those beyond it u - 1. The width c of the
    passage between the two is passed as `loss_width`, 0.1 by default. (Ceres' `TolerantLoss(a, b)`
    with a the squared scale and b = c a.)

    Example:
        >>> import caspar
        >>> loss = caspar.loss.Tolerant()
        >>> [round(float(loss.rho(s, 1.0, 0.1)), 3) for s in (0.01, 1.0, 100.0)]  # squared lengths
        [0.0, 0.069, 99.0]
    """

    positive: ClassVar[tuple[str, ...]] = ("scale", "width")

    def rho(self, s: Any, scale: Any, width: Any = 0.1) -> Any:
        """See `Loss.rho`."""
        x = (s / scale**2 - 1) / width
        least = _log1p(sf.exp(-1 / width))
        # log(1 + exp(x)), which overflows nowhere
        soft = sf.Max(x, 0) + _log1p(sf.exp(-sf.Abs(x)))
        return scale**2 * width * (soft - least)
