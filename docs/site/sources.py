"""Sphinx extension: links to files and folders of the repository become pages of the site.

In: links of the pages, such as `../caspar/driver.py` or `../caspar/ir/`. Out: a page for each file,
highlighted, and for each folder, which lists what is in it and shows its `__init__.py`. Links to
data stay downloads. Runs once in a build.
"""

import html
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".yml": "yaml", "": "text"}
"""Languages of the files that are shown, by suffix."""

FOLDER = "source"
"""Where the pages are, relative to the site's root."""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - caspar</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{up}_static/pygments.css">
<link rel="stylesheet" href="{up}_static/site.css">
</head>
<body class="source">
<p><a href="{up}index.html">caspar</a> / {title}</p>
{body}
</body>
</html>
"""
"""Without the sidebar, which would take most of the time of a build."""


class SourceLinks(SphinxTransform):
    """Point links to shown files and folders at their pages."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Replace the references of one document."""
        shown: set[str] = self.env.metadata[self.env.docname].setdefault("sources", set())
        links = [*self.document.findall(addnodes.download_reference)]
        links += self.document.findall(addnodes.pending_xref)
        for link in links:
            path = self._path(link)
            if path is None:
                continue
            shown.add(path)
            here = self.app.builder.get_target_uri(self.env.docname)
            uri = "../" * here.count("/") + f"{FOLDER}/{path}.html"
            reference = nodes.reference("", "", *link.children, internal=True, refuri=uri)
            link.replace_self(reference)

    def _path(self, link: nodes.Element) -> str | None:
        """The linked file or folder, relative to the root; None if it is not one to show."""
        if link.get("refdomain") is not None or link.get("reftype") != "myst":
            return None
        target = link["reftarget"].partition("#")[0]
        if target == "":
            return None
        _, name = self.env.relfn2path(target, self.env.docname)
        path, root = Path(name).resolve(), Path(self.env.srcdir).resolve()
        is_shown = path.is_dir() or (path.is_file() and path.suffix in LANGUAGES)
        return path.relative_to(root).as_posix() if is_shown else None


def _write_pages(app: Any, error: Exception | None) -> None:
    """A page for everything that a document links to, and for the files of linked folders."""
    if error is not None or app.builder.format != "html":
        return
    root = Path(app.srcdir).resolve()
    shown = {path for data in app.env.metadata.values() for path in data.get("sources", ())}
    shown |= {
        file.relative_to(root).as_posix()
        for path in shown
        if (root / path).is_dir()
        for file in (root / path).iterdir()
        if file.suffix == ".py"
    }
    for path in sorted(shown):
        page = Path(app.outdir) / FOLDER / f"{path}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_page(app, root / path, path), encoding="utf-8")


def _page(app: Any, file: Path, path: str) -> str:
    up = "../" * (path.count("/") + 1)
    body = ""
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir() if child.suffix == ".py")
        links = "".join(f'<li><a href="{file.name}/{name}.html">{name}</a></li>' for name in names)
        body = f"<ul>{links}</ul>"
        file = file / "__init__.py"
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        body += app.builder.highlighter.highlight_block(text, LANGUAGES[file.suffix])
    return TEMPLATE.format(title=html.escape(path), up=up, body=body)


def setup(app: Any) -> dict[str, Any]:
    """Register the transform and the pages."""
    app.add_transform(SourceLinks)
    app.connect("build-finished", _write_pages)
    return {"version": "1", "parallel_read_safe": True}
