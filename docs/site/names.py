"""Sphinx extension: `caspar.Solver` in the text of a page is a link to the reference.

In: inline code of the pages written in Markdown. Out: references to names of caspar; code that
names something else stays as it is.
"""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"caspar(?:\.\w+)+")


class NameLinks(SphinxTransform):
    """Make references of inline code that may be a name."""

    default_priority = 401

    def apply(self, **kwargs: Any) -> None:
        """Wrap the code of one document that is not in a link or a heading."""
        for code in list(self.document.findall(nodes.literal)):
            name = code.astext().partition("(")[0]
            is_linked = isinstance(code.parent, nodes.reference | addnodes.pending_xref)
            if is_linked or isinstance(code.parent, nodes.title) or not _NAME.fullmatch(name):
                continue
            reference = addnodes.pending_xref(
                "", refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refwarn=False
            )
            code.replace_self(reference)
            reference += code


def setup(app: Any) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(NameLinks)
    return {"version": "1", "parallel_read_safe": True}
