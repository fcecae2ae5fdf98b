"""Sphinx extension: pictures beside the notebooks of the gallery's tables.

In: the page `examples/notebooks/README`, whose tables link to notebooks, and the executed
notebooks. Out: each table becomes cards, with the last picture that its notebook shows. On GitHub
the page stays as it is: a table. Cost: one look at each notebook's page in a build.
"""

from typing import Any

from docutils import nodes

PAGE = "examples/notebooks/README"


def _add_pictures(app: Any, doctree: nodes.document, docname: str) -> None:
    """Replace the tables of the page by cards, once all notebooks are read."""
    if docname != PAGE or app.builder.format != "html":
        return
    for table in list(doctree.findall(nodes.table)):
        rows = [row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)]
        cards = nodes.container(classes=["gallery"])
        cards += [card for row in rows if (card := _card(app, row)) is not None]
        if len(cards) == len(rows):
            table.replace_self(cards)
        else:
            raise ValueError(f"{PAGE}: a row of a table has no link to a notebook with a picture")


def _card(app: Any, row: nodes.row) -> nodes.container | None:
    """Picture, title and text of one notebook; None: it has no picture."""
    link = next(row.findall(nodes.reference), None)
    if link is None:
        return None
    name = f"{PAGE.rpartition('/')[0]}/{row[0].astext()}"
    page = app.env.get_doctree(name)
    pictures = [one for one in page.findall(nodes.image) if "candidates" in one]
    if len(pictures) == 0:
        return None
    uri = link["refuri"]
    picture = pictures[-1].deepcopy()
    for attribute in ("width", "height", "scale"):
        picture.attributes.pop(attribute, None)
    title = next(page.findall(nodes.title)).astext()
    picture["alt"] = title
    picture["loading"] = "lazy"
    linked = nodes.reference("", "", picture, internal=True, refuri=uri)
    heading = nodes.paragraph(
        "", "", nodes.reference("", title, internal=True, refuri=uri), classes=["gallery-title"]
    )
    text = nodes.paragraph("", "", *(child.deepcopy() for child in row[1][0].children))
    return nodes.container("", linked, heading, text, classes=["gallery-card"])


def setup(app: Any) -> dict[str, Any]:
    """Run after links are resolved."""
    app.connect("doctree-resolved", _add_pictures)
    return {"version": "1", "parallel_read_safe": True}
