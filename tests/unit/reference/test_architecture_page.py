"""The architecture page: modules that are there, and one drawing for every domain; the glossary."""

from __future__ import annotations

import re
from pathlib import Path

from lapse.engine.journal.port import Outcome

ROOT = Path(__file__).parents[3]
EXPLANATION = ROOT / "docs/explanation"
PAGE = (EXPLANATION / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in (ROOT / "src/lapse").glob("*/__init__.py"))
STEPS = ["due page", "decide", "refresh", "decide", "executor", "target", "journal"]


def test_every_module_that_the_page_names_is_there() -> None:
    named = set(re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.[a-z_0-9]+)+)`", PAGE))
    files = {"objects.db", "workspaces.db"}  # of a state folder
    places = {name: ROOT / "src/lapse" / name.replace(".", "/") for name in named - files}

    assert len(named) > 40
    assert [name for name, place in places.items() if not (place.is_dir() or place.with_suffix(".py").exists())] == []


def test_the_way_of_a_thing_is_the_same_drawing_for_every_domain() -> None:
    drawings = [block for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if "\n  due page" in block]
    names = [re.split(r"  +", drawing, maxsplit=1)[0] for drawing in drawings]

    assert names == ["requests", "keepers", "schedules", "history", "workspaces", "keys", "a person's deletion"]
    for drawing in drawings:
        assert [line[2:13].strip() for line in drawing.splitlines()[1:]] == STEPS


def test_the_glossary_defines_each_word_once_and_is_linked() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (EXPLANATION / "glossary.md").read_text(), re.MULTILINE)

    assert len(words) == len(set(words))
    assert {"request", "keeper", "deadline", "verdict", "hold", "freeze", "budget", "term", "executor"} <= set(words)
    assert "(glossary.md)" in PAGE
    assert "docs/explanation/glossary.md" in (ROOT / "README.md").read_text()


def test_the_glossary_knows_every_outcome() -> None:
    (meaning,) = re.findall(r"^\| \*\*outcome\*\* \| (.+) \|$", (EXPLANATION / "glossary.md").read_text(), re.MULTILINE)
    for outcome in Outcome:
        assert re.search(rf"\b{'would be ended' if outcome is Outcome.WOULD_END else outcome}\b", meaning), outcome


def test_the_layers_are_drawn_once() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert "(docs/explanation/architecture.md#layers)" in text
    assert "objects, engine" not in text
