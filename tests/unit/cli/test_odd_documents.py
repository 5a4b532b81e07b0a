"""Whatever stands in a file, a command does its work or says in a line what is wrong; there is never a traceback."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main
from tests.odd_documents import ODD, POLICY, RUN, odd_documents

if TYPE_CHECKING:
    from pathlib import Path

SOME = [one for one in ODD if one in ({"a": None}, "\ud800", "9999-12-31T23:59:59Z", 2**63, None) or one != one]  # noqa: PLR0124 - NaN
YAMLS = [
    "a: &a [x, x]\n" + "\n".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise("abcdefg")),
    "&a [*a]",
    "a: &a {b: *a}",
    "<<: [{a: 1}, 7]",
    "2026-01-31: x",
    "when: 2026-01-31",
    "? [a, b]\n: c",
    "!!python/object/apply:os.system [true]",
    "a: \\ud800",
    '"\\ud800": 1',
    "a: .nan",
    "a: 0x" + "f" * 100,
    "- " * 5_000 + "x",
    "\0",
    "\ufeff{}",
    "%YAML 9.9\n---\na",
]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def said(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    code = main([*line])
    found = capsys.readouterr()
    assert code in {0, 1, 64}, found
    assert "Traceback" not in found.err
    return found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "good"),
    [("history record", RUN), ("retention lint", POLICY), ("retention rbac", POLICY)],
    ids=["record", "lint", "rbac"],
)
def test_every_odd_document_is_taken_or_refused_in_plain_words(
    line: str, good: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (_, document) in enumerate(odd_documents(good, SOME)):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document))
        said(capsys, *line.split(), str(file))


@pytest.mark.parametrize("line", ["history record", "retention lint", "retention run", "retention rbac"])
@pytest.mark.parametrize("text", YAMLS, ids=[ascii(text[:20]) for text in YAMLS])
def test_every_odd_file_is_refused_in_plain_words(
    line: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    said(capsys, *line.split(), "odd.yaml")


def test_a_null_label_and_a_year_9999_and_half_a_character_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(line: str, document: dict[str, Any]) -> str:
        (tmp_path / "odd.yaml").write_text(json.dumps(document))
        code = main([*line.split(), "odd.yaml"])
        found = capsys.readouterr()
        assert code in {1, 64}
        return found.out + found.err

    selector = {**POLICY["spec"]["selector"], "labels": {"app": None}}
    odd = {**POLICY, "spec": {**POLICY["spec"], "selector": selector}}
    assert "spec.selector.labels.app" in refused("retention lint", odd).replace("\n", "")
    late = {**RUN["spec"], "execution": {"startTime": "9999-12-31T23:59:59Z", "status": "success"}}
    assert "spec.execution.startTime: 9999-12-31T23:59:59Z is not a time that can be kept" in refused(
        "history record", {**RUN, "spec": late}
    )
    half = {**RUN["spec"], "experimentRef": {"name": "\ud800", "namespace": "shop"}}
    assert "spec.experimentRef.name: it holds half of a character" in refused("history record", {**RUN, "spec": half})
