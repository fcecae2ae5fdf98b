"""`python -m benchmarks.colmap_variants FOLDER`: variants of real COLMAP models, beside Ceres.

FOLDER has packed models and `reference.json`, which has costs and iterations of Ceres, run until
the cost stays as it is, for each model with default flags, from a start that was moved, with parts
held and with losses. Each is adjusted by `caspar.colmap.bundle_adjustment` with default options but
for those of the variant, in float64 and in mixed precision. Differences of costs are relative to
Ceres'; where that is negative, caspar's cost is the lower one. Iterations count rejected steps.
"""

import argparse
import json
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import caspar.colmap
from benchmarks.page import table
from benchmarks.report import environment
from caspar.colmap import BundleAdjustmentOptions, Model, read_model

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "refine_pp": {"refine_principal_point": True},
    "fixed_intrinsics": {"refine_focal_length": False, "refine_extra_params": False},
    "focal_only": {"refine_extra_params": False},
    "fixed_points": {"refine_points3D": False},
    "fixed_rotation": {"constant_rig_from_world_rotation": True},
    "fixed_poses": {"refine_rig_from_world": False},
    "soft_l1_1": {"loss_function_type": "SOFT_L1"},
    "huber1": {"loss_function_type": "HUBER"},
    "cauchy1": {"loss_function_type": "CAUCHY"},
    "cauchy0.5": {"loss_function_type": "CAUCHY", "loss_function_scale": 0.5},
}

MAX_ITERATIONS = 300

PRECISIONS = ("float64", "mixed")

HEADINGS = [
    *("model", "variant", "cost, Ceres", "iterations"),
    *(f"{kind}, {name}" for name in PRECISIONS for kind in ("difference", "iterations", "s")),
]

ONLY_DEFAULT = {"tensorf_184": 55346.845142}
"""Optima of models that are not in the file, in ten digits."""


def unpacked(folder: Path, place: Path) -> dict[str, Model]:
    """All models; those that were moved under the name of the model and `, moved`."""
    models = {}
    for path in sorted(folder.glob("*.tar.xz")):
        is_moved = path.name.startswith("perturbed")
        with tarfile.open(path) as archive:
            archive.extractall(place / path.name, filter="data")
        for one in sorted((place / path.name).iterdir()):
            models[f"{one.name}, moved" if is_moved else one.name] = read_model(one)
    return models


def cases(
    models: Mapping[str, Model], known: Mapping[str, Any]
) -> Iterator[tuple[str, str, Model, Mapping[str, Any], Mapping[str, Any]]]:
    """Name, variant, model, options, and what Ceres found."""
    for name, model in models.items():
        base, _, moved = name.partition(", ")
        if base in ONLY_DEFAULT:
            yield name, "default", model, {}, {"cost1": ONLY_DEFAULT[base]}
            continue
        if moved != "":
            yield name, "default", model, {}, known[base]["perturbed"]
            continue
        found = {"default": known[base]["default"], **known[base]["variants"]}
        for variant, options in VARIANTS.items():
            if variant in found:
                yield name, variant, model, options, found[variant]


def solved(model: Model, options: Mapping[str, Any]) -> tuple[Any, float]:
    """A summary, and the seconds of its iterations."""
    chosen = BundleAdjustmentOptions(**options, max_num_iterations=MAX_ITERATIONS)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = caspar.colmap.bundle_adjustment(model, chosen)
    seconds = time.perf_counter() - start
    return summary, seconds - summary.result.compile_time_s


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.colmap_variants")
    parser.add_argument("models", type=Path, help="folder of packed models and reference.json")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--only", help="a part of the names of models and variants")
    request = parser.parse_args()
    known = json.loads((request.models / "reference.json").read_text())
    facts = environment(request.backend)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        models = unpacked(request.models, Path(place))
    for name, variant, model, options, ceres in cases(models, known):
        if request.only is not None and request.only not in f"{name} {variant}":
            continue
        row = [name, variant, f"{ceres['cost1']:.6f}", f"{ceres.get('its', '')}"]
        for precision in PRECISIONS:
            given = {**options, "backend": request.backend, "precision": precision}
            summary, seconds = solved(model, given)
            difference = summary.final_cost / ceres["cost1"] - 1
            is_end = summary.result.status.is_success
            row += [
                f"{difference:.0e}",
                f"{len(summary.result.iterations)}" + ("" if is_end else " (not converged)"),
                f"{seconds:.2f}",
            ]
        rows.append(row)
        print("  ".join(row), flush=True)
    shown = ", ".join(f"{name} {value}" for name, value in facts.items())
    assert __doc__ is not None
    about = __doc__.partition("\n\n")[2]
    page = f"# Variants of COLMAP models beside Ceres\n\n{shown}.\n\n{about}\n"
    request.folder.mkdir(parents=True, exist_ok=True)
    path = request.folder / f"colmap_variants_{request.backend}.md"
    path.write_text(page + table(HEADINGS, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
