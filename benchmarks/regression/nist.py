"""The nonlinear regressions of NIST's Statistical Reference Datasets, read from `data/`."""

import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import symforce.symbolic as sf

from benchmarks.regression.problem import Array, Kind, Problem, Residuals

ARCHIVE = Path(__file__).parents[2] / "data/nist_strd.tar.xz"


def _cubic_ratio(b: Any, x: Any) -> Any:
    upper = b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3
    return upper / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)


def _two_peaks(b: Any, x: Any) -> Any:
    first = b[2] * sf.exp(-((x - b[3]) ** 2) / b[4] ** 2)
    second = b[5] * sf.exp(-((x - b[6]) ** 2) / b[7] ** 2)
    return b[0] * sf.exp(-b[1] * x) + first + second


def _three_decays(b: Any, x: Any) -> Any:
    return sum(b[i] * sf.exp(-b[i + 1] * x) for i in (0, 2, 4))


def _cycles(b: Any, x: Any) -> Any:
    def wave(cosine: Any, sine: Any, period: Any) -> Any:
        angle = 2 * sf.pi * x / period
        return cosine * sf.cos(angle) + sine * sf.sin(angle)

    return b[0] + wave(b[1], b[2], 12) + wave(b[4], b[5], b[3]) + wave(b[7], b[8], b[6])


def _saturation(b: Any, x: Any) -> Any:
    return b[0] * (1 - sf.exp(-b[1] * x))


def _chwirut(b: Any, x: Any) -> Any:
    return sf.exp(-b[0] * x) / (b[1] + b[2] * x)


MODELS = {
    "Bennett5": lambda b, x: b[0] * (b[1] + x) ** (-1 / b[2]),
    "BoxBOD": _saturation,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": lambda b, x: b[0] * x ** b[1],
    "ENSO": _cycles,
    "Eckerle4": lambda b, x: b[0] / b[1] * sf.exp(-((x - b[2]) ** 2) / b[1] ** 2 / 2),
    "Gauss1": _two_peaks,
    "Gauss2": _two_peaks,
    "Gauss3": _two_peaks,
    "Hahn1": _cubic_ratio,
    "Kirby2": lambda b, x: (b[0] + b[1] * x + b[2] * x**2) / (1 + b[3] * x + b[4] * x**2),
    "Lanczos1": _three_decays,
    "Lanczos2": _three_decays,
    "Lanczos3": _three_decays,
    "MGH09": lambda b, x: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda b, x: b[0] * sf.exp(b[1] / (x + b[2])),
    "MGH17": lambda b, x: b[0] + b[1] * sf.exp(-x * b[3]) + b[2] * sf.exp(-x * b[4]),
    "Misra1a": _saturation,
    "Misra1b": lambda b, x: b[0] * (1 - (1 + b[1] * x / 2) ** -2),
    "Misra1c": lambda b, x: b[0] * (1 - 1 / sf.sqrt(1 + 2 * b[1] * x)),
    "Misra1d": lambda b, x: b[0] * b[1] * x / (1 + b[1] * x),
    "Rat42": lambda b, x: b[0] / (1 + sf.exp(b[1] - b[2] * x)),
    "Rat43": lambda b, x: b[0] / (1 + sf.exp(b[1] - b[2] * x)) ** (1 / b[3]),
    "Roszman1": lambda b, x: b[0] - b[1] * x - sf.atan(b[2] / (x - b[3])) / sf.pi,
    "Thurber": _cubic_ratio,
}
"""Predicted response, from parameters and predictor. Nelson, with two predictors, is apart."""

LOCAL_MINIMA = {"MGH09": (1.02734e-3,)}
"""Sums of squares that the files name beside the certified ones."""


def _nelson(b: Any, d: Any) -> Any:
    """The only model of a transformed response."""
    return [b[0] - b[1] * d[1] * sf.exp(-b[2] * d[2]) - sf.log(d[0])]


def _difference(model: Any) -> Residuals:
    return lambda b, d: [model(b, d[1]) - d[0]]


def problems() -> list[Problem]:
    """The 27 data sets, in the order of their names, each with both starts."""
    found = []
    with tarfile.open(ARCHIVE) as archive:
        for name in sorted([*MODELS, "Nelson"]):
            member = archive.extractfile(f"nist/{name}.dat")
            assert member is not None
            found.append(_parse(name, member.read().decode("ascii")))
    return found


def _parse(name: str, text: str) -> Problem:
    """The contents of a file of the collection."""
    number = r"[-+]?[\d.]+(?:[eE][-+]?\d+)?"
    numbers = " +".join([f"({number})"] * 4)
    rows = re.findall(rf"^ *b\d+ = +{numbers}", text, re.MULTILINE)
    starts = np.array(rows, dtype=np.float64).T
    (squares,) = re.findall(rf"Residual Sum of Squares: +({number})", text)
    (first, last) = re.findall(r"Data +\(lines (\d+) to +(\d+)\)", text)[0]
    lines = text.splitlines()[int(first) - 1 : int(last)]
    data: Array = np.array([line.split() for line in lines], dtype=np.float64)
    return Problem(
        name=name,
        kinds=(Kind(_nelson if name == "Nelson" else _difference(MODELS[name]), data),),
        starts=(tuple(starts[0].tolist()), tuple(starts[1].tolist())),
        minimum=float(squares),
        local_minima=LOCAL_MINIMA.get(name, ()),
        certified=tuple(starts[2].tolist()),
        standard_errors=tuple(starts[3].tolist()),
    )
