"""Sphinx extension: a scene to turn with the mouse in place of the first page's picture.

In: the picture of Trafalgar on the first page, and the data behind it. Out: on the site a frame
with the scene, solved during the build, under the picture; on GitHub the page stays as it is. Cost:
one solve in a build, on the CPU.
"""

from pathlib import Path
from typing import Any

from docutils import nodes

PICTURE = "docs/trafalgar.png"
DATA = Path("data") / "problem-21-11315-pre.txt.bz2"
PLACE = Path("_static") / "trafalgar.html"

FRAME = (
    f'<iframe class="scene" src="{PLACE.as_posix()}" loading="lazy" '
    'title="Trafalgar: turn the scene with the mouse, and move the slider through the iterations">'
    "</iframe>"
)


def _add_frame(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the frame below the picture of the first page."""
    if docname != app.config.root_doc or app.builder.format != "html":
        return
    pictures = [one for one in doctree.findall(nodes.image) if one["uri"] == PICTURE]
    if len(pictures) != 1:
        raise ValueError(f"{docname}: it must show {PICTURE} once")
    paragraph = pictures[0].parent
    paragraph.parent.insert(
        paragraph.parent.index(paragraph) + 1, nodes.raw("", FRAME, format="html")
    )


def _write_scene(app: Any, exception: Exception | None) -> None:
    """Solve, and write the scene beside the static files of the site."""
    if exception is not None or app.builder.format != "html":
        return
    import caspar

    bal = caspar.io.read_bal(Path(app.srcdir) / DATA)
    recording = caspar.Recording()
    solver = caspar.Solver([caspar.bundle_adjustment.snavely], backend="cpu")
    observed = {"cam": bal.camera_index, "point": bal.point_index, "pixel": bal.pixels}
    arrays = {"Cam": bal.cameras, "Point": bal.points, "snavely": observed}
    result = solver.solve(arrays, on_iteration=recording, verbose=False)
    result.to_html(Path(app.outdir) / PLACE, recording)


def setup(app: Any) -> dict[str, bool]:
    """Register what Sphinx calls while it builds."""
    app.connect("doctree-resolved", _add_frame)
    app.connect("build-finished", _write_scene)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
