"""`python docs/site/check.py out/site`: the built site leads everywhere.

Every link and anchor inside the site exists, every page is within four clicks of the first one,
the sidebar is short, every public name of caspar has an entry in the reference, and the search (if
Node.js is there to run it) finds the page that answers a question. Prints what is wrong; exit code
1.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote, urlsplit

from sphinx.ext.autodoc.mock import mock
from words import QUESTIONS

import caspar

MAX_CLICKS = 4  # sources and pages of benchmarks are that far
MAX_IN_SIDEBAR = 60
MAX_RANK = 3
"""Places of a search in which the right page has to be."""

FIRST = "index.html"
WITHOUT_LINKS = ("genindex.html", "search.html", "404.html")
"""Pages that the theme reaches by other means, or not at all."""


@dataclass
class Page(HTMLParser):
    """Links and anchors of a page."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down what a tag points at, and its name."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            elif (tag, name) in (("a", "href"), ("img", "src"), ("iframe", "src")):
                self.links.append(value)


def read(site: Path) -> dict[str, Page]:
    """All pages by their path in the site."""
    found = {}
    for file in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(file.read_text(encoding="utf-8"))
        found[file.relative_to(site).as_posix()] = page
    return found


def target(page: str, link: str) -> tuple[str, str] | None:
    """Path in the site and anchor of a link; None if it leads out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    path = normpath((PurePosixPath(page).parent / path).as_posix()) if path else page
    return path, unquote(parts.fragment)


def broken_links(site: Path, pages: dict[str, Page]) -> list[str]:
    """Links of which the page, the file or the anchor does not exist."""
    broken = []
    for name, page in pages.items():
        for link in page.links:
            found = target(name, link)
            if found is None:
                continue
            path, anchor = found
            if not (site / path).is_file():
                broken.append(f"{name}: {link}: no such page")
            elif anchor and path in pages and anchor not in pages[path].anchors:
                broken.append(f"{name}: {link}: no such anchor")
    return broken


def far_pages(pages: dict[str, Page]) -> list[str]:
    """Pages that take more than three clicks from the first."""
    reached = {FIRST}
    for _ in range(MAX_CLICKS):
        found = {target(name, link) for name in reached for link in pages[name].links}
        reached |= {place[0] for place in found if place is not None and place[0] in pages}
    far = sorted(set(pages) - reached - set(WITHOUT_LINKS))
    return [f"{name}: more than {MAX_CLICKS} clicks from {FIRST}" for name in far]


def names_without_entry(pages: dict[str, Page]) -> list[str]:
    """Public names that the reference does not have."""
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    names = [f"caspar.{name}" for name in caspar._NAMES]
    for module in (*caspar._MODULES, *caspar._OPTIONAL_MODULES):
        with mock(list(caspar._OPTIONAL_MODULES)):
            members = getattr(getattr(caspar, module), "__all__", ())
        names.append(f"module-caspar.{module}")
        names += [f"caspar.{module}.{name}" for name in members if name.isidentifier()]
    return [f"{name}: not in the reference" for name in names if name not in anchors]


def long_sidebar(site: Path) -> list[str]:
    """More links in the sidebar than anybody reads."""
    _, _, behind = (site / FIRST).read_text(encoding="utf-8").partition("sidebar-tree")
    count = behind.partition("</aside>")[0].count("<a ")
    return [f"{count} links in the sidebar"] if not 0 < count <= MAX_IN_SIDEBAR else []


def unanswered(site: Path) -> list[str]:
    """Questions whose page the search does not show among the first ones."""
    node = shutil.which("node")
    if node is None:
        print("no Node.js: the search was not tried")
        return []
    script = str(Path(__file__).with_name("search.js"))
    answers = subprocess.run(
        [node, script, str(site), *QUESTIONS], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    wrong = []
    for (question, page), line in zip(QUESTIONS.items(), answers, strict=True):
        shown = list(dict.fromkeys(json.loads(line)))[:MAX_RANK]
        if page not in shown and f"docs/guide/{page}" not in shown:
            wrong.append(f"search {question!r}: {', '.join(shown)}, not {page}")
    return wrong


def main() -> int:
    """Check the site that the command line names."""
    site = Path(sys.argv[1])
    pages = read(site)
    wrong = [*broken_links(site, pages), *far_pages(pages), *names_without_entry(pages)]
    wrong += [*long_sidebar(site), *unanswered(site)]
    print("\n".join([*wrong, f"{len(pages)} pages, {len(wrong)} faults"]))
    return int(len(wrong) > 0)


if __name__ == "__main__":
    sys.exit(main())
