"""The page about clusters shows error lines as they are: each is the message of an error that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lapse.app import cluster
from lapse.core.errors import LapseError
from lapse.kube import errors
from lapse.kube.crd import installation as definitions

if TYPE_CHECKING:
    from types import ModuleType

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "on-your-cluster.md"
LINES = re.findall(r"^\| `([^`|]+ [^`|]+\.)` \|", PAGE.read_text(), re.MULTILINE)


def errors_in(*modules: ModuleType) -> dict[type[LapseError], re.Pattern[str]]:
    """The errors of some modules, each with what its message may be."""
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, LapseError) and kind.__module__ == module.__name__
    ]
    return {kind: re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(kind.__doc__ or ""))) for kind in kinds}


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_message_that_there_is(line: str) -> None:
    assert any(message.fullmatch(line) for message in errors_in(cluster, definitions, errors).values())


def test_every_mistake_that_a_start_can_find_is_on_the_page() -> None:
    missing = [kind for kind, message in errors_in(cluster).items() if not any(map(message.fullmatch, LINES))]
    assert missing == []
    assert len(LINES) >= 10
