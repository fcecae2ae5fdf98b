"""What one run of the benchmarks measured, as JSON that can be read back and merged."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measurement import Growth, Measurement, Setup
from benchmarks.new_process import Startup

_PACKAGES = (
    *("caspar-solver", "symforce", "numpy", "scipy", "llvmlite", "qdldl", "rslab"),
    *("cupy-cuda12x", "cupy-cuda13x", "pyceres", "gtsam", "jax", "sif2jax"),
)


@dataclass(frozen=True)
class Report:
    """All that one run of the benchmarks measured.

    Attributes:
        environment: Machine, versions and date.
        known: Best known cost of the problems where there is one.
        measurements: Solves.
        growths: The problem that grows.
        startups: New processes.
        missing: What could not be measured, and why.
    """

    environment: Mapping[str, str]
    known: Mapping[str, float] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    growths: tuple[Growth, ...] = ()
    startups: tuple[Startup, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """Problems with measurements, in order of appearance."""
        return list(dict.fromkeys(one.problem for one in self.measurements))

    def optimum(self, problem: str) -> float:
        """The best known cost, or the best that anyone reached."""
        if problem in self.known:
            return self.known[problem]
        reached = [one.final_cost for one in self.measurements if one.problem == problem]
        return min((cost for cost in reached if cost == cost), default=float("nan"))


def environment(device: str) -> dict[str, str]:
    """Machine, versions and date."""
    found = {
        "date": datetime.date.today().isoformat(),
        "device": device,
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(report: Report, path: Path) -> None:
    """Write what `read_json` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [f"{json.dumps(key)}: {_lines(value)}" for key, value in asdict(report).items()]
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    """JSON with a line for each entry of a list."""
    if isinstance(value, tuple):
        return "[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
    return json.dumps(value)


def read_json(path: Path) -> Report:
    """Read what `write_json` wrote."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Report(
        environment=stored["environment"],
        known=stored["known"],
        measurements=tuple(_measurement(one) for one in stored["measurements"]),
        growths=tuple(Growth(**one) for one in stored["growths"]),
        startups=tuple(Startup(**one) for one in stored["startups"]),
        missing=tuple(stored["missing"]),
    )


def _measurement(stored: dict[str, Any]) -> Measurement:
    setup = stored.pop("setup")
    trace = tuple((time_s, cost) for time_s, cost in stored.pop("trace"))
    return Measurement(setup=None if setup is None else Setup(**setup), trace=trace, **stored)


def merged(reports: Sequence[Report]) -> Report:
    """One report of several runs on one machine; a later run of the same thing replaces it.

    Raises:
        ValueError: They come from different devices.
    """
    devices = {report.environment["device"] for report in reports}
    if len(devices) != 1:
        raise ValueError(f"reports of different devices cannot be merged: {sorted(devices)}")
    measurements, growths, startups = {}, {}, {}
    for report in reports:
        measurements.update({(one.problem, one.solver): one for one in report.measurements})
        growths.update({(one.num_observations, one.solver): one for one in report.growths})
        startups.update({one.backend: one for one in report.startups})
    return Report(
        environment={key: value for one in reports for key, value in one.environment.items()},
        known={key: value for one in reports for key, value in one.known.items()},
        measurements=tuple(measurements.values()),
        growths=tuple(growths[key] for key in sorted(growths)),
        startups=tuple(startups.values()),
        missing=tuple(dict.fromkeys(line for one in reports for line in one.missing)),
    )
