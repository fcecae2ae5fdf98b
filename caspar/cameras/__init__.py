"""Camera models as symbolic functions: COLMAP's 18, and three of robotics.

Each model takes its parameters and a point in camera coordinates to a pixel. A model is written
once, in terms of `Arithmetic`: on SymForce's symbols it is what factors are made of, on NumPy
arrays it evaluates millions of points. `MODELS` has all of them by COLMAP's names. This package
knows nothing of factors, solvers or files.
"""

from caspar.cameras.camera_model import BehindCamera, CameraModel
from caspar.cameras.models import MODELS, MODELS_BY_ID

__all__ = ["MODELS", "MODELS_BY_ID", "BehindCamera", "CameraModel"]
