# %% [markdown]
# # From a database to a model

# %% [markdown]
"""From COLMAP's database of matches to cameras and points, with caspar inside COLMAP's mappers.

`pycolmap` matches pictures, registers them, triangulates and filters; all averaging, positioning
and adjusting is caspar's, on a GPU if there is one. The database here is synthetic, so that the
truth is known: twenty pictures of four hundred points, measured to 0.5 pixels, a tenth of the
matches wrong. It needs pycolmap, and nothing that pip does not install.

    pip install pycolmap
    python examples/database_to_model.py
"""

# %%
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import caspar

try:
    import pycolmap
except ImportError:
    sys.exit("This example needs pycolmap: pip install pycolmap")

pycolmap.logging.minloglevel = 2

# %% [markdown]
# ## A database
#
# With pictures of your own, `pycolmap.extract_features` and `pycolmap.match_exhaustive` fill it.


# %%
def synthesize(folder: Path) -> Any:
    """Write `database.db` into a folder; the true model."""
    pycolmap.set_random_seed(0)
    scene = pycolmap.SyntheticDatasetOptions()
    scene.num_rigs, scene.num_cameras_per_rig, scene.num_frames_per_rig = 1, 1, 20
    scene.num_points3D, scene.inlier_match_ratio = 400, 0.9
    scene.camera_has_prior_focal_length = True
    noise = pycolmap.SyntheticNoiseOptions()
    noise.point2D_stddev = 0.5
    with pycolmap.Database.open(folder / "database.db") as database:
        truth = pycolmap.synthesize_dataset(scene, database)
        pycolmap.synthesize_noise(noise, truth, database)
    return truth


# %% [markdown]
# ## One picture after the other, or all at once
#
# `incremental_mapping` and `global_mapping` take the arguments of pycolmap's functions of these
# names and return what these return: `pycolmap.Reconstruction` objects by number, which are also
# written to the folder, `0`, `1` and so on.


# %%
def mapped(folder: Path) -> dict[str, Any]:
    """The largest model of each mapper."""
    database = folder / "database.db"
    incremental = pycolmap.IncrementalPipelineOptions()
    incremental.extract_colors = False  # there are no pictures to read
    incremental.random_seed = 0
    at_once = pycolmap.GlobalPipelineOptions()
    at_once.random_seed = 0
    begun = time.perf_counter()
    found = {
        "one after the other": caspar.colmap.incremental_mapping(
            database, folder, folder / "sparse", incremental
        )
    }
    middle = time.perf_counter()
    found["all at once"] = caspar.colmap.global_mapping(database, "", folder / "global", at_once)
    end = time.perf_counter()
    print(f"seconds, compilation included: {middle - begun:.1f} and {end - middle:.1f}")
    return {name: max(models.values(), key=_size) for name, models in found.items()}


def _size(model: Any) -> int:
    return int(model.num_reg_images())


# %% tags=["active-ipynb"]
# folder = Path(tempfile.mkdtemp())
# truth = synthesize(folder)
# models = mapped(folder)

# %% [markdown]
# ## How near the truth
#
# A model has any place, direction and size. The similarity that brings its centres nearest to the
# true ones comes from a singular value decomposition.


# %%
def centres_of(model: Any) -> Any:
    """(n, 3) centres of all images, by id."""
    return np.array([model.image(one).projection_center() for one in sorted(model.reg_image_ids())])


def aligned(found: Any, true: Any) -> Any:
    """Centres in the axes and the unit of others."""
    inner, outer = found - found.mean(axis=0), true - true.mean(axis=0)
    left, sizes, right = np.linalg.svd(inner.T @ outer)
    handed = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    turn = (left * handed) @ right
    return (sizes @ handed) / np.sum(inner**2) * inner @ turn + true.mean(axis=0)


def report(models: dict[str, Any], truth: Any) -> dict[str, float]:
    """Print what each model has; the median error of its centres."""
    true = centres_of(truth)
    medians = {}
    for name, model in models.items():
        gaps = np.linalg.norm(aligned(centres_of(model), true) - true, axis=1)
        medians[name] = float(np.median(gaps))
        print(
            f"{name}: {model.num_reg_images()} pictures, {model.num_points3D()} points, "
            f"{model.compute_mean_reprojection_error():.3f} pixels, centres to {medians[name]:.4f}"
        )
    return medians


# %% tags=["active-ipynb"]
# report(models, truth);


# %%
def draw(models: dict[str, Any], truth: Any) -> Figure:
    """Cameras and points from above: as found, on top of the true cameras."""
    figure, panels = plt.subplots(1, len(models), figsize=(9.0, 4.0), layout="constrained")
    true = centres_of(truth)
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        places = aligned(centres_of(model), true)
        axes.plot(true[:, 0], true[:, 1], "o", mfc="none", mec="0.6", ms=9, label="truth")
        axes.plot(places[:, 0], places[:, 1], "k.", label="found")
        axes.set_title(name, loc="left")
        axes.set_aspect("equal")
        axes.legend(frameon=False)
    return figure


# %% tags=["active-ipynb"]
# draw(models, truth);

# %% [markdown]
# ## Into other programs
#
# The folders are COLMAP's. hloc's `run_reconstruction` calls `pycolmap.incremental_mapping` on a
# database: call caspar's in its place. nerfstudio takes the folder of a model by
# `ns-process-data images --skip-colmap --colmap-model-path`, gsplat reads `sparse/0` beside the
# pictures.


# %% tags=["active-py"]
def main() -> dict[str, float]:
    """Map twice, and compare with the truth."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = synthesize(folder)
        return report(mapped(folder), truth)


if __name__ == "__main__":
    main()
