"""The links of the documents: each relative one leads to a file of the checkout, and its anchor to a heading there."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "deploy", "docs", "examples", "tests", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
INDEXED = ("docs/tutorials", "docs/how-to", "docs/reference", "docs/explanation", "docs/explanation/decisions")
PARSER = MarkdownIt("commonmark").enable("table")


def in_page(page: Path) -> Iterator[Token]:
    for token in PARSER.parse(page.read_text()):
        yield token
        yield from token.children or ()


def targets(page: Path) -> list[str]:
    """Return what links and images of a page name, in which code is not looked into."""
    named = (token.attrs.get("href") or token.attrs.get("src") for token in in_page(page))
    return [str(target) for target in named if target and not ELSEWHERE.match(str(target))]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as forges make them."""
    tokens = PARSER.parse(page.read_text())
    titles = [after for token, after in pairwise(tokens) if token.type == "heading_open"]
    found: Counter[str] = Counter()
    made = []
    for title in titles:
        text = "".join(part.content for part in title.children or ())
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        made.append(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return frozenset(made)


def broken(page: Path) -> Iterator[str]:
    for target in targets(page):
        path, _, anchor = unquote(target).partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"{target}: there is no such file"
        elif there.is_dir():
            yield f"{target}: a folder, which is no page of the site; name a file in it"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield f"{target}: there is no such heading; expected one of {', '.join(sorted(anchors(there)))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("folder", INDEXED)
def test_every_page_stands_in_the_index_of_its_folder(folder: str) -> None:
    listed = {target.partition("#")[0] for target in targets(ROOT / folder / "README.md")}
    assert {page.name for page in (ROOT / folder).glob("*.md")} - {"README.md"} <= listed


def test_links_are_found_in_text_tables_and_images_but_not_in_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](a.md#one) `[b](b.md)` ![c](c.png)\n\n| d |\n|---|\n| [e](e.md) |\n\n"
        "```\n[f](f.md)\n```\n[g][h]\n\n[h]: h.md\n"
    )
    assert targets(page) == ["a.md#one", "c.png", "e.md", "h.md"]


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c?\n\n# Twice\n\n# Twice\n\n[x](#a-b-c) [y](#twice-1) [z](#no) [u](no.md) [v](../other) [w](.)\n"
    )
    assert [found.partition(":")[0] for found in broken(page)] == ["#no", "no.md", "../other", "."]
