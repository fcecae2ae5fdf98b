"""Describe a solve for drawing: poses, cameras and points at some values, and links.

Input: a `SolveResult`, or COLMAP models before and after. Output: a `Scene` of plain arrays,
thinned if there is more than anybody can look at. Public as `caspar.scene`; `caspar.view` writes
it into a file for a browser, `caspar.rerun` sends it to Rerun's viewer. Nothing here draws.
"""

from caspar.scene.result import scene_of_models, scene_of_result
from caspar.scene.scene import Group, GroupKind, Links, Scene, State

__all__ = ["Group", "GroupKind", "Links", "Scene", "State", "scene_of_models", "scene_of_result"]
