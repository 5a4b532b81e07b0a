"""Builder of the documentation site: the pages of the checkout, as they lie in it, as HTML.

`python tools/site/build.py FOLDER` writes the site to FOLDER. The pages keep their places relative to each other, so
every link that works in the checkout works in the site; the order of the navigation is that of the links on the index
pages. A link or anchor that leads nowhere, and a page of docs/ to which no index page leads, fail the build. What the
site needs to be read is in it: neither fonts nor scripts come from elsewhere.

Not guaranteed: links out of the site are not followed; a page outside of docs/ is part of it only if PAGES names it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from posixpath import normpath

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("docs", "examples", "deploy", "tests/servers/README.md"),
)
"""What is shown, or linked to from what is shown."""

SECTIONS = {
    "Tutorials": "docs/tutorials/README.md",
    "How-to guides": "docs/how-to/README.md",
    "Reference": "docs/reference/README.md",
}
EXPLANATION = "docs/explanation/README.md"
DECISIONS = "docs/explanation/decisions/README.md"
PROJECT = ("examples/README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

FENCE_NOTE = re.compile(r"^([ \t]*```\w+)[ \t]+\S.*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+\.md)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)

Navigation = list["str | dict[str, str | Navigation]"]


class PageNotLinkedError(Exception):
    """No index page leads to {pages}. Add a line to the README.md of its folder: the navigation is made from these."""

    def __init__(self, pages: list[str]) -> None:
        super().__init__((self.__doc__ or "").format(pages=", ".join(pages)))


def main() -> None:
    """Build the site into the folder of the first argument, which is replaced."""
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        stage(work / "pages")
        settings = (HERE / "zensical.toml").read_text()
        navigation = json.dumps(sections(), ensure_ascii=False).replace('": ', '" = ')
        (work / "zensical.toml").write_text(settings.replace("nav = []", f"nav = {navigation}", 1))
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        status = subprocess.run(command, cwd=work, check=False).returncode  # noqa: S603 - our own arguments
        if status:
            sys.exit(status)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "html", target)


def stage(pages: Path) -> None:
    """Copy what is shown, at the same places, with the fences that the Markdown of the site understands."""
    for name in PAGES:
        source, copy = ROOT / name, pages / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    for page in pages.rglob("*.md"):
        page.write_text(FENCE_NOTE.sub(r"\1", page.read_text()))  # such as `not run here`, which is for our tests
    shutil.copytree(HERE / "assets", pages / "assets")
    shutil.copy(ROOT / "src/lapse/web/pages/static/lapse.svg", pages / "assets")


def sections() -> Navigation:
    """Return the navigation, in which every page of docs/ stands once."""
    folders: Navigation = [{title: [index, *linked(index)]} for title, index in SECTIONS.items()]
    decisions: Navigation = [{"Decisions": [DECISIONS, *linked(DECISIONS)]}]
    benchmarks: Navigation = [titled(page) for page in sorted(docs()) if page.startswith("docs/benchmarks")]
    found: Navigation = [
        {"Lapse": "README.md"},
        {"Quickstart": "docs/quickstart.md"},
        *folders,
        {"Explanation": [EXPLANATION, *linked(EXPLANATION), *decisions]},
        {"Benchmarks": benchmarks},
        {"Project": [titled(page) for page in PROJECT]},
    ]
    missing = sorted(docs() - set(re.findall(r'"([^"]+[.]md)"', json.dumps(found))))
    if missing:
        raise PageNotLinkedError(missing)
    return found


def docs() -> set[str]:
    """Return the paths of all pages of docs/."""
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}


def linked(index: str) -> Navigation:
    """Return the pages of its own folder that an index page links to, in its order."""
    folder = PurePosixPath(index).parent
    targets = dict.fromkeys(str(folder / target) for target in LINK.findall((ROOT / index).read_text()))
    return [titled(page) for page in targets if page != index and normpath(page) == page and page in docs()]


def titled(page: str) -> dict[str, str | Navigation]:
    """Return a page with its title, without the marks of code in it."""
    found = TITLE.search((ROOT / page).read_text())
    return {(found[1] if found else page).replace("`", ""): page}


if __name__ == "__main__":
    main()
