"""Files of structure-from-motion programs other than COLMAP: Bundler, OpenSfM, openMVG.

`read_bundler` gives arrays for `caspar.bundle_adjustment.snavely`. `read_opensfm` and
`read_openmvg` give models for `caspar.colmap.bundle_adjustment`. What was refined goes back with
`write_bundler` and `write_opensfm`.
"""

from caspar.sfm.bundler import BundlerScene, read_bundler, write_bundler
from caspar.sfm.openmvg import read_openmvg
from caspar.sfm.opensfm import OpenSfmScene, read_opensfm, write_opensfm
from caspar.sfm.tracks import Tracks, read_tracks, write_tracks

__all__ = [
    "BundlerScene",
    "OpenSfmScene",
    "Tracks",
    "read_bundler",
    "read_openmvg",
    "read_opensfm",
    "read_tracks",
    "write_bundler",
    "write_opensfm",
    "write_tracks",
]
