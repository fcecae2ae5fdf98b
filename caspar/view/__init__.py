"""Interactive views of solves: one HTML file that needs no network, drawn by plotly.

Input: a `caspar.scene.Scene`. Output: a file for a browser: turn it, move through the iterations,
point at things. Public as `caspar.view`, loaded when something is first drawn. The extra `view`
installs plotly.
"""

from caspar.errors import MissingPackageError

try:
    from caspar.view.page import page_of_scene, write_html
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "plotly":
        raise
    raise MissingPackageError("an interactive view", "plotly", "view") from error

__all__ = ["page_of_scene", "write_html"]
