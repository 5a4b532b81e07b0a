"""The documentation as a site: built without a warning, whole in itself, and usable without a server."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "tools" / "site" / "build.py"
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
SHAPE = frozenset({"h1", "h2", "h3", "h4", "ol", "ul", "li", "pre", "table", "tr", "blockquote", "img"})


class Page(HTMLParser):
    """The links, the anchors, what is loaded, and the shape of the text of one page."""

    def __init__(self, text: str, *, whole: bool = False) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.shape: Counter[str] = Counter()
        self._in_text = whole
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_text |= tag == "article"
        if self._in_text and tag in SHAPE:
            self.shape[tag] += 1
        if "id" in given:
            self.anchors.add(given["id"])
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._in_text = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run([sys.executable, str(BUILD), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # 404.html is for a server that shows it at any address, so its links begin at the root.
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_document_is_a_page(pages: dict[Path, Page], site: Path) -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert {built(site, document) for document in documents} <= pages.keys()


def test_every_link_within_the_site_leads_to_a_file_and_an_anchor(pages: dict[Path, Page], site: Path) -> None:
    assert [
        (str(path.relative_to(site)), link) for path, page in pages.items() for link in broken(path, page, pages)
    ] == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    named = {(path, target) for path, page in pages.items() for target in page.loaded}
    assert {target for _, target in named if urlsplit(target).scheme or target.startswith("/")} == set()
    assert [target for path, target in named if not (path.parent / unquote(urlsplit(target).path)).is_file()] == []


def test_a_page_has_the_headings_lists_tables_and_blocks_that_a_forge_shows(
    pages: dict[Path, Page], site: Path
) -> None:
    forge = MarkdownIt("commonmark").enable("table")
    documents = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {document: Page(forge.render(document.read_text()), whole=True).shape for document in documents}
    assert {document: pages[built(site, document)].shape for document in documents} == shown


def built(site: Path, document: Path) -> Path:
    place = document.relative_to(ROOT)
    return site / (place.parent / "index.html" if place.name == "README.md" else place.with_suffix(".html"))


def broken(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        found = there.is_file() and (
            not parts.fragment or there not in pages or unquote(parts.fragment) in pages[there].anchors
        )
        if not found:
            yield link


@pytest.mark.server("chromium", private=True)
def test_search_works_from_a_file_and_asks_nobody(site: Path) -> None:
    from playwright.sync_api import expect

    from tests.servers.chromium import chromium

    with chromium() as browser, browser.new_context() as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_role("button", name="Search").first.click()
        page.keyboard.type("legal hold")
        expect(page.get_by_role("option", name="Legal hold").first).to_be_visible(timeout=30_000)
        assert [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
