"""Test functions 1 to 19 of Moré, Garbow and Hillstrom, whose numbers of unknowns are fixed.

J. J. Moré, B. S. Garbow, K. E. Hillstrom, *Testing Unconstrained Optimization Software*, ACM
Transactions on Mathematical Software 7 (1981). Minima have more digits than the paper gives: they
were polished in float64 from the published points. The tests compare them.
"""

import math
from typing import Any

import numpy as np
import symforce.symbolic as sf

from benchmarks.regression.problem import NONE, Array, Problem, one_kind


def _rosenbrock(x: Any, _: Any) -> Any:
    return [10 * (x[1] - x[0] ** 2), 1 - x[0]]


def _freudenstein_roth(x: Any, _: Any) -> Any:
    return [
        -13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1],
        -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1],
    ]


def _powell_badly_scaled(x: Any, _: Any) -> Any:
    return [1e4 * x[0] * x[1] - 1, sf.exp(-x[0]) + sf.exp(-x[1]) - 1.0001]


def _brown_badly_scaled(x: Any, _: Any) -> Any:
    return [x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2]


def _beale(x: Any, _: Any) -> Any:
    return [y - x[0] * (1 - x[1] ** i) for i, y in ((1, 1.5), (2, 2.25), (3, 2.625))]


def _jennrich_sampson(x: Any, d: Any) -> Any:
    return [2 + 2 * d[0] - sf.exp(d[0] * x[0]) - sf.exp(d[0] * x[1])]


def _helical_valley(x: Any, _: Any) -> Any:
    # The paper's arctan(x1 / x0) with half a turn where x0 < 0, in one expression.
    turns = sf.S(1) / 4 - sf.atan2(x[0], x[1], epsilon=0) / (2 * sf.pi)
    return [10 * (x[2] - 10 * turns), 10 * (sf.sqrt(x[0] ** 2 + x[1] ** 2) - 1), x[2]]


def _bard(x: Any, d: Any) -> Any:
    y, u, v, w = d
    return [y - x[0] - u / (v * x[1] + w * x[2])]


def _gaussian(x: Any, d: Any) -> Any:
    return [x[0] * sf.exp(-x[1] * (d[1] - x[2]) ** 2 / 2) - d[0]]


def _meyer(x: Any, d: Any) -> Any:
    return [x[0] * sf.exp(x[1] / (d[1] + x[2])) - d[0]]


def _gulf(x: Any, d: Any) -> Any:
    # |y - x1|^x2, without a kink of the absolute value
    return [sf.exp(-(((d[0] - x[1]) ** 2) ** (x[2] / 2)) / x[0]) - d[1]]


def _box(x: Any, d: Any) -> Any:
    t = d[0]
    return [
        sf.exp(-t * x[0]) - sf.exp(-t * x[1]) - x[2] * (sf.exp(-t) - sf.exp(-10 * t)),
    ]


def _powell_singular(x: Any, _: Any) -> Any:
    return [
        x[0] + 10 * x[1],
        math.sqrt(5.0) * (x[2] - x[3]),
        (x[1] - 2 * x[2]) ** 2,
        math.sqrt(10.0) * (x[0] - x[3]) ** 2,
    ]


def _wood(x: Any, _: Any) -> Any:
    return [
        10 * (x[1] - x[0] ** 2),
        1 - x[0],
        math.sqrt(90.0) * (x[3] - x[2] ** 2),
        1 - x[2],
        math.sqrt(10.0) * (x[1] + x[3] - 2),
        (x[1] - x[3]) / math.sqrt(10.0),
    ]


def _kowalik_osborne(x: Any, d: Any) -> Any:
    y, u = d
    return [y - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])]


def _brown_dennis(x: Any, d: Any) -> Any:
    t = d[0]
    return [(x[0] + t * x[1] - sf.exp(t)) ** 2 + (x[2] + x[3] * sf.sin(t) - sf.cos(t)) ** 2]


def _osborne_1(x: Any, d: Any) -> Any:
    y, t = d
    return [y - x[0] - x[1] * sf.exp(-t * x[3]) - x[2] * sf.exp(-t * x[4])]


def _biggs(x: Any, d: Any) -> Any:
    y, t = d
    decays = [sf.exp(-t * rate) for rate in (x[0], x[1], x[4])]
    return [x[2] * decays[0] - x[3] * decays[1] + x[5] * decays[2] - y]


def _osborne_2(x: Any, d: Any) -> Any:
    y, t = d
    peaks = [x[i] * sf.exp(-((t - x[i + 7]) ** 2) * x[i + 4]) for i in (1, 2, 3)]
    return [y - x[0] * sf.exp(-t * x[4]) - peaks[0] - peaks[1] - peaks[2]]


BARD = (0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.1, 4.39)
GAUSSIAN = (0.0009, 0.0044, 0.0175, 0.054, 0.1295, 0.242, 0.3521, 0.3989)
MEYER = (
    *(34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744),
    *(8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872),
)
KOWALIK = (0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246)
KOWALIK_AT = (4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625)
OSBORNE_1 = """
844 908 932 936 925 908 881 850 818 784 751 718 685 658 628 603 580 558 538 522 506 490 478 467 457
448 438 431 424 420 414 411 406
"""
OSBORNE_2 = """
1366 1191 1112 1013 991 885 831 847 786 725 746 679 608 655 616 606 602 626 651 724 649 649 694 644
624 661 612 558 533 495 500 423 395 375 372 391 396 405 428 429 523 562 607 653 672 708 633 668 645
632 591 559 597 625 739 710 729 720 636 581 428 292 162 98 54
"""


def _columns(*columns: Any) -> Array:
    """Data from a column each."""
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


def _thousandths(text: str) -> Array:
    return np.array(text.split(), dtype=np.float64) / 1000


def _without_data() -> list[Problem]:
    return [
        one_kind("Rosenbrock", _rosenbrock, NONE, ((-1.2, 1.0),), 0.0),
        one_kind(
            "Freudenstein-Roth", _freudenstein_roth, NONE, ((0.5, -2.0),), 0.0, (48.98425367924,)
        ),
        one_kind("Powell badly scaled", _powell_badly_scaled, NONE, ((0.0, 1.0),), 0.0),
        one_kind("Brown badly scaled", _brown_badly_scaled, NONE, ((1.0, 1.0),), 0.0),
        one_kind("Beale", _beale, NONE, ((1.0, 1.0),), 0.0, (0.4520093,)),
        one_kind("Helical valley", _helical_valley, NONE, ((-1.0, 0.0, 0.0),), 0.0),
        one_kind("Powell singular", _powell_singular, NONE, ((3.0, -1.0, 0.0, 1.0),), 0.0),
        one_kind("Wood", _wood, NONE, ((-3.0, -1.0, -3.0, -1.0),), 0.0),
    ]


def _with_data() -> list[Problem]:
    i = np.arange(1.0, 100.0)
    few, gulf, biggs = i[:15], i / 100, i[:13] / 10
    bard = _columns(BARD, few, 16 - few, np.minimum(few, 16 - few))
    gaussian = _columns(GAUSSIAN + GAUSSIAN[-2::-1], (8 - few) / 2)
    gulf_data = _columns(25 + (-50 * np.log(gulf)) ** (2 / 3), gulf)
    meyer = _columns(MEYER, 45 + 5 * i[:16])
    biggs_values = np.exp(-biggs) - 5 * np.exp(-10 * biggs) + 3 * np.exp(-4 * biggs)
    return [
        one_kind(
            "Jennrich-Sampson",
            _jennrich_sampson,
            i[:10, None],
            ((0.3, 0.4),),
            124.362182355615,
            (259.58019,),
        ),
        one_kind("Bard", _bard, bard, ((1.0, 1.0, 1.0),), 8.214877306578e-3, (17.4286933333,)),
        one_kind("Gaussian", _gaussian, gaussian, ((0.4, 1.0, 0.0),), 1.127932769618e-8),
        one_kind("Meyer", _meyer, meyer, ((0.02, 4e3, 250.0),), 87.94585517),
        one_kind("Gulf", _gulf, gulf_data, ((5.0, 2.5, 0.15),), 0.0),
        one_kind("Box", _box, i[:10, None] / 10, ((0.0, 10.0, 20.0),), 0.0, (7.5588741e-2,)),
        one_kind(
            "Kowalik-Osborne",
            _kowalik_osborne,
            _columns(KOWALIK, KOWALIK_AT),
            ((0.25, 0.39, 0.415, 0.39),),
            3.075056038492e-4,
            (1.02734e-3,),
        ),
        one_kind(
            "Brown-Dennis",
            _brown_dennis,
            i[:20, None] / 5,
            ((25.0, 5.0, -5.0, -1.0),),
            85822.20162636,
        ),
        one_kind(
            "Osborne 1",
            _osborne_1,
            _columns(_thousandths(OSBORNE_1), 10 * np.arange(33)),
            ((0.5, 1.5, -1.0, 0.01, 0.02),),
            5.464894697483e-5,
        ),
        one_kind(
            "Biggs EXP6",
            _biggs,
            _columns(biggs_values, biggs),
            ((1.0, 2.0, 1.0, 1.0, 1.0, 1.0),),
            0.0,
            (5.655649925e-3,),
        ),
        one_kind(
            "Osborne 2",
            _osborne_2,
            _columns(_thousandths(OSBORNE_2), np.arange(65) / 10),
            ((1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5),),
            4.013773629355e-2,
        ),
    ]


def problems() -> list[Problem]:
    """Functions 1 to 19."""
    return [*_without_data(), *_with_data()]
